"""What a reader is told must follow from what was compared: results of other commands, a run's
folder that somebody rewrote, counts that would pass for green.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyharness import acceptance, cli, record
from pyharness.coverage import ModelCoverage
from pyharness.errors import Exit, NothingProved
from pyharness.files import sha256_file
from pyharness.record import Record
from pyharness.report import document, github
from pyharness.tests.command_line import SMALL, Bench
from pyharness.tests.fake_arms import FakeLibrary, broken
from pyharness.tests.test_compare import write_dump
from pyharness.tests.test_endings import RUN, command
from pyharness.values import JobStatus, from_json, to_json
from pyharness.verdict import conclude

PYTEST = b'<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="0">'


@pytest.mark.parametrize(
    "line",
    [
        ["--timeout", "never"],
        ["--mt", "1"],
        ["--model", "/nowhere"],
        ["speed", "--mt", "many"],
        ["show", "none"],
        ["replay", "none"],
        ["compare", "/nowhere", "/nowhere"],
        ["--nonsense"],
        ["show", "last", "--nonsense"],
        ["show"],
        ["nonsense"],
        ["--model", "\udcff"],
    ],
)
def test_an_earlier_result_is_gone_when_a_command_fails(
    bench: Bench, tmp_path: Path, line: list[str]
) -> None:
    told, cases = tmp_path / "v.json", tmp_path / "j.xml"
    assert bench("--mt", "2", *SMALL, "--json", told, "--junit", cases) == Exit.SAME
    assert told.exists() and cases.exists()
    given: list[str | Path] = ["--json", told]
    given += ["--junit", cases] if line[0].startswith("-") else []
    assert bench(*line, *given, out=line[0] != "compare") == Exit.USAGE
    assert not told.exists()
    assert not cases.exists() or "--junit" not in given


def test_an_earlier_result_is_gone_however_it_is_named(bench: Bench, tmp_path: Path) -> None:
    told, cases = tmp_path / "v.json", tmp_path / "j.xml"
    results = [f"--json={told}", f"--junit={cases}"]
    for line in (["--nonsense", *results], [*results, "--nonsense"]):
        assert bench("--m1", *SMALL, *results) == Exit.SAME and told.exists() and cases.exists()
        assert bench(*line) == Exit.USAGE and not told.exists() and not cases.exists()
    assert bench("--m1", *SMALL, *results) == Exit.SAME
    assert bench("--json", tmp_path / "none" / "x", results[1]) == Exit.USAGE  # no such folder
    assert told.exists() and not cases.exists()


@pytest.mark.parametrize(
    "line",
    [
        ["--archive", "archive"],
        ["--out", "runs", "--nonsense"],
        ["--only", "speed", "--nonsense"],
        ["--nonsense", "archive"],
        ["--no-trace", "--nonsense"],
    ],
)
def test_the_value_of_an_option_is_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told, cases = tmp_path / "v.json", tmp_path / "j.xml"
    told.write_text('{"schema": "ab-verdict/1"}')
    cases.write_text('<?xml version="1.0"?><testsuite name="run-ab" >')
    assert cli.run([*line, "--json", str(told), "--junit", str(cases)]) != Exit.SAME
    assert not told.exists() and not cases.exists()
    told.write_text('{"schema": "ab-verdict/1"}')
    assert cli.run(["--only", "--json", "--nonsense", str(told)]) == Exit.USAGE and told.exists()
    assert cli.run(["show", "--", "--json", str(told)]) == Exit.USAGE and told.exists()


@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_an_open_file_is_no_place_of_a_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    """As /dev/stdout where stdout goes to a file: a link, which a rename would replace for all."""
    told, link, chain = tmp_path / "v.json", tmp_path / "stdout", tmp_path / "chain"
    told.write_text('{"schema": "ab-verdict/1"}')
    with told.open("a") as opened:
        link.symlink_to(f"/proc/self/fd/{opened.fileno()}")
        chain.symlink_to("stdout")
        for name in (link, chain):
            assert cli.run([option, str(name)]) == Exit.USAGE
            assert capfd.readouterr().err.startswith(f"run-ab: {name}: is a file that is open")
        assert link.is_symlink() and chain.is_symlink() and told.exists()


@pytest.mark.parametrize("name", ["verdict.json", "record.json", "junit.xml"])
def test_a_file_of_a_run_is_no_place_of_a_result(bench: Bench, name: str) -> None:
    assert bench("--m1", *SMALL) == Exit.SAME
    (folder,) = bench.runs
    for option in ("--json", "--junit"):
        assert bench("--m1", *SMALL, option, folder / name) == Exit.USAGE
        assert f"{name}: belongs to a run" in bench.err and len(bench.runs) == 1
        assert bench("--nonsense", option, folder / name) == Exit.USAGE
    assert bench("show", "last") == Exit.SAME


def test_a_result_needs_no_folder_of_the_run(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``runs prune`` may be quick."""
    told, cases = tmp_path / "v.json", tmp_path / "j.xml"

    def prune(*_: object) -> None:
        shutil.copy(bench.runs[0] / "junit.xml", tmp_path / "copy.xml")
        shutil.rmtree(bench.runs[0])

    monkeypatch.setattr(github, "announce", prune)
    assert bench("--m1", *SMALL, "--json", told, "--junit", cases) == Exit.SAME
    assert cases.read_bytes() == (tmp_path / "copy.xml").read_bytes() and told.exists()


