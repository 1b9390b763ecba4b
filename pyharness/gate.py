"""The gate: the only place that hands out the bytes of a library.

The bytes are copied into memory that nobody can change any more (a sealed memfd), and the digest is
taken of those very bytes: what was checked is what a worker loads. A baseline comes out of the
archive only when the log is consistent with its pin, the log entry is in the pinned part, manifest
and index belong to it, and the bytes have the digest of the entry. Whatever does not match is a
GateRefusal; no option turns it into anything else. A library whose code lies in other files, which
no digest covers, is refused as well.
"""

from __future__ import annotations

import errno
import fcntl
import io
import mmap
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyharness.archive import checks, layout
from pyharness.archive.entry import LogEntry
from pyharness.archive.fsck import HOW_TO_ADD, HOW_TO_FINISH, open_archive, restorable
from pyharness.archive.snapshot import Snapshot
from pyharness.archive.tree import Tree
from pyharness.errors import GateRefusal, InputError, NothingProved, UsageError
from pyharness.files import CHUNK_BYTES, LARGEST_LIBRARY, open_regular, sha256_file
from pyharness.host.elf import require_self_contained
from pyharness.values import BACKENDS, Digest


@dataclass(frozen=True)
class SealedLibrary:
    """Verified bytes, open for reading. Give ``fd`` to the worker that loads them (``pass_fds``);
    close after use.
    """

    digest: Digest
    size_bytes: int
    origin: str  # path of the file that the bytes were read from
    label: str = ""  # in the archive
    reference: str = ""  # what the user asked for
    manifest: Digest | None = None
    entry: int | None = None  # position in the archive's log
    root: str = ""  # of the archive's log, hexadecimal
    backend: str = "cpu"  # cuda: it needs a GPU
    file: io.FileIO = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    copy: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    @property
    def fd(self) -> int:
        return self.file.fileno()

    @property
    def path(self) -> str:
        """What to load in a process that inherited ``fd``."""
        return f"/proc/self/fd/{self.fd}"

    def describe(self) -> dict[str, Any]:
        """For the record of a run."""
        return {
            "sha256": str(self.digest),
            "size_bytes": self.size_bytes,
            "origin": self.origin,
            "reference": self.reference,
            "label": self.label,
            "manifest": str(self.manifest) if self.manifest else None,
            "log_entry": self.entry,
            "log_root": self.root,
            "backend": self.backend,
        }

    def close(self) -> None:
        self.file.close()
        if self.copy:
            self.copy.cleanup()

    def __enter__(self) -> SealedLibrary:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_baseline(
    archive: Path, pin: Path, reference: str = "", backend: str = "cpu"
) -> SealedLibrary:
    """A library out of the archive.

    ``reference``: a label, the digest of a library or of a manifest, of whatever backend;
    ``accepted`` for the one of ``backend`` accepted last; or "" for its baseline: that one, or,
    when none was accepted, the one added last.
    """
    with open_archive(archive, pin) as (tree, snapshot):
        index = _resolve(archive, snapshot, reference, backend)
        entry = snapshot.entries[index]
        path = layout.blob_path(entry.library)
        with restorable(archive, pin):
            checks.check_inclusion(tree, snapshot.checkpoint, index, snapshot.raw_entries[index])
            _check_pinned(tree, snapshot, index)
            _check_rolling_copies(tree, snapshot, entry.library)
            fd = tree.open(path)
            try:
                file, size, copy = _seal(fd, entry.library, str(archive / path))
            finally:
                os.close(fd)
        return SealedLibrary(
            digest=entry.library,
            size_bytes=size,
            origin=str(archive / path),
            label=entry.label,
            reference=reference,
            manifest=entry.manifest,
            entry=index,
            root=snapshot.checkpoint.root.hex(),
            backend=snapshot.backend(index),
            file=file,
            copy=copy,
        )


