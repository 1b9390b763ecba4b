"""Loads the very bytes that were hashed: an inherited descriptor, through /proc/self/fd.

A process loads one library and no second one: glibc answers a second ``dlopen`` of the same name
with the first library, and merges GNU_UNIQUE statics of two versions whatever RTLD_LOCAL says.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from pyharness.errors import GateRefusal, InputError, LibraryFailure
from pyharness.files import read_descriptor
from pyharness.host.elf import read_elf
from pyharness.values import SHA256_OF_NOTHING, Digest

_CHUNK = 1 << 20
_loaded: list[Digest] = []


@dataclass(frozen=True)
class Loaded:
    library: ctypes.CDLL
    sha256: Digest
    size_bytes: int
    mapped: str  # the file the operating system mapped, "" where it does not say


def load(fd: int, expected: Digest, size_bytes: int) -> Loaded:
    """Hash the descriptor's bytes from offset 0, refuse another digest, load exactly those."""
    verify(fd, expected, size_bytes)
    if _loaded:
        raise LibraryFailure(
            f"this process holds library {_loaded[0].short} already; another needs its own"
        )
    _require_whole(fd, expected)
    _loaded.append(expected)
    path = f"/proc/self/fd/{fd}"
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as e:
        reason = str(e).replace(path, f"library {expected.short}")
        raise LibraryFailure(f"cannot load: {' '.join(reason.split())}") from None
    return Loaded(library, expected, size_bytes, mapped_file(fd))


def _require_whole(fd: int, expected: Digest) -> None:
    """The system's loader maps what the headers say, and dies where a cut file has no byte for
    it.
    """
    try:
        read_elf(read_descriptor(fd, "library"), f"library {expected.short}")
    except InputError as e:
        raise LibraryFailure(str(e)) from None


def verify(fd: int, expected: Digest, size_bytes: int) -> None:
    """GateRefusal unless the descriptor holds these bytes. Its offset is not used and not moved."""
    digest, size = hashlib.sha256(), 0
    try:
        while chunk := os.pread(fd, _CHUNK, size):
            digest.update(chunk)
            size += len(chunk)
    except OSError as e:
        raise GateRefusal(f"cannot read the library from descriptor {fd}: {e.strerror}") from None
    found = digest.hexdigest()
    if found == SHA256_OF_NOTHING:
        raise GateRefusal(f"the library on descriptor {fd} is empty, expected {expected}")
    if found != expected.hex:
        raise GateRefusal(
            f"the library has sha256:{found}, expected {expected}; nothing was loaded"
        )
    if size != size_bytes:
        raise GateRefusal(
            f"the library has {size} bytes, expected {size_bytes}; nothing was loaded"
        )


def mapped_file(fd: int) -> str:
    """The name under which the operating system has this descriptor's file mapped. LibraryFailure
    when the code in memory is not the file's.
    """
    info = os.fstat(fd)
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return _from_dllist(fd)
    name = ""
    for line in maps.splitlines():
        # start-end perms offset major:minor inode path; the path may hold spaces
        m = re.match(r"(\w+)-(\w+) (\S+) (\w+) (\w+):(\w+) (\d+)\s+(\S.*)", line)
        device = os.makedev(int(m[5], 16), int(m[6], 16)) if m else None
        if m and (device, int(m[7])) == (info.st_dev, info.st_ino):
            name = m[8]
            if "x" in m[3] and "r" in m[3]:  # never relocated: exactly the file's bytes
                _check_code(fd, int(m[1], 16), int(m[2], 16), int(m[4], 16))
    return name or _from_dllist(fd)


def _check_code(fd: int, start: int, end: int, offset: int) -> None:
    for at in range(0, end - start, _CHUNK):
        file = os.pread(fd, min(_CHUNK, end - start - at), offset + at)
        if ctypes.string_at(start + at, len(file)) != file:
            raise LibraryFailure(
                "the code in memory is not that of the library's file; if it has text relocations, "
                "build it with -fPIC"
            )


def _from_dllist(fd: int) -> str:
    if sys.version_info < (3, 14):
        return ""
    return next((name for name in ctypes.util.dllist() if name == f"/proc/self/fd/{fd}"), "")
