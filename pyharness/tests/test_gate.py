"""The gate hands out the bytes that it hashed, and nothing else."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyharness import gate
from pyharness.archive import add, layout
from pyharness.errors import Exit, GateRefusal, InputError, UsageError
from pyharness.files import sha256_bytes
from pyharness.gate import SealedLibrary, open_baseline, open_candidate
from pyharness.host import abi
from pyharness.tests.archive.samples import (
    Site,
    elf,
    library,
    small,
    without_waiting_for_the_disk,
    write,
)
from pyharness.tests.stubs import stub

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
V0, V1, V2 = (sha256_bytes(elf(seed, 300 + 10 * seed)) for seed in range(3))


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    with without_waiting_for_the_disk():
        yield


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small(tmp_path)


def refuse_memfd(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)


@pytest.fixture
def no_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_memfd(monkeypatch, errno.EACCES)  # vm.memfd_noexec=2


def content(library: SealedLibrary) -> bytes:
    return os.pread(library.fd, 1 << 20, 0)


def test_a_seal_that_the_kernel_puts_off_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left, real = tmp_path / "lib.so", [1, 2], fcntl.fcntl
    path.write_bytes(elf(1, 310))

    def busy(fd: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_ADD_SEALS and left:
            left.pop()
            raise OSError(errno.EBUSY, "Device or resource busy")
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", busy)
    with open_candidate(path) as library:
        assert not left and content(library) == path.read_bytes()
        assert real(library.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE


# ---- which library ------------------------------------------------------------------------------


def test_without_a_reference_it_is_the_library_accepted_last(site: Site) -> None:
    with open_baseline(site.archive, site.pin) as opened:
        assert (opened.digest, opened.label, opened.entry) == (V1, "v1", 4)
        assert content(opened) == elf(1, 310) and opened.size_bytes == 310


def test_with_none_accepted_it_is_the_one_added_last(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for seed in (2, 0):
        add(site.archive, site.pin, library(site, seed), label=f"v{seed}", why="x")
    with open_baseline(site.archive, site.pin) as opened:
        assert opened.digest == V0
    with pytest.raises(UsageError, match="no library was accepted yet"):
        open_baseline(site.archive, site.pin, "accepted")


def test_labels_digests_and_manifests_lead_to_their_library(site: Site) -> None:
    entries = site.snapshot().entries
    for reference, digest, entry in [
        ("v0", V0, 0),
        ("v2", V2, 2),
        ("accepted", V1, 4),
        (str(V0), V0, 0),
        (V2.hex, V2, 2),
        (str(entries[2].manifest), V2, 2),
        (str(entries[3].manifest), V0, 3),
    ]:
        with open_baseline(site.archive, site.pin, reference) as opened:
            assert (opened.digest, opened.entry, opened.reference) == (digest, entry, reference)
            assert opened.manifest == entries[entry].manifest
            assert hashlib.sha256(content(opened)).hexdigest() == digest.hex
            json.dumps(opened.describe())


def test_references_that_lead_nowhere(site: Site) -> None:
    with pytest.raises(UsageError, match="'v9'; there are v0, v1, v2"):
        open_baseline(site.archive, site.pin, "v9")
    other = sha256_bytes(b"other")
    with pytest.raises(GateRefusal, match=f"expected an entry for {other}, found none among 5"):
        open_baseline(site.archive, site.pin, str(other))
    with pytest.raises(GateRefusal, match="expected an entry for sha256:12ab, found none"):
        open_baseline(site.archive, site.pin, "sha256:12ab")


def test_an_empty_archive_says_how_to_add(tmp_path: Path) -> None:
    pin = tmp_path / "pin"
    for archive in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="add a library with `run-ab archive add LIBRARY"):
            open_baseline(archive, pin)
    assert GateRefusal.exit_code == Exit.REFUSED != InputError.exit_code


# ---- refusals -----------------------------------------------------------------------------------


def test_a_flipped_byte_of_the_baseline(site: Site) -> None:
    path = site.archive / layout.blob_path(V1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    write(path, bytes(data))
    found = sha256_bytes(bytes(data))
    with pytest.raises(GateRefusal, match=f"{path}: expected {V1}, found {found}"):
        open_baseline(site.archive, site.pin)


def test_the_rolling_copy_is_checked_whatever_is_opened(site: Site) -> None:
    write(site.archive / layout.blob_path(V1), elf(9, 310))
    with pytest.raises(GateRefusal, match=f"expected {V1} of 310 bytes, found sha256:"):
        open_baseline(site.archive, site.pin, "v0")


def test_another_library_that_was_never_accepted_does_not_matter(site: Site) -> None:
    write(site.archive / layout.blob_path(V2), elf(9, 320))
    open_baseline(site.archive, site.pin, "v0").close()
    with pytest.raises(GateRefusal, match=f"expected {V2}, found"):
        open_baseline(site.archive, site.pin, "v2")


def test_a_link_to_the_very_bytes_is_not_followed(site: Site) -> None:
    path = site.archive / layout.blob_path(V1)
    outside = site.root / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(GateRefusal, match="a symbolic link has no place in an archive"):
        open_baseline(site.archive, site.pin)


def test_a_link_that_appears_after_the_listing_is_not_followed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is opened without following links, whatever a check saw before."""
    path = site.archive / layout.blob_path(V1)
    outside = site.root / "outside"
    real = gate._check_pinned

    def meanwhile(*arguments: Any) -> None:
        real(*arguments)
        path.rename(outside)
        path.symlink_to(outside)

    monkeypatch.setattr(gate, "_check_pinned", meanwhile)
    with pytest.raises(GateRefusal, match=f"{path}: is a symbolic link"):
        open_baseline(site.archive, site.pin)


