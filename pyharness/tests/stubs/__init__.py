"""Builds the stub library with a planted fault, once for each fault and test process."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyharness.files import sha256_file
from pyharness.values import Digest

SOURCE = Path(__file__).with_name("stub.c")
HEADERS = Path(__file__).parents[3] / "native" / "include"


@dataclass(frozen=True)
class Sealed:
    """As the gate hands it out."""

    fd: int
    digest: Digest
    size_bytes: int


@functools.cache
def compiler() -> str:
    """The C compiler of this machine; a C++ compiler that builds the library brings one."""
    found = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    assert found, "the tests of the host need a C compiler"
    return found


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="stubs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def stub(fault: str = "", without: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> Path:
    """``without``: entries that the library is to lack. ``flags``: for the compiler."""
    path = _folder() / f"{len(list(_folder().iterdir()))}-{fault}.so"
    command = [
        *(compiler(), "-std=gnu99", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"),
        *("-Wall", "-Wno-unused-result", f"-I{HEADERS}"),
        f'-DFAULT="{fault}"',
        *(f"-D{entry}=renamed_{entry}" for entry in without),
        *(str(SOURCE), "-o", str(path), *flags),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


@contextlib.contextmanager
def sealed(path: Path) -> Iterator[Sealed]:
    """The file's bytes in a sealed memfd."""
    fd = os.memfd_create("stub", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, path.read_bytes())
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 15)  # seal, shrink, grow, write
        yield Sealed(fd, *sha256_file(path))
    finally:
        os.close(fd)
