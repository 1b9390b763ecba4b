"""A library in this project's ``build/`` that is older than its sources: most likely the build was
forgotten, and a green line would be about the code of before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pyharness.values import BACKENDS

_SUFFIXES = {".c", ".cpp", ".cu", ".cuh", ".h", ".inc", ".map"}
_NO_PART = ("tests", "tools")  # folders of native/ that no library is made of
_MAKE = {"cpu": "`make native` builds it again", "cuda": "`make cuda` builds it again"}


def stale(library: Path, root: Path) -> str:
    """What is newer than the library, and what to do; "" where nothing is, or it lies elsewhere."""
    folder = Path(os.path.abspath(library)).parent
    if not folder.is_relative_to(root / "build"):
        return ""
    try:
        built = library.stat().st_mtime_ns
        newest = max(_sources(root / "native", folder.name), default=(0, root))
    except OSError:  # a file that goes away under this: somebody edits
        return ""
    if newest[0] <= built:
        return ""
    what = newest[1].relative_to(root)
    return f"{library}: is older than {what}: {_MAKE.get(folder.name, 'build it again')}"


def _sources(native: Path, build: str) -> Iterator[tuple[int, Path]]:
    """Time and path of each file that goes into the library of that build."""
    backend = "cuda" if build == "cuda" else "cpu"
    others = {*_NO_PART, *BACKENDS} - {backend}
    for path in native.rglob("*"):
        if path.suffix in _SUFFIXES and path.relative_to(native).parts[0] not in others:
            yield path.stat().st_mtime_ns, path
