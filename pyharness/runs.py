"""The folders of runs that are over: what one of them says, what there is, and what may go."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from pyharness import commands, identity, record
from pyharness.archive.fsck import open_archive
from pyharness.config import Settings
from pyharness.errors import Exit, GateRefusal, InputError, NothingProved, UsageError
from pyharness.files import sha256_file
from pyharness.leftovers import VERDICT, unheld
from pyharness.messages import one_line, refused_by_system
from pyharness.report import document
from pyharness.report.speed import speed_lines
from pyharness.report.tables import print_table
from pyharness.report.terminal import Terminal
from pyharness.report.text import size
from pyharness.speed import timing
from pyharness.values import to_json

UNFINISHED, IN_PROGRESS, DAMAGED = "unfinished", "in progress", "damaged"
SETTLED_S = 60  # one that begins has no plan yet, or no lock on it, for less than that


@dataclass(frozen=True)
class RunLine:
    """One folder."""

    name: str
    started: str  # UTC
    verdict: str  # the word of its exit code, or UNFINISHED, IN_PROGRESS, DAMAGED
    exit_code: int | None  # None: there is no verdict
    summary: str  # how many jobs ended how; of a damaged one, why it is
    size_bytes: int  # of all its files
    accepted: str | None  # label of the library that it was accepted for, "" for none; None: its
    # record cannot be read


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
    except (GateRefusal, InputError) as e:
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
    old = _old(settings, record.run_folders(settings["out"])[keep:])
    if not old:
        print(f"nothing to remove: {settings['out']}")
        return Exit.SAME
    _print(old.values())
    what = _counted(old.values())
    if dry_run:
        print(f"would remove {what}")
        return Exit.SAME
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"nothing was removed: --yes removes {what}")
    if not yes and not click.confirm(f"remove {what}?"):
        print("nothing was removed")
        return Exit.SAME
    if not yes:  # the question may have stood there for hours
        old = _old(settings, old)
    stay = []
    for folder in list(old):
        try:
            _remove(folder)
        except OSError as e:
            stay.append(f"{old.pop(folder).name}: {refused_by_system(e)}")
    print(f"removed {_counted(old.values())}")
    if stay:
        raise InputError(f"not removed, or not all of it: {'; '.join(stay)}")
    return Exit.SAME


def _old(settings: Settings, folders: Iterable[Path]) -> dict[Path, RunLine]:
    """Those of the runs that may be removed. Why another one stays is told."""
    accepted = _accepted(settings)  # where that is not known, nothing goes
    old = {}
    for folder in folders:
        line = _line(folder, accepted)
        if why := _stays(folder, line):
            print(f"note: {line.name} stays: {why}", file=sys.stderr)
        else:
            old[folder] = line
    return old


def _stays(folder: Path, line: RunLine) -> str:
    """Why a run is not removed, "" if it may be."""
    if line.accepted:
        return f"accepted as {line.accepted}"
    if line.accepted is None:
        return "its record cannot be read, so whether it was accepted is not known"
    if folder.is_symlink():
        return "a link; what it names is elsewhere"
    if _in_use(folder):  # also one with a verdict: ``speed`` goes on after it
        return IN_PROGRESS
    if line.verdict == UNFINISHED and time.time() - folder.stat().st_mtime < SETTLED_S:
        return f"unfinished, and changed in the last {SETTLED_S} s: it may just begin"
    return ""


def _counted(lines: Collection[RunLine]) -> str:
    total = size(sum(line.size_bytes for line in lines))
    return f"{len(lines)} run{'' if len(lines) == 1 else 's'}, {total}"


def _print(lines: Iterable[RunLine]) -> None:
    rows = [
        (x.name, x.started, x.verdict, size(x.size_bytes), x.accepted or "", x.summary)
        for x in lines
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
    except OSError as e:  # a folder that this user may not look into
        word, summary = DAMAGED, one_line(refused_by_system(e))
    day, at = folder.name[:8], folder.name[9:15]
    started = f"{day[:4]}-{day[4:6]}-{day[6:]} {at[:2]}:{at[2:4]}:{at[4:]}"
    label = _label(folder / "record.json", accepted)
    return RunLine(folder.name, started, word, code, summary, _size(folder), label)


def _label(path: Path, accepted: dict[str, str]) -> str | None:
    """Of the library that a run with this record was accepted for; None: it cannot be read."""
    try:
        return accepted.get(str(sha256_file(path)[0]), "")
    except InputError:
        return None if os.path.lexists(path) else ""


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # of a run in progress, or not to be looked into
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _in_use(folder: Path) -> bool:
    with unheld(folder) as free:
        return not free


def _remove(folder: Path) -> None:
    """The verdict first: what is left of an interrupted removal is an unfinished run."""
    (folder / VERDICT).unlink(missing_ok=True)
    shutil.rmtree(folder)
