"""Kill -9 at random moments of `run-ab`, `accept` and `archive add`; commands at the same time."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyharness import cli
from pyharness.errors import Exit
from pyharness.tests.attack.command import call
from pyharness.tests.stubs import stub

ROOT = Path(__file__).resolve().parents[3]
JOB = ("--m1", "--synthetic", "gdn", "--prefix", "1")


@dataclass(frozen=True)
class Place:
    """An archive with one library, its pin, runs, and a folder for temporary files."""

    folder: Path

    @property
    def where(self) -> list[str]:
        names = {"archive": "archive", "pin": "ci/archive.pin", "out": "runs"}
        return [x for k, name in names.items() for x in (f"--{k}", str(self.folder / name))]

    @property
    def archive(self) -> list[str]:
        return self.where[:4]

    @property
    def runs(self) -> list[Path]:
        out = self.folder / "runs"
        return sorted(out.iterdir()) if out.exists() else []

    def run_line(self) -> list[str]:
        return [*JOB, "--candidate", str(self.folder / "new.so"), *self.where]

    def accept_line(self) -> list[str]:
        return ["accept", "last", "--label", "new", "--why", "same bits", *self.where]

    def add_line(self) -> list[str]:
        library = str(self.folder / "third.so")
        return ["archive", "add", library, "--label", "third", "--why", "x", *self.archive]

    def copy(self, to: Path) -> Place:
        shutil.copytree(self.folder, to)
        return Place(to)


def prepared(folder: Path) -> Place:
    """With a green run of a second library, which is not accepted yet."""
    place = Place(folder)
    folder.mkdir()
    for name, flags in (("old", ()), ("new", ("-DNEW",)), ("third", ("-DTHIRD",))):
        without = ("vcuda_dev_model_rollback_to",)  # fewer jobs
        made = stub("", without, (*flags, f"-Wl,-soname,{name}"))
        shutil.copy(made, folder / f"{name}.so")
    add = ["archive", "add", str(folder / "old.so"), "--label", "old", "--why", "x", *place.archive]
    every = [*place.run_line(), "--mt", "2", "--rb", "2", "--synthetic", "hybrid"]  # to be accepted
    for line in (add, every):
        ended = call(line)
        assert ended.code == Exit.SAME, ended
    return place


# ---- killed --------------------------------------------------------------------------------------


def forked(lines: Iterable[list[str]]) -> int:
    """The process that runs these commands, one after the other and without a word, and exits as
    the last one does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads
        pid = os.fork()
    if pid == 0:
        code = 99
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1), os.dup2(null, 2)
            for line in lines:
                code = cli.run(line)
        finally:
            os._exit(code)
    return pid


def killed_after(delay_s: float, line: list[str]) -> int:
    """The wait status of a command that is killed after a while."""
    pid = forked([line])
    deadline = time.monotonic() + delay_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.0005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def kills(
    place: Place, folder: Path, count: int, rng: random.Random, line: Callable[[Place], list[str]]
) -> Iterator[tuple[bool, str]]:
    """(killed, what was wrong afterwards) for a command that changes the archive."""
    first = place.copy(folder / "measured")
    begin = time.monotonic()
    assert os.waitstatus_to_exitcode(killed_after(600, line(first))) == Exit.SAME
    took = time.monotonic() - begin
    shutil.rmtree(first.folder)
    left = count
    for i in range(3 * count):
        here = place.copy(folder / str(i))
        begin = time.monotonic()
        killed = os.WIFSIGNALED(killed_after(rng.uniform(0, took), line(here)))
        if not killed:  # it was quicker than the first one
            took = min(took, time.monotonic() - begin)
        yield killed, _archive_wrong(here, line(here))
        shutil.rmtree(here.folder)
        left -= killed
        if not left:
            return


def _archive_wrong(place: Place, line: list[str]) -> str:
    """After a kill the archive verifies, the command works, and nothing is left over."""
    for step in (
        ["archive", "verify", *place.archive],
        line,
        ["archive", "verify", *place.archive],
    ):
        ended = call(step)
        if ended.code != Exit.SAME:
            return f"{' '.join(step[:2])}: exit {ended.code}: {ended.err[:300]}"
    if "left by" in ended.err:
        return f"leftovers stay: {ended.err[:300]}"
    left = [p for p in place.folder.rglob(".tmp-*") if "runs" not in p.parts]
    return f"leftovers stay: {left}" if left else ""


