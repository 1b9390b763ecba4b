"""Files written whole or not at all, read once through one descriptor, and named by their SHA-256.

A file is first written beside its place as ``.tmp-<name>-*`` and made durable, then renamed or
linked into place: a reader never meets half of it. What a killed process leaves behind is such a
temporary file and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyharness.errors import GateRefusal, InputError
from pyharness.values import Digest

TEMPORARY = ".tmp-"  # prefix of what an interrupted write may leave
CHUNK_BYTES = 1 << 20
LARGEST_TEXT = 1 << 26  # bytes of a file that is read as a whole, where no other limit is given
LARGEST_LIBRARY = 4 << 30


def sha256_bytes(data: bytes) -> Digest:
    """ValueError for no bytes."""
    return Digest(hashlib.sha256(data).hexdigest())


def sha256_file(source: Path | str | int) -> tuple[Digest, int]:
    """Digest and size of a file, by path or open descriptor; InputError if empty or unreadable.

    A descriptor is read from offset 0 whatever its offset is, and the offset stays: hashing a file
    that was just written cannot give the digest of no bytes.
    """
    if isinstance(source, int):
        return _sha256_descriptor(source, f"descriptor {source}")
    fd = open_regular(source)
    try:
        return _sha256_descriptor(fd, str(source))
    finally:
        os.close(fd)


def open_regular(path: Path | str, *, follow: bool = True, dir_fd: int | None = None) -> int:
    """A descriptor for reading a regular file; InputError for anything else. Never blocks on a pipe
    or a device.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, dir_fd=dir_fd)
    except ValueError as e:  # a null character in a name that somebody else wrote
        raise InputError(f"{path}: {e}") from None
    except OSError as e:
        what = "is a symbolic link" if not follow and _is_link(path, dir_fd) else e.strerror
        raise InputError(f"{path}: {what}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputError(f"{path}: not a regular file")
    return fd


def read_descriptor(fd: int, name: str, limit: int = LARGEST_TEXT) -> bytes:
    """All bytes of an open regular file, from offset 0. InputError names the file if reading
    fails, or if there are more than ``limit``: a sparse file has any size for nothing.
    """
    data = bytearray()
    try:
        while chunk := os.pread(fd, CHUNK_BYTES, len(data)):
            data += chunk
            if len(data) > limit:
                raise InputError(f"{name}: is over {limit} bytes")
    except OSError as e:
        raise InputError(f"{name}: {e.strerror}") from None
    return bytes(data)


def read_regular(path: Path | str, *, follow: bool = True, limit: int = LARGEST_TEXT) -> bytes:
    """All bytes of a regular file; InputError for anything else and for one over the limit."""
    fd = open_regular(path, follow=follow)
    try:
        return read_descriptor(fd, str(path), limit)
    finally:
        os.close(fd)


def write_atomically(path: Path | str, data: bytes, mode: int = 0o644) -> None:
    """Makes ``path`` hold ``data``, durably, replacing what was there; at no moment does it hold
    anything else.
    """
    path = Path(path)
    if _is_special(path):  # a rename would put a file in the place of /dev/null or a pipe
        _write_into(path, data)
        return
    with _temporary(path, data, mode) as temporary:
        os.replace(temporary, path)
    sync_directory(path.parent)


def _write_into(path: Path, data: bytes) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from None


def _is_special(path: Path) -> bool:
    """A device, a pipe or a socket, also behind a link as /dev/stdout is one."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def require_writable(path: Path) -> None:
    """InputError unless a file can be put there, or replaced."""
    if path.exists() and not path.is_file():
        kind = "is a folder; name a file" if path.is_dir() else "is not a regular file"
        raise InputError(f"{path}: {kind}")
    if is_descriptor(path):
        raise InputError(f"{path}: is a file that is open already; name the file itself")
    if _is_of_a_run(path):
        raise InputError(
            f"{path}: belongs to a run, which is nothing without it; name another file"
        )
    if not path.parent.is_dir():
        raise InputError(f"{path}: {path.parent}: no such folder")
    with _temporary(path, b"", 0o600):
        pass


def remove_result(path: Path) -> None:
    """Removes what an earlier command reported there, JSON of this harness or JUnit XML: it must
    not stand for a command that ends before it has a result. Any other file stays.
    """
    if not path.is_file() or is_descriptor(path) or _is_of_a_run(path):
        return
    start = read_head(path, 200)
    if b'"schema": "ab-' in start or b'<testsuite name="run-ab" ' in start:
        remove(path)


def _is_of_a_run(path: Path) -> bool:
    return path.is_file() and path.with_name("plan.json").is_file()


def is_descriptor(path: Path) -> bool:
    """Whether this is a name of something open, as /dev/stdout is, whose place in /dev a rename
    would take.
    """
    for _ in range(8):  # links to links
        folder = os.path.realpath(path.parent)
        if re.fullmatch(r"/proc/\d+(/task/\d+)?/fd", folder):
            return True
        try:
            path = Path(folder, os.readlink(path))
        except OSError:
            return False
    return False


def read_head(path: Path, size: int) -> bytes:
    """The first bytes of a regular file."""
    fd = open_regular(path)
    try:
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def publish_once(path: Path | str, data: bytes) -> None:
    """Puts a read-only file in place for good. The same bytes there already are fine, others are a
    GateRefusal.
    """
    path = Path(path)
    with _temporary(path, data, 0o444) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            _require_same(path, data)
    sync_directory(path.parent)


def make_directory(path: Path | str) -> None:
    """Creates a directory and its missing parents, durably."""
    path = Path(path)
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir()
    except OSError as e:
        if not path.is_dir():  # nobody else made it meanwhile
            raise InputError(f"{path}: cannot be made: {e.strerror}") from None
    sync_directory(path.parent)


def remove(path: Path | str) -> None:
    """Removes a file, durably."""
    path = Path(path)
    try:
        path.unlink()
    except OSError as e:
        raise InputError(f"{path}: cannot be removed: {e.strerror}") from None
    sync_directory(path.parent)


def sync_directory(path: Path | str) -> None:
    """Makes the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sha256_descriptor(fd: int, name: str) -> tuple[Digest, int]:
    state, buffer, size = hashlib.sha256(), bytearray(CHUNK_BYTES), 0
    view = memoryview(buffer)
    try:
        while count := os.preadv(fd, [buffer], size):
            state.update(view[:count])
            size += count
    except OSError as e:
        raise InputError(f"{name}: {e.strerror}") from None
    if size == 0:
        raise InputError(f"{name}: the file is empty")
    return Digest(state.hexdigest()), size


@contextlib.contextmanager
def _temporary(path: Path, data: bytes, mode: int) -> Iterator[str]:
    """A durable file beside ``path`` with these bytes; gone afterwards unless the block renamed
    it.
    """
    try:
        fd, name = tempfile.mkstemp(prefix=f"{TEMPORARY}{path.name}-", dir=path.parent)
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from None
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        yield name
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _require_same(path: Path, data: bytes) -> None:
    try:
        found = read_regular(path, follow=False, limit=max(len(data), LARGEST_TEXT))
    except InputError as e:
        raise GateRefusal(str(e)) from None
    if found != data:
        raise GateRefusal(
            f"{path}: is already there with other bytes: expected sha256:"
            f"{hashlib.sha256(data).hexdigest()}, found sha256:{hashlib.sha256(found).hexdigest()}"
        )


def _is_link(path: Path | str, dir_fd: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except OSError:
        return False
