"""Commands about a run that is over, on a toy runner: show, replay, accept."""

from __future__ import annotations

import json
from pathlib import Path

from pyharness.errors import Exit
from pyharness.tests.command_line import SMALL, Bench
from pyharness.tests.fake_arms import FakeLibrary, broken


def test_show_and_replay(bench: Bench) -> None:
    bench("--rb", "2", *SMALL)
    first = bench.out
    assert bench("show", "last") == Exit.SAME and bench.out == first
    assert bench("show", "last", "--json", "-") == Exit.SAME
    assert json.loads(bench.out)["run"] == bench.runs[0].name
    assert bench("replay", bench.runs[0].name) == Exit.SAME
    assert "arms gave the recorded digests again" in bench.out and len(bench.runs) == 2
    bench.libraries(candidate=broken("rows"))
    assert bench("replay", bench.runs[0].name, "--json", "-") == Exit.DIFFERS
    told = json.loads(bench.out)
    assert told["exit_code"] == 1 and any("rb2-then-rows" in line for line in told["changes"])


def test_an_unfinished_run(bench: Bench) -> None:
    bench("--m1", *SMALL)
    (bench.runs[0] / "verdict.json").unlink()
    for command in ("show", "replay"):
        assert bench(command, "last") == Exit.UNPROVED
        assert "did not finish" in bench.err and bench.err.count("\n") == 1
        assert bench(command, str(bench.runs[0].parent.parent)) == Exit.USAGE
        assert "is no run" in bench.err and bench.err.count("\n") == 1


def test_a_verdict_of_another_run_is_not_shown(bench: Bench) -> None:
    bench("--m1", *SMALL)
    bench.libraries(candidate=broken("rows"))
    bench("--mt", "2", *SMALL)
    green, red = bench.runs
    shown = (green / "verdict.json").read_bytes()
    (red / "verdict.json").write_bytes(shown)
    for command in ("show", "replay"):
        assert bench(command, red.name) == Exit.UNPROVED
        assert "do not belong together" in bench.err and bench.err.count("\n") == 1
    (green / "record.json").unlink()
    assert bench("show", green.name) == Exit.UNPROVED and bench.err.count("\n") == 1


def test_only_a_green_run_is_accepted(bench: Bench, tmp_path: Path) -> None:
    bench.libraries(candidate=broken("rows"))
    bench("--mt", "2", *SMALL)
    assert bench("accept", "last", "--why", "x", "--archive", tmp_path / "archive") == Exit.UNPROVED
    assert "only a run that ended with 0" in bench.err and not (tmp_path / "archive").exists()


def test_accept_refuses_a_verdict_that_was_made_green_by_hand(bench: Bench, tmp_path: Path) -> None:
    bench.libraries(candidate=broken("rows"))
    bench("--mt", "2", *SMALL)
    path = bench.runs[0] / "verdict.json"
    told = json.loads(path.read_text())
    told["exit_code"] = 0
    path.write_text(json.dumps(told))
    assert bench("accept", "last", "--why", "x", "--archive", tmp_path / "a") == Exit.USAGE
    assert "do not follow from its jobs" in bench.err and not (tmp_path / "a").exists()


def test_accept_refuses_a_library_that_is_another_one_now(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"something else")
    bench.libraries(candidate=FakeLibrary("new", origin=str(path)))
    bench("--mt", "2", *SMALL)
    assert bench("accept", "last", "--why", "x", "--archive", tmp_path / "archive") == Exit.REFUSED
    assert "expected sha256:" in bench.err and not (tmp_path / "archive").exists()