def killed_runs(place: Place, count: int, rng: random.Random) -> Iterator[tuple[bool, str]]:
    """Real processes; (killed, what was wrong afterwards)."""
    temporary = place.folder / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "pyharness", *place.run_line()]
    begin = time.monotonic()
    subprocess.run(line, env=environment, capture_output=True, check=True)
    took = time.monotonic() - begin
    left = count
    for _ in range(3 * count):
        if not left:
            break
        before = set(place.runs)
        begin = time.monotonic()
        with subprocess.Popen(
            line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(rng.uniform(0.1, 1.0) * took)
            process.kill()
        killed = process.returncode == -signal.SIGKILL
        left -= killed
        if not killed:
            took = min(took, time.monotonic() - begin)
        yield killed, _run_wrong(place, sorted(set(place.runs) - before), temporary)
    ended = call(place.run_line())
    yield False, "" if ended.code == Exit.SAME else f"the next run: {ended}"
    with_dumps = [r.name for r in place.runs if any(r.rglob("*.npy")) and not finished(r)]
    yield False, f"dumps of killed runs stay: {with_dumps}" if with_dumps else ""


def finished(run: Path) -> bool:
    return (run / "verdict.json").exists()


def _run_wrong(place: Place, new: list[Path], temporary: Path) -> str:
    if alive := _alive(temporary):
        return f"workers outlive their run: {alive}"
    if left := [path for path in temporary.iterdir() if not probe(path)]:
        return f"temporary files stay: {left}"
    ended = call(["archive", "verify", *place.archive])
    if ended.code != Exit.SAME:
        return f"verify: {ended}"
    for run in new:
        if finished(run):
            continue
        for command in (["show"], ["replay"], ["accept", "--why", "x"]):
            ended = call([command[0], str(run), *command[1:], *place.where])
            if ended.code not in (Exit.UNPROVED, Exit.USAGE) or ended.complaint:
                return f"{command[0]} of a run without a verdict: {ended}"
    return ""


def probe(path: Path) -> bool:
    """Whether Python's tempfile was killed while it tried whether the folder can be written to."""
    return (
        re.fullmatch(r"[a-z0-9_]{8}", path.name) is not None
        and path.is_file()
        and path.read_bytes() in (b"", b"blat")
    )


def _alive(temporary: Path) -> list[str]:
    """Processes with this TMPDIR; a worker is told of its parent's death by a signal of its own."""
    for _ in range(100):
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and f"TMPDIR={temporary}".encode() in (
                    entry / "environ"
                ).read_bytes().split(b"\0"):
                    found.append(entry.name)
        if not found:
            return []
        time.sleep(0.05)
    return found


# ---- at the same time ----------------------------------------------------------------------------


def at_once(place: Place, *lines: list[str]) -> list[int]:
    """Exit codes of commands that begin together."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "pyharness", *line],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for line in lines
    ]  # fmt: skip
    return [process.wait(600) for process in started]


def copies_while_adding(place: Place, folder: Path, adds: int) -> Iterator[str]:
    """Copies of archive and pin made file by file during adds: whole, or refused; never wrong."""

    def lines() -> Iterator[list[str]]:
        library = place.folder / "n.so"
        for i in range(adds):
            library.write_bytes((place.folder / "third.so").read_bytes() + bytes(i + 1))
            add = ["archive", "add", str(library), "--label", f"n{i}", "--why", "x", "--no-probe"]
            yield [*add, *place.archive]

    pid = forked(lines())
    number = 0
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        number += 1
        to = folder / f"copy{number}"
        for part in ("archive", "ci") if number % 2 else ("ci", "archive"):
            with contextlib.suppress(shutil.Error, OSError):  # a temporary file that went away
                shutil.copytree(place.folder / part, to / part)
        shutil.copy(place.folder / "new.so", to / "new.so")
        ended = call(["archive", "verify", *Place(to).archive])
        if ended.code not in (Exit.SAME, Exit.REFUSED):
            yield f"copy {number}: {ended}"
        else:
            yield ""
        shutil.rmtree(to)
