"""A process killed anywhere within an add leaves an archive that verifies, and the next add works;
two adds take turns.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pyharness.archive import Appended, accept, add, verify
from pyharness.errors import InputError
from pyharness.files import sha256_bytes
from pyharness.gate import open_baseline
from pyharness.tests.archive.samples import NOON, Site, elf, library, record_of, small

# Every call by which an add changes a file system.
CALLS = ("open", "write", "fchmod", "fsync", "link", "replace", "unlink", "mkdir")


def in_child(work: Callable[[], object]) -> int:
    """The wait status of a forked process that does the work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: fork with threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Does the work in a process that kills itself just before its n-th change; False if it got to
    its end.
    """

    def doomed() -> None:
        left = step

        def wrap(name: str) -> None:
            real = getattr(os, name)

            def call(*args, **more):  # type: ignore[no-untyped-def]
                nonlocal left
                left -= 1
                if left < 0:
                    if name == "write":
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return None if name == "fsync" else real(*args, **more)

            setattr(os, name, call)

        for name in CALLS:
            wrap(name)
        work()

    status = in_child(doomed)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def add_to(site: Site, seed: int) -> Appended:
    path = site.root / f"lib{seed}.so"
    return add(site.archive, site.pin, path, label=f"v{seed}", why="because", now=NOON)


def test_killed_at_every_step_of_the_first_add(tmp_path: Path) -> None:
    for step in range(1000):
        site = Site(tmp_path / str(step))
        site.root.mkdir()
        library(site, 0)
        killed = killed_at(step, partial(add_to, site, 0))
        if site.archive.exists():
            assert verify(site.archive, site.pin).entries in (0, 1)
        said = add_to(site, 0)
        assert said.log_size == 1 and said.index == 0
        check_healed(site, entries=1)
        shutil.rmtree(site.root)
        if not killed:
            break
    assert 60 < step < 999


def test_killed_at_every_step_of_a_later_add(tmp_path: Path) -> None:
    first = small(tmp_path / "first")
    library(first, 7)
    states = set()
    for step in range(1000):
        site = copy_of(first, tmp_path / str(step))
        killed = killed_at(step, partial(add_to, site, 7))
        report = verify(site.archive, site.pin)
        states.add((report.entries, report.pinned, bool(report.leftovers)))
        with open_baseline(site.archive, site.pin) as library_:
            assert library_.label == "v1"
        said = add_to(site, 7)
        assert said.log_size == 6 and said.index == 5
        assert said.added == (report.entries == 5)
        check_healed(site, entries=6)
        shutil.rmtree(site.root)
        if not killed:
            break
    # before, within and after the log; the pin one behind
    assert {(5, 5, False), (5, 5, True), (6, 5, False), (6, 6, False)} <= states
    assert 50 < step < 999


def test_killed_at_steps_of_an_acceptance(tmp_path: Path) -> None:
    first, digest = small(tmp_path / "first"), sha256_bytes(elf(2, 320))

    def accept_in(site: Site) -> Appended:
        record = record_of(digest)
        return accept(site.archive, site.pin, digest, record=record, why="same", now=NOON)

    for step in range(0, 1000, 4):
        site = copy_of(first, tmp_path / str(step))
        killed = killed_at(step, partial(accept_in, site))
        assert verify(site.archive, site.pin).entries in (5, 6)
        assert accept_in(site).log_size == 6
        check_healed(site, entries=6)
        with open_baseline(site.archive, site.pin) as library_:
            assert library_.digest == digest
        shutil.rmtree(site.root)
        if not killed:
            break
    assert 50 < step < 996


def test_another_library_after_a_killed_add(tmp_path: Path) -> None:
    """What the next add brings differs from what the killed one left beyond the checkpoint."""
    first = small(tmp_path / "first")
    library(first, 7), library(first, 8)
    for step in range(1, 1000, 5):
        site = copy_of(first, tmp_path / str(step))
        killed = killed_at(step, partial(add_to, site, 7))
        reached = verify(site.archive, site.pin).entries - 5
        said = add_to(site, 8)
        assert said.added and said.log_size == 6 + reached
        report = verify(site.archive, site.pin)
        assert (report.unpinned, report.leftovers) == (0, ())
        shutil.rmtree(site.root)
        if not killed:
            break


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """From outside, with the real calls and a real SIGKILL; the log grows in spite of it."""
    site, rng = small(tmp_path), random.Random(5)
    script = (
        "import sys; from pathlib import Path; from pyharness.archive import add\n"
        "print(flush=True); sys.stdin.read(1); r = Path(sys.argv[1])\n"
        "for n in range(int(sys.argv[2]), 1000):\n"
        "    add(r / 'archive', r / 'ci/archive.pin', r / f'lib{n}.so', label=f'v{n}', why='x')\n"
    )
    for seed in range(10, 60):
        library(site, seed)
    for _ in range(12):
        start = 10 + verify(site.archive, site.pin).libraries - 3
        command = [sys.executable, "-c", script, str(site.root), str(start)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdin and process.stdout
            process.stdout.readline()
            process.stdin.write(b"g")
            process.stdin.flush()
            time.sleep(rng.uniform(0, 0.06))
            process.kill()
        report = verify(site.archive, site.pin)
        assert report.unpinned <= 1
    said = add_to(site, 59)
    assert said.added and verify(site.archive, site.pin).leftovers == ()


def test_adds_at_once_take_turns(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for seed in range(4):
        library(site, seed)
    gate, go = os.pipe()
    children = []
    for seed in (0, 1, 2, 3, 0, 1):  # two of them twice
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(go)
            os.read(gate, 1)  # all begin together
            code = 1
            try:
                add_to(site, seed)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    os.close(go)
    os.close(gate)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 6
    report = verify(site.archive, site.pin)
    assert (report.entries, report.libraries, report.unpinned) == (4, 4, 0)
    assert report.orphans == () and report.leftovers == ()


def test_readers_meet_whole_archives_only(tmp_path: Path) -> None:
    site = small(tmp_path)
    for seed in range(10, 25):
        library(site, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        for seed in range(10, 25):
            add_to(site, seed)
        os._exit(0)
    seen = set()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        report = verify(site.archive, site.pin)
        assert report.unpinned == 0
        seen.add(report.entries)
    assert verify(site.archive, site.pin).entries == 20
    assert seen


def test_each_step_is_durable_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is synced before it has its name, its folder after; checkpoint, index, pin follow."""
    site, named, unsynced = small(tmp_path), [], set()
    real = {name: getattr(os, name) for name in ("link", "replace", "mkdir")}

    def fsync(fd: int) -> None:
        unsynced.discard(os.readlink(f"/proc/self/fd/{fd}"))
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))

    synced: set[str] = set()

    def place(name: str) -> Callable[[str, Path], None]:
        def call(source: str, target: Path) -> None:
            assert source in synced, f"{target} is named before its bytes are durable"
            assert not unsynced, f"{target} is named before the name of the file before is durable"
            real[name](source, target)
            unsynced.add(str(Path(target).parent))
            named.append(str(Path(target).relative_to(tmp_path)))

        return call

    def mkdir(path: str, *more: int) -> None:
        real["mkdir"](path, *more)
        unsynced.add(str(Path(path).parent))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "mkdir", mkdir)
    for name in ("link", "replace"):
        monkeypatch.setattr(os, name, place(name))
    library(site, 7)
    said = add_to(site, 7)
    assert not unsynced
    blobs = [f"archive/blobs/sha256/{d.hex}" for d in (said.entry.library, said.entry.manifest)]
    assert [name for name in named if "44136fa3" not in name] == [
        *blobs,
        "archive/log/tile/entries/000.p/6",
        "archive/log/tile/0/000.p/6",
        "archive/log/checkpoint",
        "archive/index.json",
        "ci/archive.pin",
    ]


def copy_of(site: Site, root: Path) -> Site:
    shutil.copytree(site.root, root)
    return Site(root)


def check_healed(site: Site, entries: int) -> None:
    report = verify(site.archive, site.pin)
    assert (report.entries, report.unpinned, report.leftovers) == (entries, 0, ())
    assert [p.name for p in site.pin.parent.iterdir()] == [site.pin.name]
    with pytest.raises(InputError):  # the label is taken
        add(site.archive, site.pin, library(site, 99), label="v0", why="x")
