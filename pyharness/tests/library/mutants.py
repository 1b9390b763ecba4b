"""The CPU library built from its sources with planted faults. -O1: that changes no bit."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from pyharness.tests.library.sessions import ROOT

NATIVE = ROOT / "native"
COMMON = "api model/config model/weights model/model model/forward cpu/backend cpu/pool cpu/isa"
UNITS = (*COMMON.split(), "cpu/isa_portable")
VECTOR = {
    "cpu/isa_avx2": ("-mavx2", "-mfma", "-mf16c"),
    "cpu/isa_avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
        *("-mavx2", "-mfma", "-mf16c"),
    ),
}
FLAGS = (
    *("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-gnu-unique"),
)


class Edit(NamedTuple):
    """A text of a source file that occurs once, and what takes its place."""

    file: str  # in native/
    old: str
    new: str


@functools.cache
def compiler() -> str | None:
    return next((c for c in ("c++", "g++") if shutil.which(c)), None)


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    info = folder / "generated"
    info.mkdir()
    (info / "build_info.h").write_text(
        '#define VCUDA_BUILD_INFO "\\"compiler\\": \\"\\", \\"flags\\": \\"mutant\\", '
        '\\"revision\\": \\"\\", \\"dirty\\": true"\n'
    )
    return folder


def _units() -> dict[str, tuple[str, ...]]:
    plain: dict[str, tuple[str, ...]] = {unit: () for unit in UNITS}
    return plain | VECTOR


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]


def _compile(tree: Path, unit: str, out: Path) -> Path:
    found = compiler()
    assert found is not None
    out.parent.mkdir(parents=True, exist_ok=True)
    includes = (f"-I{tree}/include", f"-I{tree}", f"-I{_folder() / 'generated'}")
    source = str(tree / f"{unit}.cpp")
    _run(found, *FLAGS, *_units()[unit], *includes, "-c", source, "-o", str(out))
    return out


@functools.cache
def _objects() -> dict[str, Path]:
    """Of the sources as they are."""
    with ThreadPoolExecutor(2) as pool:
        made = {u: pool.submit(_compile, NATIVE, u, _folder() / f"sound/{u}.o") for u in _units()}
    return {unit: future.result() for unit, future in made.items()}


@functools.cache
def build(*edits: Edit) -> Path:
    """The library with these edits; without any it is a sound one."""
    objects = dict(_objects())
    number = len(list(_folder().glob("*.so")))
    if edits:
        tree = _folder() / f"tree{number}"
        shutil.copytree(NATIVE, tree, ignore=shutil.ignore_patterns("cuda", "tests", "tools"))
        for file, old, new in edits:
            text = (tree / file).read_text()
            assert text.count(old) == 1, f"{file}: {text.count(old)} times {old!r}"
            (tree / file).write_text(text.replace(old, new))
        for unit in sorted({file.removesuffix(".cpp") for file, _, _ in edits}):
            objects[unit] = _compile(tree, unit, _folder() / f"mutant{number}/{unit}.o")
    library = _folder() / f"{number}.so"
    found = compiler()
    assert found is not None
    exports = f"-Wl,--version-script={NATIVE / 'exports.map'}"
    link = (found, "-shared", exports, "-static-libgcc", "-static-libstdc++")
    _run(*link, *map(str, objects.values()), "-lpthread", "-o", str(library))
    return library
