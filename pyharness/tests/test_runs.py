"""``runs list`` and ``runs prune``: what there is, and that nothing goes that was not named."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyharness import cli, leftovers, record
from pyharness.errors import Exit
from pyharness.files import sha256_file
from pyharness.record import new_run
from pyharness.tests.place import Place, options
from pyharness.tests.stubs import stub

NAMES = [f"2026010{day}T000000.000Z-00000{day}" for day in range(1, 7)]
SAME, DIFFERS, UNFINISHED, DAMAGED, LINK, LIVING = NAMES


class Runs(Place):
    """Six folders of runs, oldest first; the newest is in progress as long as the test runs."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capture = folder, capture
        self.where, self.out = options(folder)
        for name in (UNFINISHED, LIVING):
            (folder / "runs" / name).mkdir()
            (folder / "runs" / name / "plan.json").write_text("{}")
        shutil.copytree(folder / "runs" / DIFFERS, folder / "runs" / DAMAGED)
        (folder / "runs" / DAMAGED / "verdict.json").write_text("no verdict\n")
        os.utime(folder / "runs" / UNFINISHED, (0, 0))
        (folder / "elsewhere").mkdir()
        os.utime(folder / "elsewhere", (0, 0))
        (folder / "runs" / LINK).symlink_to(folder / "elsewhere")
        (folder / "runs" / "notes").mkdir()  # a folder of the user's own
        self.plan = (folder / "runs" / LIVING / "plan.json").open()
        fcntl.flock(self.plan, fcntl.LOCK_SH)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.capture.readouterr()
        code = self.run("runs", *arguments, *self.out)
        return code, *self.capture.readouterr()

    @property
    def left(self) -> list[str]:
        return [p.name for p in self.runs]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive and two runs, as if they had been made then."""
    place = Place(tmp_path_factory.mktemp("finished"), stub())
    line = ["--m1", "--mt", "2", "--synthetic", "gdn", "--prefix", "2", *place.out]
    for name, fault in ((SAME, "another"), (DIFFERS, "step-m-differs")):
        place.run(*line, "--no-trace", "--candidate", str(stub(fault)))
        (made,) = (p for p in place.runs if p.name not in NAMES)
        made.rename(made.with_name(name))
    return place.folder


@pytest.fixture
def place(tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Runs]:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    made = Runs(tmp_path, capfd)
    with made.plan:
        yield made


def accept(place: Runs, name: str, *, later: bool = False) -> None:
    """The archive's log names the record of that run, as ``accept`` writes it. ``later``: of a
    library that was there already, so that the entry of its acceptance alone has the record.
    """
    from pyharness import archive

    made = (place.folder / "runs" / name / "record.json").read_bytes()
    where = place.folder / "archive", place.folder / "archive.pin"
    library = stub("another")
    archive.add(*where, library, label="reviewed", why="x", record=None if later else made)
    if later:
        digest, first = sha256_file(library)[0], sha256_file(stub())[0]
        archive.accept(*where, digest, record=made, why="x", compared=first)


def test_list(place: Runs) -> None:
    accept(place, SAME)
    code, out, err = place("list")
    assert code == Exit.SAME and err == ""
    head, *rows = out.splitlines()
    assert re.split(r"  +", head.strip()) == [
        "run", "started (UTC)", "verdict", "size", "accepted as", "jobs",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == NAMES[::-1]
    words = [re.split(r"  +", row.strip())[2] for row in rows]
    assert words == ["in progress", "unfinished", "damaged", "unfinished", "differs", "same"]
    assert rows[-1].split()[1:3] == ["2026-01-01", "00:00:00"] and "reviewed" in rows[-1]
    assert "reviewed" not in rows[-2] and rows[-2].strip().endswith("2 same, 6 differs")
    code, out, _ = place("list", "--json")
    whole = json.loads(out)
    assert code == Exit.SAME and whole["schema"] == "ab-runs/1"
    last = whole["runs"][-1]
    size = sum(p.stat().st_size for p in (place.folder / "runs" / SAME).rglob("*") if p.is_file())
    assert (last["name"], last["exit_code"], last["size_bytes"]) == (SAME, Exit.SAME, size)
    assert [line["exit_code"] for line in whole["runs"][:4]] == [None] * 4


def test_list_of_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = ["--archive", str(tmp_path / "a"), "--pin", str(tmp_path / "p")]
    assert cli.run(["runs", "list", "--out", str(tmp_path), *where]) == Exit.SAME
    out, err = capfd.readouterr()
    assert out == "" and err == f"note: no run in {tmp_path}\n"


def test_prune_says_what_goes_and_asks(place: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    accept(place, SAME)
    before = place.left
    code, out, err = place("prune", "--keep", "0", "--dry-run")
    told = [line.split()[0] for line in out.splitlines()[1:-1]]
    assert code == Exit.SAME and told == [DAMAGED, UNFINISHED, DIFFERS]
    assert out.splitlines()[-1].startswith("would remove 3 runs, ")
    assert err.splitlines() == [
        f"note: {LIVING} stays: in progress",
        f"note: {LINK} stays: a link; what it names is elsewhere",
        f"note: {SAME} stays: accepted as reviewed",
    ]
    code, _, err = place("prune", "--keep", "0")  # nobody is there to be asked
    assert code == Exit.USAGE and "nothing was removed: --yes removes 3 runs" in err

    class Answer(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Answer("n\n"))
    assert place("prune", "--keep", "0")[:1] == (Exit.SAME,)
    assert place.left == before
    monkeypatch.setattr("sys.stdin", Answer("y\n"))
    code, out, _ = place("prune", "--keep", "0")
    assert code == Exit.SAME and "removed 3 runs" in out
    assert place.left == [SAME, LINK, LIVING, "notes"] and (place.folder / "elsewhere").is_dir()
    assert place("prune", "--keep", "0", "--yes")[1].startswith("nothing to remove")


def test_what_changes_while_it_asks_is_seen(place: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def confirm(question: str) -> bool:
        assert question.startswith("remove 4 runs, ")
        accept(place, SAME, later=True)
        return True

    monkeypatch.setattr("click.confirm", confirm)
    code, out, err = place("prune", "--keep", "0")
    assert code == Exit.SAME and "removed 3 runs, " in out and SAME in place.left
    assert err.splitlines()[-1] == f"note: {SAME} stays: accepted as reviewed"


def test_a_run_with_a_verdict_may_be_in_progress(place: Runs) -> None:
    """``speed`` measures after its bit check."""
    with leftovers.held(place.folder / "runs" / DIFFERS):
        code, out, err = place("prune", "--keep", "0", "--yes")
    assert code == Exit.SAME and f"note: {DIFFERS} stays: in progress\n" in err
    assert place.left == [DIFFERS, LINK, LIVING, "notes"] and "removed 3 runs" in out


@pytest.mark.parametrize("planned", [False, True])
def test_a_run_that_begins_stays(place: Runs, planned: bool) -> None:
    """It has no plan, or no lock on it."""
    begun = new_run(place.folder / "runs")
    if planned:
        (begun / "plan.json").write_text("{}")
    _, _, err = place("prune", "--keep", "0", "--yes")
    assert begun.name in place.left
    assert f"note: {begun.name} stays: unfinished, and changed in the last 60 s" in err
    os.utime(begun, (0, 0))
    place("prune", "--keep", "0", "--yes")
    assert begun.name not in place.left


def test_a_record_that_cannot_be_read_may_be_an_accepted_one(place: Runs) -> None:
    record_file = place.folder / "runs" / SAME / "record.json"
    record_file.unlink()
    record_file.mkdir()
    code, _, err = place("prune", "--keep", "0", "--yes")
    assert code == Exit.SAME and SAME in place.left and DIFFERS not in place.left
    assert f"note: {SAME} stays: its record cannot be read, so whether" in err
    assert json.loads(place("list", "--json")[1])["runs"][-1]["accepted"] is None
    assert place("list")[0] == Exit.SAME


def test_one_run_that_cannot_be_removed_keeps_no_other(
    place: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def refuse(folder: Path) -> None:
        if folder.name == DIFFERS:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder / "candidate"))
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    code, out, err = place("prune", "--keep", "0", "--yes")
    assert code == Exit.USAGE and "removed 3 runs, " in out
    assert place.left == [DIFFERS, LINK, LIVING, "notes"]
    last = err.splitlines()[-1]
    assert last.startswith(f"run-ab: not removed, or not all of it: {DIFFERS}: ")
    assert last.endswith("Permission denied")
    told = json.loads(place("list", "--json")[1])["runs"]
    assert [line["verdict"] for line in told if line["name"] == DIFFERS] == ["unfinished"]


def test_a_folder_that_may_not_be_looked_into(place: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    read = record.read_verdict

    def refuse(folder: Path) -> object:
        if folder.name == DIFFERS:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder / "verdict.json"))
        return read(folder)

    monkeypatch.setattr(record, "read_verdict", refuse)
    code, out, _ = place("list", "--json")
    line = json.loads(out)["runs"][-2]
    assert code == Exit.SAME and line["verdict"] == "damaged" and "denied" in line["summary"]


def test_the_newest_stay(place: Runs) -> None:
    assert place("prune", "--keep", "4", "--yes")[0] == Exit.SAME
    assert place.left == [*NAMES[2:], "notes"]
    assert place("prune")[0] == Exit.USAGE and place("prune", "--keep", "-1")[0] == Exit.USAGE


def test_where_the_archive_cannot_be_believed_nothing_goes(place: Runs) -> None:
    before = place.left
    (place.folder / "archive.pin").write_text("something else\n")
    code, _, err = place("prune", "--keep", "0", "--yes")
    assert code == Exit.REFUSED and err.count("\n") == 1 and place.left == before
    code, out, err = place("list")
    assert code == Exit.SAME and len(out.splitlines()) == 7
    assert err.startswith("note: which runs were accepted is not known: ")
    shutil.rmtree(place.folder / "archive")
    (place.folder / "archive").write_text("no folder")
    assert place("prune", "--keep", "0", "--yes")[0] != Exit.SAME and place.left == before
    assert place("list")[0] == Exit.SAME
