"""The command line on stub libraries: whatever they do ends in its exit code and one line."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyharness import cli, record
from pyharness.archive import fsck
from pyharness.errors import Exit
from pyharness.files import sha256_file
from pyharness.tests import place as place_module
from pyharness.tests.stubs import stub
from pyharness.values import JobStatus

ROOT = Path(__file__).resolve().parents[2]
OLD_LACKS = ("vcuda_dev_model_step_m", "vcuda_dev_model_mark", "vcuda_dev_model_rollback")


class Place(place_module.Place):
    def line(self, candidate: Path, *arguments: str) -> list[str]:
        model = ["--synthetic", "gdn", "--prefix", "2"]
        return [*arguments, *model, "--candidate", str(candidate), *self.out]

    def suite(self, candidate: Path, *arguments: str) -> int:
        return self.run(*self.line(candidate, *arguments))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, stub())


@pytest.mark.parametrize(
    ("fault", "arguments", "code", "said"),
    [
        ("", ["--mt", "2"], Exit.SAME, "same"),
        ("step-m-differs", ["--mt", "2"], Exit.DIFFERS, "elements differ"),
        ("rollback-differs", ["--rb", "2"], Exit.DIFFERS, "elements differ"),
        ("wrong-at-first", ["--m1"], Exit.DIFFERS, "first at position 0 (1 of "),
        ("unstable-at-first", ["--m1"], Exit.UNPROVED, "from itself in rows that are not recorded"),
        ("forgets", ["--m1"], Exit.DIFFERS, "differ"),
        ("unstable", ["--m1"], Exit.UNPROVED, "the candidate differs from itself"),
        ("segfault", ["--m1"], Exit.FAILED, "SIGSEGV"),
        ("abort", ["--m1"], Exit.FAILED, "SIGABRT"),
        ("exit", ["--m1"], Exit.FAILED, "candidate: "),
        ("hang", ["--m1", "--timeout", "2"], Exit.FAILED, "timed out after 2 s"),
        ("nan", ["--m1"], Exit.FAILED, "nan"),
        ("late-logits", ["--m1"], Exit.FAILED, "wrote to the logits buffer after its call"),
        ("partial", ["--m1"], Exit.FAILED, "candidate: "),
        ("silent", ["--m1"], Exit.FAILED, "candidate: "),
        ("load-crash", ["--m1"], Exit.FAILED, "SIGSEGV"),
        ("no-device", ["--m1"], Exit.FAILED, "vcuda_dev_open"),
    ],
)
def test_each_fault_has_its_exit_code(
    place: Place,
    capfd: pytest.CaptureFixture[str],
    fault: str,
    arguments: list[str],
    code: Exit,
    said: str,
) -> None:
    capfd.readouterr()
    assert place.suite(stub(fault), *arguments) == code
    told = capfd.readouterr()
    assert said.lower() in told.out.lower() and f"exit {int(code)}" in told.out
    assert "Traceback" not in told.out + told.err
    if code is Exit.FAILED:
        (run,) = place.runs
        assert not list(run.glob("candidate/*"))


def test_many_red_jobs_are_told_in_short_and_show_tells_them_in_full(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert place.suite(stub("step-m-differs"), "--no-trace") == Exit.DIFFERS
    lines = capfd.readouterr().out.splitlines()
    (run,) = place.runs
    red = [job for job in record.read_verdict(run)[0].jobs if job.status is JobStatus.DIFFERS]
    assert sum(line.strip().startswith("logits.npy [") for line in lines) == 4
    short = f"{len(red) - 4} jobs that differ are told in short; in full: run-ab show {run} --full"
    assert lines[-2:] == [f"run {run}", short] and f"{len(red)} differs; exit 1" in lines[-5]
    assert cli.run(["show", str(run)]) == Exit.DIFFERS
    assert capfd.readouterr().out.splitlines() == lines
    assert cli.run(["show", str(run), "--full"]) == Exit.DIFFERS
    full = capfd.readouterr().out.splitlines()
    differing = sum(bool(job.comparison and job.comparison.differences) for job in red)
    assert sum(line.strip().startswith("logits.npy [") for line in full) == differing > 20
    assert full[-1] == f"run {run}" and not any("in short" in line for line in full)


def test_an_old_baseline_runs_what_it_can_and_names_the_rest(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, stub(without=OLD_LACKS))
    capfd.readouterr()
    assert place.suite(stub()) == Exit.SAME  # the whole default suite
    lines = capfd.readouterr().out.splitlines()
    verdict, _ = record.read_verdict(place.runs[-1])
    found = {job.id.rsplit("/", 1)[1]: job.status.value for job in verdict.jobs}
    assert {name for name, status in found.items() if status == "unsupported"} == {
        *(f"libs-mt{m}" for m in range(2, 9)),
        *(f"libs-rb{m}" for m in (2, 4, 8)),
    }
    assert {status for name, status in found.items() if not name.startswith("libs")} == {"same"}
    assert any("baseline lacks vcuda_dev_model_step_m" in line for line in lines)
    assert any("vcuda_dev_model_rollback" in line for line in lines)
    assert place.suite(stub(), "--libs") == Exit.UNPROVED


@pytest.mark.parametrize("name", OLD_LACKS)
def test_what_was_asked_for_and_is_missing_is_no_success(place: Place, name: str) -> None:
    kind = "--mt" if name.endswith("step_m") else "--rb"
    assert place.suite(stub(without=(name,)), kind, "2") == Exit.UNPROVED


def test_a_missing_required_entry(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    library = stub(without=("vcuda_dev_model_reset", "vcuda_dev_close"))
    assert place.suite(library, "--m1") == Exit.FAILED and not place.runs
    told = capfd.readouterr().err
    assert "lacks required entries: vcuda_dev_close, vcuda_dev_model_reset\n" in told
    assert cli.run(["symbols", str(library)]) == Exit.FAILED


def test_ctrl_c_ends_the_workers_and_leaves_no_verdict(place: Place) -> None:
    command = [
        *(sys.executable, "-m", "pyharness"),
        *place.line(stub("hang"), "--m1"),
        *place.where,
    ]
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        give_up = time.monotonic() + 30
        while not list(place.folder.glob("runs/*/candidate/.*")) and time.monotonic() < give_up:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == Exit.INTERRUPTED and "Traceback" not in said
    assert said.strip().splitlines()[-1] == "run-ab: interrupted"
    (run,) = place.runs
    assert [p.name for p in run.iterdir()] == ["plan.json"]
    assert cli.run(["show", str(run)]) == Exit.UNPROVED


def test_dump_of_a_library_that_fails_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for fault in ("segfault", "nan", "exit-3"):
        out = tmp_path / fault
        line = ["dump", "--library", str(stub(fault)), "--synthetic", "gdn", "--out", str(out)]
        assert cli.run(line) == Exit.FAILED
        assert not out.exists() and capfd.readouterr().err.count("\n") == 1
    missing = stub(without=("vcuda_dev_model_state_read",))
    line = ["dump", "--library", str(missing), "--synthetic", "gdn", "--out", str(tmp_path / "m")]
    assert cli.run(line) == Exit.UNPROVED and not (tmp_path / "m").exists()
    assert "vcuda_dev_model_state_read" in capfd.readouterr().err


def test_history_of_sizes(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    library = stub("silent-later")
    assert place.run("archive", "add", str(library), "--label", "x", "--why", "y") == Exit.SAME
    capfd.readouterr()
    assert place.run("archive", "log", "--json") == Exit.SAME
    first, second = json.loads(capfd.readouterr().out)
    assert first["change_bytes"] is None
    assert second["change_bytes"] == library.stat().st_size - stub().stat().st_size
    assert second["backend"] == "stub" and place.run("archive", "log") == Exit.SAME
    assert f"{second['change_bytes']:+d}" in capfd.readouterr().out


def test_replay_of_a_candidate_that_is_elsewhere(
    place: Place, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    was, now = tmp_path / "was.so", tmp_path / "now.so"
    shutil.copy(stub("another"), was)
    assert place.suite(was, "--m1") == Exit.SAME
    was.rename(now)
    (run,) = place.runs

    def replay(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = place.run("replay", str(run), *place.out, *arguments)
        return code, capfd.readouterr().err

    code, said = replay()
    assert code == Exit.REFUSED and said.endswith(f"nor is it at {was}; say where it is with "
        "--candidate\n")  # fmt: skip
    was.write_bytes(now.read_bytes() + b"built again")
    code, said = replay()
    assert code == Exit.REFUSED and f"{was}: expected " in said
    assert said.endswith("; say where it is with --candidate\n")
    was.unlink()
    other = stub("step-m-differs")
    code, said = replay("--candidate", str(other))
    digests = [str(sha256_file(path)[0]) for path in (now, other)]
    expected = f"{other}: expected {digests[0]}, the candidate of {run.name}, found {digests[1]}"
    assert (code, said) == (Exit.REFUSED, f"run-ab: {expected}\n") and len(place.runs) == 1
    code, said = replay("--candidate", str(was))
    assert code == Exit.USAGE and said == f"run-ab: {was}: No such file or directory\n"
    assert replay("--candidate", str(now)) == (Exit.SAME, "")
    again = record.read_record(place.runs[1])
    assert again.replay_of == run.name and again.libraries["candidate"].origin == str(now)


def test_a_library_from_a_dirty_tree_is_accepted_and_stays_known_as_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, stub())
    line = ["--m1", "--mt", "2", "--rb", "2", "--synthetic", "hybrid", "--prefix", "2"]
    assert place.run(*line, "--candidate", str(stub("dirty")), *place.out) == Exit.SAME
    capfd.readouterr()
    assert place.run("accept", "last", "--label", "new", "--why", "x", *place.out) == Exit.SAME
    out, err = capfd.readouterr()
    assert out.startswith("accepted new ") and err == (
        "note: built from 0123456789ab-dirty, with changes that are not committed: `make rebuild` "
        "cannot build it again, the log says so\n"
    )
    assert place.run("archive", "log") == Exit.SAME
    first, new = capfd.readouterr().out.splitlines()[1:]
    assert "0123456789ab-dirty" in new and "dirty" not in first
    assert place.run("archive", "log", "--json") == Exit.SAME
    told = {line["label"]: line["dirty"] for line in json.loads(capfd.readouterr().out)}
    assert told == {"first": None, "new": True}
    other = ["archive", "add", str(stub("dirty", ("vcuda_dev_poison",))), "--label", "x"]
    assert place.run(*other, "--why", "y") == Exit.SAME
    assert "note: built from 0123456789ab-dirty" in capfd.readouterr().err


def test_what_is_no_answer_is_none() -> None:
    """A library may say anything of its build."""
    told = {'{"dirty": true}': True, '{"dirty": false}': False}
    odd = ("", "[]", "{}", '{"dirty": "no"}', '{"dirty": 1}', "null")
    assert {text: fsck._dirty(text) for text in (*told, *odd)} == told | dict.fromkeys(odd)
