"""Dumps of runs that were killed: the next run removes them and leaves their plans.

A run holds a lock on its ``plan.json`` as long as it lives, so where none is held no process is
left, whatever its number was and whoever has that number now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pyharness.differences.investigate import FOLDER
from pyharness.errors import InputError
from pyharness.files import open_regular
from pyharness.record import RUN_NAME
from pyharness.values import Arm

PLAN, VERDICT = "plan.json", "verdict.json"
_PARTS = (*get_args(Arm), FOLDER)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """While this lasts a process is at work on the run, and nobody removes it."""
    fd = open_regular(folder / PLAN)
    try:
        with contextlib.suppress(OSError):  # no locks here: then ``sweep`` has none either
            fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def unheld(folder: Path) -> Iterator[bool]:
    """Whether no process is at work on the run; while this lasts none begins to be."""
    try:
        fd = open_regular(folder / PLAN)
    except InputError:  # no run, or one that just begins
        yield True
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:  # it lives, or there are no locks here and nobody can tell
        free = False
    try:
        yield free
    finally:
        os.close(fd)


@contextlib.contextmanager
def living(folder: Path) -> Iterator[None]:
    """While this lasts the run is in progress. One that ends without a verdict, whatever ended it,
    leaves its plan, so that ``show`` says so, and no dumps.
    """
    with held(folder):
        try:
            yield
        finally:
            if not (folder / VERDICT).exists():
                remove_dumps(folder)


def remove_dumps(folder: Path) -> None:
    """The dumps of both arms and the elements of first differences."""
    for name in _PARTS:
        shutil.rmtree(folder / name, ignore_errors=True)


def sweep(out: Path) -> None:
    """Removes the dumps of every unfinished run in this folder whose process is gone."""
    for folder in out.iterdir() if out.is_dir() else ():
        if (
            RUN_NAME.fullmatch(folder.name)
            and not (folder / VERDICT).exists()
            and (folder / PLAN).is_file()
            and any((folder / name).is_dir() for name in _PARTS)
        ):
            _sweep_run(folder)


def _sweep_run(folder: Path) -> None:
    with unheld(folder) as free:
        if free and not (folder / VERDICT).exists():  # it may just have ended well
            remove_dumps(folder)
