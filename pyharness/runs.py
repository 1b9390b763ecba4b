"""The folders of runs that are over: what one of them says, what there is, and what may go."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from pyharness import commands, identity, record
from pyharness.archive.fsck import open_archive
from pyharness.config import Settings
from pyharness.errors import Exit, GateRefusal, InputError, NothingProved, UsageError
from pyharness.files import open_regular, sha256_file
from pyharness.leftovers import PLAN, VERDICT
from pyharness.messages import one_line
from pyharness.report import document
from pyharness.report.speed import speed_lines
from pyharness.report.tables import print_table
from pyharness.report.terminal import Terminal
from pyharness.report.text import size
from pyharness.speed import timing
from pyharness.values import to_json

UNFINISHED, IN_PROGRESS, DAMAGED = "unfinished", "in progress", "damaged"


@dataclass(frozen=True)
class RunLine:
    """One folder."""

    name: str
    started: str  # UTC
    verdict: str  # the word of its exit code, or UNFINISHED, IN_PROGRESS, DAMAGED
    exit_code: int | None  # None: there is no verdict
    summary: str  # how many jobs ended how; of a damaged one, why it is
    size_bytes: int  # of all its files
    accepted: str  # label of the library that it was accepted for, "" for none


def show(run: str, settings: Settings, json_path: str | None, *, full: bool = False) -> int:
    """The verdict of a finished run, with its exit code, and what was timed after it."""
    folder = record.find_run(settings["out"], run)
    verdict, whole, made = record.read_run(folder)
    identity.check_loaded(made.libraries)
    timed = timing.read(folder)
    if json_path == "-":
        commands.write(json_path, document.dumps(whole))
        return verdict.exit_code
    with Terminal(full=full) as terminal:
        for job in verdict.jobs:
            terminal.job(job)
        lines = speed_lines(timed) if timed else ()
        terminal.summary(verdict, *lines, *commands.library_lines(whole))
        terminal.run_folder(folder)
    commands.write(json_path, document.dumps(whole))
    return verdict.exit_code


def list_runs(settings: Settings, *, as_json: bool) -> int:
    """Every run, newest first."""
    try:
        accepted = _accepted(settings)
    except GateRefusal as e:
        accepted = {}
        print(f"note: which runs were accepted is not known: {one_line(str(e))}", file=sys.stderr)
    lines = [_line(folder, accepted) for folder in record.run_folders(settings["out"])]
    if as_json:
        print(json.dumps({"schema": "ab-runs/1", "runs": to_json(lines)}, indent=1))
    elif lines:
        _print(lines)
    else:
        print(f"note: no run in {settings['out']}", file=sys.stderr)
    return Exit.SAME


def prune(settings: Settings, keep: int, *, dry_run: bool, yes: bool) -> int:
    """Removes all runs but the newest ``keep``, those that were accepted and those in progress;
    before that it names them and asks.
    """
    accepted = _accepted(settings)  # where that is not known, nothing goes
    old: dict[Path, RunLine] = {}
    for folder in record.run_folders(settings["out"])[keep:]:
        line = _line(folder, accepted)
        if why := _stays(folder, line):
            print(f"note: {line.name} stays: {why}", file=sys.stderr)
        else:
            old[folder] = line
    if not old:
        print(f"nothing to remove: {settings['out']}")
        return Exit.SAME
    _print(old.values())
    total = size(sum(line.size_bytes for line in old.values()))
    what = f"{len(old)} run{'s' if len(old) > 1 else ''}, {total}"
    if dry_run:
        print(f"would remove {what}")
        return Exit.SAME
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"nothing was removed: --yes removes {what}")
    if not yes and not click.confirm(f"remove {what}?"):
        print("nothing was removed")
        return Exit.SAME
    for folder in old:
        _remove(folder)
    print(f"removed {what}")
    return Exit.SAME


def _stays(folder: Path, line: RunLine) -> str:
    """Why a run is not removed, "" if it may be."""
    if line.accepted:
        return f"accepted as {line.accepted}"
    if folder.is_symlink():
        return "a link; what it names is elsewhere"
    return IN_PROGRESS if line.verdict == IN_PROGRESS else ""


def _print(lines: Iterable[RunLine]) -> None:
    rows = [
        (x.name, x.started, x.verdict, size(x.size_bytes), x.accepted, x.summary) for x in lines
    ]
    head = ("run", "started (UTC)", "verdict", "size", "accepted as", "jobs")
    print_table(head, rows, right=("size",))


def _accepted(settings: Settings) -> dict[str, str]:
    """Digest of a run's record -> label of the library in the archive that came of it."""
    archive, pin = settings["archive"], settings["pin"]
    if not os.path.lexists(archive) and not os.path.lexists(pin):
        return {}
    with open_archive(archive, pin) as (_, snapshot):
        return {str(e.record): e.label for e in snapshot.entries if e.record}


def _line(folder: Path, accepted: dict[str, str]) -> RunLine:
    code, summary = None, ""
    try:
        verdict, _ = record.read_verdict(folder)
        code, summary = verdict.exit_code, verdict.summary
        word = Exit(code).name.lower()
    except NothingProved:
        word = IN_PROGRESS if _in_use(folder) else UNFINISHED
    except InputError as e:
        word, summary = DAMAGED, one_line(str(e))
    label = ""
    with contextlib.suppress(InputError):
        label = accepted.get(str(sha256_file(folder / "record.json")[0]), "")
    day, at = folder.name[:8], folder.name[9:15]
    started = f"{day[:4]}-{day[4:6]}-{day[6:]} {at[:2]}:{at[2:4]}:{at[4:]}"
    return RunLine(folder.name, started, word, code, summary, _size(folder), label)


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # of a run in progress
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _in_use(folder: Path) -> bool:
    """Whether a process is at work on the run: it holds a lock on its plan."""
    try:
        fd = open_regular(folder / PLAN)
    except InputError:  # it is just about to write one, or never will
        return time.time() - folder.stat().st_mtime < 60
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:  # it is, or there are no locks here and nobody can tell
        return True
    finally:
        os.close(fd)


def _remove(folder: Path) -> None:
    """The verdict first: what is left of an interrupted removal is an unfinished run."""
    (folder / VERDICT).unlink(missing_ok=True)
    shutil.rmtree(folder)