def open_candidate(
    path: Path, expected: Digest | None = None, *, to_load: bool = True
) -> SealedLibrary:
    """A library that the user names; with ``expected`` (a replay) only that one. A blob of an
    archive, wherever it lies, has to be the one of its name. Without ``to_load``, for a look at the
    bytes alone, it may need other files and lack entries.
    """
    expected = expected or layout.promised_digest(path)
    fd = open_regular(path)
    try:
        layout.require_shared_library(os.pread(fd, layout.ELF_HEADER_BYTES, 0), str(path))
        if os.fstat(fd).st_size > LARGEST_LIBRARY:
            raise InputError(f"{path}: is over {LARGEST_LIBRARY} bytes")
        try:
            digest, _ = sha256_file(fd)
        except InputError as e:
            raise InputError(f"{path}: {str(e).partition(': ')[2]}") from None
        file, size, copy = _seal(fd, expected or digest, str(path), to_load=to_load)
    finally:
        os.close(fd)
    return SealedLibrary(
        digest=expected or digest,
        size_bytes=size,
        origin=os.path.abspath(path),
        reference=str(path),
        backend="cuda" if _holds_device_code(file, size) else "cpu",
        file=file,
        copy=copy,
    )


# ---- which entry ---------------------------------------------------------------------------------


def open_record(archive: Path, pin: Path, reference: str, backend: str) -> tuple[LogEntry, bytes]:
    """The record that the archive keeps with a library, of the run that it was accepted for last,
    and its log entry. ``reference`` and ``backend`` as of ``open_baseline``.
    """
    with open_archive(archive, pin) as (tree, snapshot):
        named = snapshot.entries[_resolve(archive, snapshot, reference, backend)].library
        kept = [i for i, e in enumerate(snapshot.entries) if e.library == named and e.record]
        if not kept:
            with_record = {e.label: None for e in snapshot.entries if e.record}
            others = f", or name one that has: {', '.join(with_record)}" if with_record else ""
            raise NothingProved(
                f"{archive}: holds no record of a run of {named}: accept one{others}"
            )
        index = kept[-1]
        entry = snapshot.entries[index]
        assert entry.record is not None
        with restorable(archive, pin):
            checks.check_inclusion(tree, snapshot.checkpoint, index, snapshot.raw_entries[index])
            _check_pinned(tree, snapshot, index)
            data = tree.read(layout.blob_path(entry.record))
            if layout.named(data) != str(entry.record):
                path = archive / layout.blob_path(entry.record)
                raise GateRefusal(f"{path}: expected {entry.record}, found {layout.named(data)}")
        return entry, data


def _resolve(archive: Path, snapshot: Snapshot, reference: str, backend: str) -> int:
    """Position of the log entry that ``reference`` means."""
    if not snapshot.entries:
        raise InputError(f"{archive}: holds no library yet; {HOW_TO_ADD}")
    if not reference:
        current = snapshot.current(backend)
        if current is None:
            raise InputError(f"{archive}: holds no {backend} library yet; {HOW_TO_ADD}")
        return current
    entries = list(enumerate(snapshot.entries))
    bare = reference.removeprefix("sha256:")
    if len(bare) == 64 or bare != reference:
        named = [i for i, e in entries if bare in (e.library.hex, e.manifest.hex)]
        if not named:
            raise GateRefusal(
                f"{archive}/log: expected an entry for sha256:{bare}, found none among "
                f"{len(entries)}; {HOW_TO_ADD}"
            )
        return named[0]
    owner = {tag: b for b, tag in layout.ACCEPTED_TAGS.items()} | {"accepted": backend}
    if reference in owner:
        accepted = snapshot.accepted(owner[reference])
        if accepted is None:
            raise UsageError(f"{archive}: no library was accepted yet; see `run-ab archive list`")
        return accepted
    labels = {e.label: i for i, e in entries if e.kind == "added"}
    if reference not in labels:
        raise UsageError(
            f"{archive}: no library is labelled {reference!r}; there are {', '.join(labels)}"
        )
    return labels[reference]