def test_bytes_that_change_after_they_were_sealed_do_not_matter(site: Site) -> None:
    with open_baseline(site.archive, site.pin) as opened:
        write(site.archive / layout.blob_path(V1), elf(9, 310))
        assert content(opened) == elf(1, 310)


def test_no_descriptor_stays_open_after_a_refusal(site: Site, tmp_path: Path) -> None:
    write(site.archive / layout.blob_path(V1), elf(9, 310))
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(GateRefusal):
            open_baseline(site.archive, site.pin)
        with pytest.raises(GateRefusal):
            open_candidate(library(site, 5), expected=V0)
    assert sorted(os.listdir("/proc/self/fd")) == before


# ---- candidates ---------------------------------------------------------------------------------


def test_a_candidate_keeps_the_bytes_that_were_hashed(site: Site) -> None:
    path = library(site, 5)
    with open_candidate(path) as opened:
        os.replace(library(site, 6), path)
        assert content(opened) == elf(5, 350) and opened.size_bytes == 350
        assert opened.digest == sha256_bytes(elf(5, 350))
        assert opened.origin == str(path) and opened.entry is None
    with pytest.raises(ValueError, match="closed"):
        _ = opened.fd
    opened.close()  # a second time does no harm


def test_a_candidate_may_be_a_link_of_the_users_own(site: Site) -> None:
    (site.root / "latest.so").symlink_to(library(site, 5))
    with open_candidate(site.root / "latest.so") as opened:
        assert opened.digest == sha256_bytes(elf(5, 350))


def test_a_replay_takes_only_the_same_library(site: Site) -> None:
    path, digest = library(site, 5), sha256_bytes(elf(5, 350))
    with open_candidate(path, expected=digest) as opened:
        assert opened.digest == digest
    with pytest.raises(GateRefusal, match=f"{path}: expected {V0}, found {digest}"):
        open_candidate(path, expected=V0)


