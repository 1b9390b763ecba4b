"""Attacks on archive, pin and candidate through the command line: nothing may start.

The changes are those of ``tests.archive.attacks``; here whole commands meet them, and what counts
is the exit code, that no worker was asked for and that no folder of a run was made.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyharness import gate
from pyharness.errors import Exit, GateRefusal
from pyharness.tests.archive.attacks import applied, attacks
from pyharness.tests.archive.samples import Site, elf
from pyharness.tests.attack.command import Ended, call, toy_runs


def line_of(site: Site, *arguments: str | Path) -> list[str | Path]:
    return [*arguments, "--archive", site.archive, "--pin", site.pin]


def run_line(site: Site) -> list[str | Path]:
    job = ("--m1", "--synthetic", "gdn", "--prefix", "1", "--out", str(site.root / "runs"))
    return line_of(site, *job, "--candidate", site.root / "lib2.so")


def attempt(site: Site, line: list[str | Path] | None = None) -> tuple[Ended, int, int]:
    """How a run ended, the arms that were started, the folders of runs that were made."""
    shutil.rmtree(site.root / "runs", ignore_errors=True)
    with toy_runs(libraries=False) as runner:
        ended = call(line or run_line(site))
    folders = len(list((site.root / "runs").iterdir())) if (site.root / "runs").exists() else 0
    return ended, len(runner.started), folders


def refused(site: Site, line: list[str | Path] | None = None) -> str:
    """ "" when the run was refused and nothing happened; else what did."""
    ended, arms, folders = attempt(site, line)
    if ended.code != Exit.REFUSED:
        return f"exit {ended.code}: {ended.err[:200]}"
    if arms or folders:
        return f"{arms} arms, {folders} folders in spite of exit 3"
    return ended.complaint


def survivors(site: Site, seed: int, count: int) -> list[str]:
    """Of the generated changes; a change to bytes that a run does not read must stop `verify`."""
    through = []
    verify = line_of(site, "archive", "verify")
    for attack in itertools.islice(attacks(site, seed), count):
        with applied(attack):
            if attack.gate and (said := refused(site)):
                through.append(f"run: {attack.name}: {said}")
            if not attack.gate and (said := refused(site, verify)):
                through.append(f"verify: {attack.name}: {said}")
    return through


# ---- what stands in the place of a file ----------------------------------------------------------

Place = Callable[[Path, Path], None]  # (path, its bytes elsewhere)


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, _: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name is short
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(path.name)
    os.chdir(here)


def _directory(path: Path, _: Path) -> None:
    path.mkdir()


def _loop(path: Path, _: Path) -> None:
    path.symlink_to(path.name)


def _device(path: Path, _: Path) -> None:
    path.symlink_to("/dev/zero")


def _link(path: Path, real: Path) -> None:
    path.symlink_to(real)


def _sparse(path: Path, real: Path) -> None:
    path.write_bytes(real.read_bytes())
    os.truncate(path, 1 << 40)


def _empty(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def _missing(path: Path, _: Path) -> None:
    pass


PLACES: dict[str, Place] = {
    "a pipe": _fifo, "a socket": _socket, "a directory": _directory, "a link to itself": _loop,
    "a link to /dev/zero": _device, "a link to its own bytes": _link, "a sparse terabyte": _sparse,
    "an empty file": _empty, "nothing": _missing,
}  # fmt: skip


def read_files(site: Site) -> list[Path]:
    """The files that a run against the baseline reads."""
    return [p for p in sorted(site.archive.rglob("*")) if p.is_file()] + [site.pin]


def misplaced(site: Site, files: list[Path] | None = None) -> Iterator[tuple[str, str]]:
    """(name, "" or what happened): each kind of thing in the place of each file of the archive."""
    for path in files or read_files(site):
        for name, put in PLACES.items():
            real = site.root / "aside"
            os.rename(path, real)
            try:
                put(path, real)
                said = refused(site)
            finally:
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                elif os.path.lexists(path):
                    path.unlink()
                os.rename(real, path)
            yield f"{name} in place of {path.relative_to(site.root)}", said


def _hard_link(path: Path, copy: Path) -> None:
    path.unlink()
    os.link(copy, path)


def _copy(path: Path, copy: Path) -> None:
    path.unlink()
    shutil.copyfile(copy, path)


SAME_BYTES: dict[str, Place] = {
    "a hard link": _hard_link,
    "a copy": _copy,
    "write permission": lambda path, _: path.chmod(0o666),
    "an older time": lambda path, _: os.utime(path, (1, 1)),
}


def harmless(site: Site, files: list[Path] | None = None) -> Iterator[tuple[str, str]]:
    """The same bytes in another way: a hard link, a copy, write permission, an older time."""
    for path in files or read_files(site):
        copy = site.root / "copy"
        shutil.copy(path, copy)
        for name, change in SAME_BYTES.items():
            change(path, copy)
            ended, arms, _ = attempt(site)
            good = ended.code == Exit.SAME and arms > 0
            yield f"{name} for {path.name}", "" if good else f"exit {ended.code}: {ended.err[:200]}"
        copy.unlink()


# ---- between the check and the use ---------------------------------------------------------------


@contextlib.contextmanager
def meanwhile(name: str, change: Callable[[], Any]) -> Iterator[None]:
    """Does something once, just before the gate calls one of its functions."""
    real, done = getattr(gate, name), list[Any]()

    def call_(*given: Any, **more: Any) -> Any:
        if not done:
            done.append(change())
        return real(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, name, call_)
        yield


def races(site: Site) -> Iterator[tuple[str, str]]:
    """The blob changes once the archive is open: refused, or the verified bytes are used."""
    snapshot = site.snapshot()
    current = snapshot.current("cpu")
    assert current is not None
    entry = snapshot.entries[current]
    blob = site.archive / "blobs/sha256" / entry.library.hex
    valid = blob.read_bytes()
    others = {
        "another library": elf(0),
        "as many other bytes": bytes(reversed(valid)),
        "half": valid[: len(valid) // 2],
        "nothing": b"",
        "more": valid + b"\0",
    }
    for step in ("_check_pinned", "_check_rolling_copies", "_seal", "_copy", "sha256_file"):
        for name, new in others.items():
            for how in ("in place", "renamed over"):

                def change(new: bytes = new, how: str = how) -> None:
                    if how == "renamed over":
                        (site.root / "new").write_bytes(new)
                        os.replace(site.root / "new", blob)
                    else:
                        blob.chmod(0o644)
                        blob.write_bytes(new)

                with meanwhile(step, change):
                    ended, arms, folders = attempt(site)
                blob.unlink()
                blob.write_bytes(valid)
                stopped = ended.code == Exit.REFUSED and not arms and not folders
                fine = ended.code == Exit.SAME and how == "renamed over"  # the open file is the old
                fine = fine or (ended.code == Exit.SAME and step == "sha256_file")  # sealed by then
                told = "" if stopped or fine else f"exit {ended.code}: {ended.err[:200]}"
                yield f"{name}, {how}, before {step}", told


def loaded_is_verified(site: Site) -> Iterator[tuple[str, str]]:
    """Whatever the race, the bytes behind the descriptor have the digest that it is known by."""
    blob = site.archive / "blobs/sha256" / site.snapshot().entries[4].library.hex
    valid = blob.read_bytes()
    for step in ("_check_pinned", "_seal", "_copy", "sha256_file"):

        def change() -> None:
            os.rename(blob, site.root / "old")
            blob.write_bytes(elf(9))

        with meanwhile(step, change):
            try:
                with gate.open_baseline(site.archive, site.pin) as opened:
                    data = os.pread(opened.fd, 1 << 20, 0)
                    said = "" if data == valid else "other bytes are loaded"
            except GateRefusal:
                said = ""
        blob.unlink()
        os.rename(site.root / "old", blob)
        yield f"the descriptor, before {step}", said
