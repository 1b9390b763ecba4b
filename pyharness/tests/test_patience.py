"""A library that hangs, or that cannot run at all, is asked three times and not in every job."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pyharness import cli, record
from pyharness.errors import Exit
from pyharness.jobs import run_jobs
from pyharness.patience import MOST, Patience
from pyharness.plan import Suite, again
from pyharness.tests.fake_arms import NEW, OLD, FakeLibrary, FakeRunner, broken
from pyharness.tests.place import Place
from pyharness.tests.stubs import stub
from pyharness.tests.test_jobs import suite
from pyharness.values import NOT_RUN, ArmPlan, ArmResult, JobStatus
from pyharness.verdict import JobVerdict, conclude

TIMED_OUT = f"{NOT_RUN}3 runs of the candidate timed out; --timeout S gives each more than 600 s"


def run(
    folder: Path,
    made: Suite,
    baseline: FakeLibrary = OLD,
    candidate: FakeLibrary = NEW,
    workers: int = 1,
    batch: int = 1,
) -> tuple[dict[str, JobVerdict], FakeRunner]:
    runner = FakeRunner()
    libraries: Any = {"baseline": baseline, "candidate": candidate}
    verdicts, records = run_jobs(made, libraries, runner, folder, workers=workers, batch=batch)
    assert len(records) == len({a.key for a in records}) >= len(runner.ran)
    assert not any(a.folder for a in records if a.result.status != "done")
    return {v.id.rsplit("/", 1)[1]: v for v in verdicts}, runner


def failed(runner: FakeRunner, name: str, role: str = "arm") -> list[ArmPlan]:
    return [p for p, library in runner.ran if library == name and p.role == role]


@pytest.mark.parametrize("batch", [1, 5, 100])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_candidate_that_hangs_is_asked_three_times(
    tmp_path: Path, workers: int, batch: int
) -> None:
    verdicts, runner = run(
        tmp_path, suite(), candidate=broken("hang"), workers=workers, batch=batch
    )
    asked = len(failed(runner, "new"))
    assert MOST <= asked <= MOST + workers - 1  # those in progress end by themselves
    assert {v.status for v in verdicts.values()} == {JobStatus.FAILED}
    reasons = Counter(v.reason for v in verdicts.values())
    assert set(reasons) == {"candidate: timed out after 600 s", TIMED_OUT}
    assert reasons[TIMED_OUT] >= len(verdicts) - asked - 2  # a few jobs share a run
    verdict = conclude(list(verdicts.values()))
    assert verdict.exit_code == Exit.FAILED


def test_what_ran_well_before_is_proved_all_the_same(tmp_path: Path) -> None:
    """Three time-outs in all, in a row or not: each of them costs what it costs."""
    for batch in (1, 100):
        made = suite(mt=(2, 3, 4, 5, 6), rb=())
        verdicts, runner = run(
            tmp_path / str(batch), made, candidate=broken("hang-rows"), batch=batch
        )
        names = list(verdicts)
        assert verdicts["m1"].status is JobStatus.SAME
        assert [verdicts[n].reason for n in names[1:4]] == ["candidate: timed out after 600 s"] * 3
        assert TIMED_OUT in {verdicts[n].reason for n in names[4:]} and len(names) > 9
        asked = failed(runner, "new")
        assert sum("step_m" in {op.what or op.kind for op in p.script} for p in asked) == MOST


def test_a_difference_that_was_found_stays_the_verdict(tmp_path: Path) -> None:
    class Later(FakeRunner):
        def run(self, plan: ArmPlan, library: Any, out: Path) -> Any:
            rows = max([len(op.tokens) for op in plan.script if op.kind == "step_m"], default=0)
            return super().run(plan, broken("hang") if rows > 2 else library, out)

    libraries: Any = {"baseline": OLD, "candidate": broken("rows")}
    made = suite(mt=(2, 4), rb=(), libs_mt=(), libs_rb=())
    verdicts, _ = run_jobs(made, libraries, Later(), tmp_path, batch=1)
    assert conclude(verdicts).exit_code == Exit.DIFFERS
    assert sum(v.reason == TIMED_OUT for v in verdicts) == len(made.jobs) - 3 - MOST


@pytest.mark.parametrize(("role", "noun"), [("again", "repeated runs"), ("control", "controls")])
def test_repetitions_and_controls_are_counted_by_themselves(
    tmp_path: Path, role: str, noun: str
) -> None:
    verdicts, runner = run(tmp_path, suite(), candidate=broken(f"hang-{role}"))
    assert len(failed(runner, "new", role)) == MOST
    reasons = Counter(v.reason for v in verdicts.values())
    why = f"{NOT_RUN}3 {noun} of the candidate timed out; --timeout S gives each more than 600 s"
    assert reasons[why] == len(verdicts) - MOST
    # neither library goes on with arms that no verdict can come of
    assert len(failed(runner, "new")) < len(verdicts) / 2
    assert len(failed(runner, "old", "again")) <= len(failed(runner, "old"))


def test_what_a_process_in_progress_gives_is_not_thrown_away() -> None:
    """It may be a difference. No process is started after it."""
    arm = suite().jobs[0].candidate
    done, late = ArmResult("done"), ArmResult("failed", "late", timed_out=True)
    ends = [done, done, late, done]
    asked = iter(ends)
    patience = Patience()
    results = patience.results([arm] * len(ends), asked)
    assert next(results) is done
    assert list(patience.results([again(arm)] * MOST, [late] * MOST)) == [late] * MOST
    assert next(results) is done and next(results) is late
    (last,) = results
    assert last.reason.startswith(f"{NOT_RUN}3 repeated runs") and list(asked) == [done]
    (other,) = patience.results([arm], iter([done]))
    assert other.reason == last.reason


def test_a_library_that_never_ran_is_asked_three_times(tmp_path: Path) -> None:
    for arm, library in (("baseline", FakeLibrary("old", frozenset({"crash"}))),
                         ("candidate", broken("crash"))):  # fmt: skip
        verdicts, runner = run(tmp_path / arm, suite(), **{arm: library})  # type: ignore[arg-type]
        assert len(failed(runner, library.name)) == MOST
        reasons = {v.reason for v in verdicts.values()}
        why = f"{NOT_RUN}the first 3 runs of the {arm} failed"
        assert reasons == {f"{arm}: killed by SIGSEGV", why}


def test_a_library_that_crashes_in_some_jobs_is_asked_in_all(tmp_path: Path) -> None:
    verdicts, _ = run(tmp_path, suite(), candidate=broken("crash-rows"))
    assert verdicts["rb2-singles"].status is JobStatus.SAME
    assert not any(v.reason.startswith(NOT_RUN) for v in verdicts.values())


def test_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A real process that never returns: three time-outs, one line for the rest, reports that say
    the same, and a folder that is whole.
    """
    place = Place(tmp_path, stub())
    junit, told = tmp_path / "junit.xml", tmp_path / "verdict.json"
    files = ["--junit", str(junit), "--json", str(told)]
    capfd.readouterr()
    line = ["--synthetic", "gdn", "--candidate", str(stub("hang")), "--timeout", "1.5", *files]
    assert place.run(*line, *place.out) == Exit.FAILED
    lines = capfd.readouterr().out.splitlines()
    (run_folder,) = place.runs
    verdict, _, made = record.read_run(run_folder)
    count = len(verdict.jobs)
    assert sum(a.result.timed_out for a in made.arms) == MOST
    assert sum("candidate: timed out after 1.5 s" in text for text in lines) == MOST
    why = TIMED_OUT.replace("600", "1.5")
    assert lines[MOST] == f"failed            {count - MOST} jobs  {why}"
    summary = f"{count} jobs: {count} failed; exit 4: a library could not run; "
    assert lines[MOST + 1] == f"{summary}{count - MOST} of the jobs were not run"
    suite_element = ET.parse(junit).getroot()[0]
    assert suite_element.get("errors") == suite_element.get("tests") == str(count)
    reasons = Counter(e.get("message") for e in suite_element.iter("error"))
    assert reasons[f"failed: {why}"] == count - MOST
    assert json.loads(told.read_text())["exit_code"] == Exit.FAILED
    capfd.readouterr()
    assert cli.run(["show", str(run_folder)]) == Exit.FAILED
    assert capfd.readouterr().out.splitlines()[: MOST + 2] == lines[: MOST + 2]
    capfd.readouterr()
    assert place.run("replay", str(run_folder), *place.out) == Exit.SAME
    ended = Counter(a.result.status for a in made.arms if not a.result.reason.startswith(NOT_RUN))
    rest = len(made.arms) - ended["done"] - MOST
    same = f"same: {ended['done']} arms gave the recorded digests again; as before, {MOST} failed"
    assert f"{same}, {rest} not run" in capfd.readouterr().out.splitlines()
