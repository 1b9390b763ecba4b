"""Input files as they were when they were hashed, held against what they are when a run ends.

Workers open an input by its path, each anew. What they read is what was hashed only as long as the
path leads to the same file and nobody has written to that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyharness.errors import NothingProved
from pyharness.files import open_regular, sha256_file
from pyharness.values import FileFact

# device, inode, size, time of the last write, time of the last change of the inode
Mark = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class InputFile:
    """``marks``: of the file, then of each symbolic link in its name, which may be turned and
    turned back.
    """

    fact: FileFact
    marks: tuple[Mark, ...]


def input_file(path: Path) -> InputFile:
    """Digest and size of a file, read once; InputError if it is empty or unreadable."""
    links = _links(path)
    fd = open_regular(path)
    try:
        mark = _mark(os.fstat(fd))  # before the first byte is read: a write meanwhile shows too
        digest, size_bytes = sha256_file(fd)
    finally:
        os.close(fd)
    return InputFile(FileFact(str(path), digest, size_bytes), (mark, *links))


def require_unchanged(files: Iterable[InputFile]) -> None:
    """NothingProved where one of them is no longer the file that was hashed."""
    for file in files:
        path = Path(file.fact.name)
        try:
            now = _mark(os.stat(path)), *_links(path)
        except OSError:
            now = ()
        if now != file.marks:
            raise NothingProved(f"{path}: inputs changed while the run read them: run it again")


def _links(path: Path) -> tuple[Mark, ...]:
    names = (path, *path.parents)
    return tuple(_mark(os.lstat(name)) for name in names if name.is_symlink())


def _mark(info: os.stat_result) -> Mark:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
