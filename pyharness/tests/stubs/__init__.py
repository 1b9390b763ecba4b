"""Builds the stub library with a planted fault."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("stub.c")
HEADERS = Path(__file__).parents[3] / "native" / "include"


def compiler() -> str:
    """The C compiler of this machine; a C++ compiler that builds the library brings one."""
    found = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    assert found, "the tests of the host need a C compiler"
    return found


def build_stub(
    folder: Path, fault: str = "", *, without: Sequence[str] = (), flags: Sequence[str] = ()
) -> Path:
    """``without``: entries that the library is to lack. ``flags``: further arguments of the compiler."""
    name = "-".join(("stub", fault, *without, *flags)).replace("/", "_")
    path = folder / f"{name[:100]}-{len(list(folder.iterdir()))}.so"
    command = [
        *(compiler(), "-std=gnu99", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"),
        *("-Wall", "-Werror", "-Wno-unused-result", f"-I{HEADERS}"),
        f'-DFAULT="{fault}"',
        *(f"-D{entry}=renamed_{entry}" for entry in without),
        *(str(SOURCE), "-o", str(path), *flags),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path