def test_a_candidate_that_changes_while_it_is_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = library(site, 5), gate._copy

    def meanwhile(source: int, target: int, name: str) -> None:
        path.write_bytes(elf(6, 350))
        real(source, target, name)

    monkeypatch.setattr(gate, "_copy", meanwhile)
    expected, found = (sha256_bytes(elf(seed, 350)) for seed in (5, 6))
    with pytest.raises(GateRefusal, match=f"{path}: expected {expected}, found {found}"):
        open_candidate(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "No such file or directory"),
        (b"", "the file is empty"),
        (b"int main;" * 20, "not a shared library"),
        (elf(0)[:40], "not a shared library"),
        (elf(0)[:16] + b"\x01\0" + elf(0)[18:], "but not a shared library"),
    ],
)
def test_candidates_that_are_no_library(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "candidate.so"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match=f"{path}: .*{message}"):
        open_candidate(path)


def test_candidates_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(InputError, match=f"{path}: not a regular file"):
            open_candidate(path)


# ---- sealed bytes -------------------------------------------------------------------------------


def test_sealed_memory_refuses_every_change(site: Site) -> None:
    with open_baseline(site.archive, site.pin) as opened:
        assert fcntl.fcntl(opened.fd, fcntl.F_GET_SEALS) == SEALS
        assert V1.short in os.readlink(opened.path)
        with pytest.raises(PermissionError):
            os.write(opened.fd, b"x")
        with pytest.raises(PermissionError):
            os.truncate(opened.path, 1)
        with pytest.raises(PermissionError):
            fcntl.fcntl(opened.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        with open(opened.path, "r+b", buffering=0) as again, pytest.raises(PermissionError):
            again.write(b"x")
        assert content(opened) == elf(1, 310)
        assert not os.get_inheritable(opened.fd)


def test_no_room_for_the_copy_is_one_line_with_the_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EFBIG, "File too large")  # ulimit -f

    path = library(site, 1)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match=f"{path}: cannot be copied .*: File too large"):
        open_candidate(path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSYS])
def test_without_memfd_the_copy_is_private(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_memfd(monkeypatch, number)
    with open_baseline(site.archive, site.pin) as opened:
        assert opened.copy is not None
        folder = Path(opened.copy.name)
        (copy,) = folder.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(copy.stat().st_mode) == 0o500
        assert os.path.samestat(copy.stat(), os.fstat(opened.fd))
        with pytest.raises(OSError):
            os.write(opened.fd, b"x")
        assert content(opened) == elf(1, 310)
    assert not folder.exists()


def test_without_memfd_a_changed_baseline_is_refused_too(
    site: Site, no_memfd: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.root / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(site.root / "temporary"))
    write(site.archive / layout.blob_path(V1), elf(9, 310))
    with pytest.raises(GateRefusal, match=f"expected {V1}, found"):
        open_baseline(site.archive, site.pin)
    assert os.listdir(site.root / "temporary") == []


@pytest.mark.parametrize("memfd", [True, False])
def test_a_copy_that_went_wrong_is_refused(
    site: Site, memfd: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is of the copy that will be loaded, not of its source."""
    copy = gate._copy
    if not memfd:
        request.getfixturevalue("no_memfd")

    def damaged(source: int, target: int, name: str) -> None:
        copy(source, target, name)
        os.pwrite(target, b"?", 200)

    monkeypatch.setattr(gate, "_copy", damaged)
    with pytest.raises(GateRefusal, match=f"expected {V1}, found sha256:"):
        open_baseline(site.archive, site.pin)
    write(candidate := site.root / "candidate.so", elf(1, 310))
    with pytest.raises(GateRefusal, match=f"expected {V1}, found sha256:"):
        open_candidate(candidate)


@needs_compiler
@pytest.mark.parametrize("memfd", [True, False])
def test_a_worker_loads_the_bytes_it_inherits(
    tmp_path: Path, memfd: bool, request: pytest.FixtureRequest
) -> None:
    built = tmp_path / "library.so"
    built.write_bytes(stub().read_bytes())
    if not memfd:
        request.getfixturevalue("no_memfd")
    with open_candidate(built) as opened:
        built.write_bytes(b"something else")
        script = f"import ctypes; print(ctypes.CDLL({opened.path!r}).vcuda_abi_version())"
        done = subprocess.run(
            [sys.executable, "-c", script], pass_fds=[opened.fd], capture_output=True, check=True
        )
    assert done.stdout == b"%d\n" % abi.ABI_VERSION