def _check_pinned(tree: Tree, snapshot: Snapshot, index: int) -> None:
    """Whoever can write the archive but not the pin can append entries: such a one never becomes a
    baseline.
    """
    if index >= snapshot.pin.size:
        entry = snapshot.entries[index]
        raise GateRefusal(
            f"{tree.path}/log: {entry.label} ({entry.library}) is entry {index}, the pin covers "
            f"{snapshot.pin.size}: {HOW_TO_FINISH}"
        )


def _check_rolling_copies(tree: Tree, snapshot: Snapshot, opened: Digest) -> None:
    """The libraries accepted last, of each backend, still have their bytes, also when another one
    is asked for.
    """
    for index in map(snapshot.accepted, BACKENDS):
        if index is not None and (entry := snapshot.entries[index]).library != opened:
            checks.check_blob(tree, entry.library, entry.size_bytes)


def _holds_device_code(file: io.FileIO, size: int) -> bool:
    with _mapped(file, size) as data:
        return layout.holds_device_code(data)


def _mapped(file: io.FileIO, size: int) -> mmap.mmap:
    # private: a shared mapping of a file sealed against writing is refused by older kernels
    return mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ)


# ---- sealed bytes --------------------------------------------------------------------------------


def _seal(
    source: int, expected: Digest, name: str, *, to_load: bool = True
) -> tuple[io.FileIO, int, tempfile.TemporaryDirectory[str] | None]:
    """A copy of an open file that can no longer change, and its size. GateRefusal unless it has
    this digest. ``to_load``: it has to be all of the library.
    """
    copy = None
    try:
        file = io.FileIO(_sealed_memory(source, expected, name))
    except NoMemfdError:
        copy = tempfile.TemporaryDirectory(prefix="vllm-cuda-")
        file = io.FileIO(_private_copy(source, Path(copy.name) / f"{expected.short}.so", name))
    try:
        try:
            found, size = sha256_file(file.fileno())
        except InputError:  # it was emptied since it was opened
            raise GateRefusal(f"{name}: expected {expected}, found an empty file") from None
        if found != expected:
            raise GateRefusal(f"{name}: expected {expected}, found {found}")
        if to_load:
            with _mapped(file, size) as data:
                require_self_contained(data, name)
    except BaseException:
        file.close()
        if copy:
            copy.cleanup()
        raise
    return file, size, copy


def _sealed_memory(source: int, expected: Digest, name: str) -> int:
    fd = sealable_memory(f"vllm_cuda-{expected.short}")
    try:
        _copy(source, fd, name)
        forbid_writes(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


class NoMemfdError(Exception):
    """This system has no files in memory, or does not allow them to this user."""


def sealable_memory(name: str) -> int:
    """A descriptor of a new file in memory."""
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, PermissionError) as e:
        raise NoMemfdError(str(e)) from None
    except OSError as e:
        if e.errno != errno.ENOSYS:
            raise
        raise NoMemfdError(str(e)) from None


def forbid_writes(fd: int) -> None:
    """EBUSY says that the kernel itself holds a page, to reclaim or move it: it lets go soon."""
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    for pause in (0.01, 0.1, 0.5, 2.0):
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except OSError as e:
            if e.errno != errno.EBUSY:
                raise
            time.sleep(pause)
        else:
            return
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def _private_copy(source: int, path: Path, name: str) -> int:
    """A file that only this user can reach and nobody opens for writing, hashed and loaded through
    one descriptor.
    """
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o500)
    try:
        _copy(source, writer, name)
    finally:
        os.close(writer)
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _copy(source: int, target: int, name: str) -> None:
    """InputError where memory, the disk or a limit on the size of files runs out."""
    offset = 0
    try:
        while chunk := os.pread(source, CHUNK_BYTES, offset):
            offset += len(chunk)
            view = memoryview(chunk)
            while view:
                view = view[os.write(target, view) :]
    except OSError as e:
        raise InputError(f"{name}: cannot be copied before it is loaded: {e.strerror}") from None