def test_one_result_that_cannot_be_removed_keeps_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cases, long = tmp_path / "j.xml", tmp_path / ("x" * 300)
    cases.write_text('<?xml version="1.0"?><testsuite name="run-ab" >')
    assert cli.run(["--json", str(long), "--junit", str(cases)]) == Exit.USAGE
    assert not cases.exists() and capfd.readouterr().err.count("\n") == 1


def test_what_is_no_target_of_a_result_stays(bench: Bench, tmp_path: Path) -> None:
    told = tmp_path / "v.json"
    assert bench("--m1", *SMALL, "--json", told) == Exit.SAME
    for line in (["symbols", "--json"], ["archive", "list", "--json"], ["show"]):
        assert bench(*line, told, out=False) == Exit.USAGE and told.exists()


def test_a_file_that_is_no_result_stays_until_there_is_one(bench: Bench, tmp_path: Path) -> None:
    for name, data in (
        ("a", b"{}"),
        ("b", b"<?xml version='1.0'?><notes/>"),
        ("d", PYTEST),
        ("c", b""),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        assert bench("--mt", "1", *SMALL, "--json", path, "--junit", path) == Exit.USAGE
        assert path.read_bytes() == data


def test_junit_of_a_run_in_which_all_was_skipped_is_not_green(bench: Bench, tmp_path: Path) -> None:
    lacks = frozenset({"step_m"})
    bench.libraries(FakeLibrary("old", lacks=lacks), FakeLibrary("new", lacks=lacks))
    cases = tmp_path / "j.xml"
    line = ["--synthetic", "gdn", "--only", "gdn-tiny/p63/mt*", "--junit", str(cases)]
    assert bench(*line) == Exit.UNPROVED
    (suite,) = ET.parse(cases).getroot()
    found = suite.findall("testcase")
    assert suite.attrib["errors"] == "1" and suite.attrib["failures"] == "0"
    assert suite.attrib["tests"] == str(len(found)) and len(found) > 1
    assert suite.attrib["skipped"] == str(len(found) - 1)
    error = found[-1].find("error")
    assert error is not None and error.attrib["message"].startswith("exit 5: ")


# ---- compare -------------------------------------------------------------------------------------


def test_a_dump_is_not_compared_with_itself(bench: Bench, tmp_path: Path) -> None:
    a, b = write_dump(tmp_path / "a"), write_dump(tmp_path / "b")
    (tmp_path / "link").symlink_to(a)
    for other in (a, tmp_path / "link", tmp_path / "b" / ".." / "a"):
        assert bench("compare", a, other, out=False) == Exit.USAGE
        assert "are one file" in bench.err and bench.out == ""
    (b / "logits.npy").unlink()
    os.link(a / "logits.npy", b / "logits.npy")
    assert bench("compare", a, b, out=False) == Exit.USAGE
    assert bench.err.startswith(f"run-ab: {a / 'logits.npy'} and {b / 'logits.npy'} are one file")


@pytest.mark.parametrize("shape", [(0, 8), (6, 0)])
def test_dumps_without_rows_prove_nothing(
    bench: Bench, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    a, b = write_dump(tmp_path / "a"), write_dump(tmp_path / "b")
    for folder in (a, b):
        np.save(folder / "h_out.npy", np.zeros(shape, "<f4"))
    assert bench("compare", a, b, out=False) == Exit.UNPROVED
    assert "no row is recorded" in bench.err and bench.out == ""


# ---- a run's folder that was rewritten -----------------------------------------------------------


def rewrite(folder: Path, change: Callable[[Record], Record]) -> None:
    """A green verdict, its summary and the digests of the files beside it all made to fit."""
    verdict, whole = record.read_verdict(folder)
    record.write_record(folder, change(record.read_record(folder)))
    jobs = [
        dataclasses.replace(job, status=JobStatus.SAME, reason="", requested=True)
        for job in verdict.jobs
    ]
    whole["files"]["record.json"] = str(sha256_file(folder / "record.json")[0])
    told = to_json(conclude(jobs))
    whole |= {"exit_code": told["exit_code"], "summary": told["summary"]}
    whole["jobs"] = [{**a, **b} for a, b in zip(whole["jobs"], told["jobs"], strict=True)]
    (folder / "verdict.json").write_bytes(document.dumps(whole))


@pytest.mark.parametrize("faults", [("rows",), ("crash-control",), ("deaf",), ("random",)])
@pytest.mark.parametrize("line", [["show"], ["accept", "--why", "x"]])
def test_a_verdict_made_green_is_held_against_the_digests(
    bench: Bench, faults: tuple[str, ...], line: list[str]
) -> None:
    bench.libraries(candidate=broken(*faults))
    assert bench("--mt", "2", *SMALL, "--no-trace") != Exit.SAME
    rewrite(bench.runs[0], lambda made: made)
    place = ["--archive", str(bench.folder / "a"), "--pin", str(bench.folder / "p")]
    assert bench(line[0], "last", *line[1:], *place) == Exit.UNPROVED
    assert "mt2 is told to be the same, and the digests in its record are not" in bench.err
    assert not (bench.folder / "a").exists()


def test_the_coverage_of_a_record_is_counted_again(bench: Bench) -> None:
    assert bench("--m1", *SMALL) == Exit.SAME
    verdict, _, made = record.read_run(bench.runs[0])
    with pytest.raises(NothingProved, match="no green job was m1 on attention layers: do"):
        acceptance._check_coverage(made, verdict, frozenset())
    (own,) = made.coverage
    jobs = {"m1": 1, "mt": 7, "rb": 3}
    for claimed in (
        (dataclasses.replace(own, jobs=jobs, layers={"GDN": 3, "attention": 1}),),
        (own, ModelCoverage("another", {"attention": 9}, jobs, (2,), (1,))),
        (),
    ):
        forged = dataclasses.replace(made, coverage=claimed)
        with pytest.raises(NothingProved, match="is not that of its green jobs"):
            acceptance._check_coverage(forged, verdict, frozenset())


def test_what_a_library_lacks_is_read_from_its_own_symbols(bench: Bench) -> None:
    assert bench("--m1", "--synthetic", "hybrid", "--prefix", "2") == Exit.SAME
    verdict, _, made = record.read_run(bench.runs[0])
    acceptance._check_coverage(made, verdict, frozenset())
    exports = frozenset(("vcuda_dev_model_state_read", "vcuda_dev_model_step_m"))
    with pytest.raises(NothingProved, match="no green job was mt on GDN and attention layers"):
        acceptance._check_coverage(made, verdict, exports)


def test_layers_of_weights_that_lie_elsewhere_are_those_of_the_record(bench: Bench) -> None:
    assert bench("--m1", "--synthetic", "hybrid", "--prefix", "2") == Exit.SAME
    verdict, _, made = record.read_run(bench.runs[0])

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("kind") == "synthetic":
                return {**value, "kind": "checkpoint", "path": "/elsewhere/model"}
            return {k: moved(v) for k, v in value.items()}
        return [moved(v) for v in value] if isinstance(value, list) else value

    made = from_json(Record, moved(json.loads(json.dumps(to_json(made)))))
    (own,) = made.coverage
    made = dataclasses.replace(made, coverage=(dataclasses.replace(own, model="/elsewhere/model"),))
    acceptance._check_coverage(made, verdict, frozenset())


# ---- the interpreter -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "line", "code"),
    [("green", RUN, Exit.SAME), ("red", RUN, Exit.DIFFERS), ("green", ["--mt", "1"], Exit.USAGE)],
)
def test_an_interpreter_that_wants_to_go_on_does_not_change_the_exit_code(
    tmp_path: Path, kind: str, line: list[str], code: Exit
) -> None:
    startup = tmp_path / "startup.py"
    startup.write_text("raise SystemExit(0)")
    ended = subprocess.run(
        command(kind, tmp_path / "runs", *line),
        input="", capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONINSPECT": "1", "PYTHONSTARTUP": str(startup)},
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    assert f"exit {code}: " in ended.stdout or code == Exit.USAGE
    assert "Traceback" not in ended.stderr
