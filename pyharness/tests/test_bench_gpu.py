"""README's tables of the GPU are those of the checked-in numbers, and the measured cuts exist."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner

from pyharness.bench_gpu import (
    ALONE,
    CALLS,
    NUMBERS,
    README,
    ROOT,
    main,
    merged,
    rewrite,
    tables,
)
from pyharness.errors import Exit

SCHEMA = json.loads(NUMBERS.with_suffix(".schema.json").read_text())


@pytest.fixture
def numbers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NUMBERS.read_text())
    return found


def test_readme_has_the_tables_of_the_numbers(numbers: dict[str, Any]) -> None:
    readme = README.read_text()
    assert rewrite(readme, numbers) == readme
    numbers["steps"][0]["device_ms"] += 0.01
    assert rewrite(readme, numbers) != readme


def test_numbers_fit_their_schema(numbers: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(numbers, SCHEMA)
    for key in SCHEMA["required"]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({k: v for k, v in numbers.items() if k != key}, SCHEMA)


def test_numbers_hang_together(numbers: dict[str, Any]) -> None:
    """Every M at both contexts; no operation beats the copy rate by more than a cache explains."""
    measured = {(s["context"], s["m"]) for s in numbers["steps"]}
    assert measured == {(context, m) for context in (512, 32768) for m in range(1, 9)}
    for s in numbers["steps"]:
        assert s["least_ms"] <= s["device_ms"] <= s["host_ms"] * 1.01
    operations = numbers["operations"]
    for o in operations["measured"]:
        share = o["bytes"] / o["us"] / 1e3 / operations["copy_gb_s"]
        assert o["share_of_copy"] == pytest.approx(share, abs=2e-3, rel=2e-3)
    assert {*CALLS, *ALONE} <= {o["operation"] for o in operations["measured"]}


def test_two_runs_of_different_machines_are_not_merged(numbers: dict[str, Any]) -> None:
    steps = {k: v for k, v in numbers.items() if k != "operations"}
    operations = {k: numbers[k] for k in ("device", "driver", "date", "revision", "copy_gb_s")}
    operations["operations"] = numbers["operations"]["measured"]
    assert tables(merged(steps, operations))
    other = copy.deepcopy(operations) | {"driver": "1.2"}
    with pytest.raises(ValueError, match="driver"):
        merged(steps, other)


def test_a_revision_that_was_changed_says_so(numbers: dict[str, Any]) -> None:
    assert "-dirty" not in tables(numbers | {"revision": "0123456789abcdef"})
    assert "revision 0123456789ab-dirty," in tables(numbers | {"revision": "0123456789abcdef+"})


def test_an_operation_that_was_not_measured_is_named_and_nothing_is_written(
    numbers: dict[str, Any], tmp_path: Path
) -> None:
    """Of a document of an older kernel_bench, say."""
    steps, operations = tmp_path / "steps.json", tmp_path / "operations.json"
    run = {k: numbers[k] for k in ("device", "driver", "date", "revision", "copy_gb_s")}
    measured = [o for o in numbers["operations"]["measured"] if o["operation"] != "norm, gate_up"]
    steps.write_text(json.dumps({k: v for k, v in numbers.items() if k != "operations"}))
    operations.write_text(json.dumps(run | {"operations": measured}))
    before = NUMBERS.read_bytes(), README.read_bytes()
    result = CliRunner().invoke(main, [str(steps), str(operations)])
    assert result.exit_code == Exit.USAGE and "norm, gate_up" in result.output
    assert result.output.count("\n") == 1
    assert (NUMBERS.read_bytes(), README.read_bytes()) == before


def test_a_readme_without_the_marks_is_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="marks"):
        rewrite("# no tables here\n", numbers)


def test_every_measured_cut_is_compiled() -> None:
    """A cut of the table that no longer exists would fall back to the simple kernel."""
    project = (ROOT / "native/cuda/project.cu").read_text()
    compiled = set(re.findall(r"ring_variant<(\d+)>\(\)", project))
    table = (ROOT / "native/cuda/cuts.h").read_text()
    measured = re.findall(r"\{\d+, \d+, (\d+)\},", table)
    assert len(measured) >= 6 and compiled and set(measured) <= compiled
