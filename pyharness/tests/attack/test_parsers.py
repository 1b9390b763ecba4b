"""Hostile files through every parser: one line and an exit code, bounded memory, bounded time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyharness.errors import Exit
from pyharness.tests.attack.command import Ended, bounded, guarded
from pyharness.tests.attack.parsers import targets
from pyharness.tests.attack.target import Target

NAMES = (
    "config.json", "index", "safetensors", "pack", "tokens.npy", "tokens.txt", "text",
    "verdict.json", "record.json", "speed.json", "dump h_out.npy", "dump state.safetensors",
    "manifest", "entry", "entries", "bundle", "checkpoint", "archive: pin", "archive: checkpoint",
    "archive: index", "archive: bundle", "archive: oci-layout", "reply", "request", "build_info",
    "library", "pyproject",
)  # fmt: skip
EXAMPLES = 60
MORE_BYTES = 1 << 30  # of address space: no parser takes that much for a file of some kilobytes


@pytest.fixture(scope="module")
def all_targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    found = targets(tmp_path_factory.mktemp("parsers"))
    assert set(found) == set(NAMES)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_file_ends_in_one_line(name: str, all_targets: dict[str, Target]) -> None:
    tried, said = attack(all_targets[name], EXAMPLES)
    assert (tried, said) == (EXAMPLES, "")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda data: guarded(lambda: bytearray(2 << 30)), "MemoryError"),
        (lambda data: Ended(Exit.DEFECT, "", "run-ab: defect of the harness"), "a defect: run-ab"),
        (lambda data: Ended(Exit.DIFFERS, "", ""), "exit 1"),
    ],
)
def test_what_gets_through_is_told(work: Callable[[bytes], Ended], said: str) -> None:
    """The check on the checker: memory beyond the bound, a defect, a code that is none of these."""
    tried, told = attack(Target(st.binary(max_size=9), work), 20)
    assert tried and said in told


def attack(target: Target, examples: int) -> tuple[int, str]:
    """How many files were tried, and what the smallest one did that got through, if one did."""
    count = 0

    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        nonlocal count
        made = data.draw(target.attack)
        count += 1
        ended = target.work(made)
        assert not ended.complaint, ended.complaint
        assert ended.code in target.codes, f"exit {ended.code}: {ended.err[:300]}"

    try:
        with bounded(MORE_BYTES):
            tried()
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt):
            raise
        return count, " ".join(str(e).split())[:500] or type(e).__name__
    return count, ""
