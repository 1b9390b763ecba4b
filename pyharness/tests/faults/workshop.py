"""Builds mutants of the library in a copy of native/, fast: only what a change reaches is compiled
again, without optimization beyond -O1, and of the instruction sets only the one that will run.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyharness.tests.faults.mutant import NATIVE, Mutant


class BuildFailed(Exception):
    """What the compiler said."""


@dataclass(frozen=True)
class Unit:
    """One translation unit: its compiler call without output, its object, what it includes."""

    source: Path
    command: tuple[str, ...]
    folder: Path
    object: Path

    @property
    def isa(self) -> str:
        """The instruction set whose functions it holds, "" for none."""
        stem = self.source.stem
        return stem.removeprefix("isa_") if stem.startswith("isa_") else ""

    def includes(self, file: Path) -> bool:
        words = self.object.with_suffix(".d").read_text(encoding="utf-8").split()
        return file in {(self.folder / word).resolve() for word in words}


class Workshop:
    """A copy of native/ in ``folder``, built once; ``build`` makes one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.native = folder.resolve(), folder.resolve() / "native"
        self._lock = threading.Lock()
        shutil.copytree(NATIVE, self.native, ignore=shutil.ignore_patterns("cuda", "tools"))
        (self.native / "tools").mkdir()
        for name in ("ulp.cpp", "ulp.h"):
            shutil.copyfile(NATIVE / "tools" / name, self.native / "tools" / name)
        self._objects = self.folder / "objects"
        self._objects.mkdir()
        self.units = self._configure()
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(lambda unit: _compile(unit, unit.object), self.units))
        self.unchanged = self.folder / "unchanged.so"
        self._link({}, self.unchanged)

    def _configure(self) -> list[Unit]:
        """The compiler calls, as CMake makes them."""
        build = self.folder / "cmake"
        cmake = _tool("cmake")
        _run([cmake, "-S", str(self.native), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
              "-DVCUDA_WERROR=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"])  # fmt: skip
        _run([cmake, "--build", str(build), "--target", "build_info"])
        units = []
        for entry in json.loads((build / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            if "-Dvllm_cuda_EXPORTS" not in words:
                continue
            at = words.index("-o")
            command = (*words[:at], *words[at + 2 :], "-O1", "-w")
            source = Path(entry["file"])
            made = self._objects / f"{source.stem}.o"
            units.append(Unit(source, command, Path(entry["directory"]), made))
        assert units, "CMake tells of no source of the library"
        return units

    def build(self, mutant: Mutant, out: Path, *others: Mutant) -> Path:
        """The mutant's library, with other faults beside its own; BuildFailed when it does not
        compile.
        """
        mutants = (mutant, *others)
        files = {(self.native / m.file).resolve() for m in mutants}
        with self._lock:
            before = {file: file.read_text(encoding="utf-8") for file in files}
            out.mkdir(parents=True)
            try:
                for m in mutants:
                    self._change(m)
                changed = {
                    u: out / u.object.name
                    for u in self.units
                    if any(self._reaches(u, self.native / m.file, m) for m in mutants)
                }
                with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                    list(pool.map(lambda pair: _compile(*pair), changed.items()))
            finally:
                for file, text in before.items():
                    file.write_text(text, encoding="utf-8")
        assert changed, f"{mutant.name}: {mutant.file} is part of no translation unit"
        library = out / "mutant.so"
        self._link(changed, library)
        return library

    def _change(self, mutant: Mutant) -> None:
        file = self.native / mutant.file
        text = file.read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, mutant.problem()
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")

    def _reaches(self, unit: Unit, file: Path, mutant: Mutant) -> bool:
        return unit.includes(file) and unit.isa in ("", mutant.isa)

    def _link(self, changed: dict[Unit, Path], out: Path) -> None:
        compiler = self.units[0].command[0]
        objects = [str(changed.get(unit, unit.object)) for unit in self.units]
        script = f"-Wl,--version-script={self.native / 'exports.map'}"
        _run([compiler, "-shared", "-pthread", "-Wl,-z,defs", script, *objects, "-o", str(out)])


def _compile(unit: Unit, made: Path) -> None:
    dependencies = ("-MMD", "-MF", str(made.with_suffix(".d")))
    _run([*unit.command, *dependencies, "-o", str(made)], unit.folder)


def _tool(name: str) -> str:
    """Of this environment, else of the system."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    assert found, f"{name} is missing: run make setup"
    return found


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if "error" in line]
        raise BuildFailed(lines[0] if lines else f"{command[0]} exits with {done.returncode}")
