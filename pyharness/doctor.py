"""``doctor``: what of this machine and this checkout a run rests on, one line each.

What can be tried is tried: a library counts as usable when a worker has taken a step with it.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyharness import device, gate
from pyharness.archive import fsck
from pyharness.commands import baseline_reference, no_such_library
from pyharness.config import Settings
from pyharness.errors import Exit, HarnessError
from pyharness.messages import printable
from pyharness.report.text import size
from pyharness.runner.local import take_a_step
from pyharness.stale import stale
from pyharness.values import to_json

Status = Literal["ok", "absent", "broken"]  # absent: something does without it
ISA_FLAGS = {
    "portable": (),
    "avx2": ("avx2", "fma", "f16c"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"),
}
PACKAGES = {"numpy": True, "click": True, "rich": True, "tokenizers": False}  # needed or not
TOOLS = {
    "cmake": "make native takes the wheel of it",
    "ninja": "make native takes the wheel of it",
    "skopeo": "only for copying the archive with container tools",
    "nvcc": "no CUDA library can be built here",
}


@dataclass(frozen=True)
class Check:
    name: str
    status: Status
    told: str  # one line: what was found, and what to do about it
    exit_code: Exit = Exit.SAME  # of a run that has to do with it


def doctor(settings: Settings, *, as_json: bool = False) -> int:
    """Exits 0 when a run with these settings can work, else as that run would."""
    found = []
    for check in checks(settings):
        found.append(check)
        if not as_json:
            print(f"{check.status:<7} {check.name:<18} {printable(check.told)}", flush=True)
    code = next((c.exit_code for c in found if c.exit_code), Exit.SAME)
    if as_json:
        told = {"schema": "ab-doctor/1", "exit_code": int(code), "checks": to_json(found)}
        print(json.dumps(told, indent=1))
    else:
        reasons = [c.name for c in found if c.exit_code]
        print(f"exit {int(code)}: " + (f"see {', '.join(reasons)}" if code else "a run can work"))
    return code


def checks(settings: Settings) -> Iterator[Check]:
    yield _python()
    yield from (_package(name, needed) for name, needed in PACKAGES.items())
    yield _compiler()
    yield from (_tool(name, without) for name, without in TOOLS.items())
    yield _sealing()
    yield from _instruction_sets()
    yield _gpu()
    yield _archive(settings)
    yield _baseline(settings)
    yield from _libraries(settings)
    yield _folder(settings["out"])


# ---- programs ------------------------------------------------------------------------------------


def _python() -> Check:
    told = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < (3, 11) or sys.platform != "linux":
        return Check("python", "broken", f"{told}: needs 3.11 or later on Linux", Exit.FAILED)
    return Check("python", "ok", told)


def _package(name: str, needed: bool) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        if needed:
            return Check(name, "broken", f"not installed: pip install {name}", Exit.FAILED)
        return Check(name, "absent", "not installed: --text reads bytes only")


def _compiler() -> Check:
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        if path := shutil.which(name):
            return Check("compiler", "ok", f"{_version(path)}, {path}")
    return Check("compiler", "absent", "none: no library can be built here")


def _tool(name: str, without: str) -> Check:
    beside = Path(sys.executable).with_name(name)  # a wheel in the same environment
    if path := shutil.which(name) or (str(beside) if beside.exists() else None):
        return Check(name, "ok", f"{_version(path)}, {path}")
    return Check(name, "absent", f"not found: {without}")


def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as e:
        return f"does not run ({e.__class__.__name__})"
    numbers = re.findall(r"\d+\.\d+(?:\.\d+)*", done.stdout)
    return numbers[0] if numbers else "no version"


# ---- the machine ---------------------------------------------------------------------------------


def _sealing() -> Check:
    """How the gate keeps the bytes that it hashed from changing before they are loaded."""
    try:
        fd = gate.sealable_memory("doctor")
        try:
            gate.forbid_writes(fd)
        finally:
            os.close(fd)
    except gate.NoMemfdError as e:
        return Check("sealing", "absent", f"no memfd ({e}): a private copy takes its place")
    return Check("sealing", "ok", "libraries are loaded from sealed memory")


def _instruction_sets() -> Iterator[Check]:
    line = re.search(r"^flags\s*:(.*)$", _cpuinfo(), re.MULTILINE)
    have = set(line[1].split()) if line else set()
    for name, needed in ISA_FLAGS.items():
        lacks = [flag for flag in needed if flag not in have]
        if lacks:
            yield Check(f"cpu {name}", "absent", f"this processor lacks {', '.join(lacks)}")
        else:
            yield Check(f"cpu {name}", "ok", " ".join(needed) or "every processor")


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _gpu() -> Check:
    with device.open_gpu(os.environ.get("CUDA_VISIBLE_DEVICES", "")) as gpu:
        if gpu is not None:
            facts = gpu.facts()
            return Check("gpu", "ok", f"{facts['name']}, driver {facts['driver']}")
    return Check("gpu", "absent", device.missing("cuda"))


def _folder(out: Path) -> Check:
    at = next(p for p in (out, *out.parents) if p.exists())
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        return Check("runs", "broken", f"{out}: cannot be written", Exit.USAGE)
    return Check("runs", "ok", f"{out}, {size(shutil.disk_usage(at).free)} free")


# ---- libraries -----------------------------------------------------------------------------------


def _archive(settings: Settings) -> Check:
    archive, pin = settings["archive"], settings["pin"]
    try:
        report = fsck.verify(archive, pin, deep=False)
    except HarnessError as e:
        return Check("archive", "broken", str(e), e.exit_code)
    told = f"{report.libraries} libraries, {report.entries} log entries, {report.pinned} pinned"
    if report.unpinned:
        told += f": {fsck.HOW_TO_FINISH}"
    return Check("archive", "ok", f"{told}, root {report.root[:12]}")


def _baseline(settings: Settings) -> Check:
    try:
        reference = baseline_reference(settings["baseline"])
        with gate.open_baseline(
            settings["archive"], settings["pin"], reference, settings["backend"]
        ) as library:
            return _tried("baseline", library, library.label or library.digest.short, needed=True)
    except HarnessError as e:
        return Check("baseline", "broken", str(e), e.exit_code)


def _libraries(settings: Settings) -> Iterator[Check]:
    """The candidate, and what else was built."""
    candidate: Path = settings["candidate"]
    if candidate.exists():
        yield _library("candidate", candidate, settings.root, needed=True)
    else:
        yield Check("candidate", "broken", no_such_library(candidate), Exit.USAGE)
    for path in sorted(settings.root.glob("build/*/libvllm_cuda.so")):
        if path != candidate:
            yield _library(f"built {path.parent.name}", path, settings.root, needed=False)


def _library(name: str, path: Path, root: Path, *, needed: bool) -> Check:
    try:
        with gate.open_candidate(path) as library:
            tried = _tried(name, library, str(path), needed=needed)
        old = stale(path, root).removeprefix(f"{path}: ")
        return dataclasses.replace(tried, told=f"{tried.told}; {old}") if old else tried
    except HarnessError as e:
        return Check(name, "broken", str(e), e.exit_code if needed else Exit.SAME)


def _tried(name: str, library: gate.SealedLibrary, place: str, *, needed: bool) -> Check:
    """One step of a tiny model in a worker of its own."""
    if why := device.missing(library.backend):
        told = f"{place}, {library.digest.short}, {size(library.size_bytes)}: {why}"
        return Check(name, "broken", told, Exit.FAILED if needed else Exit.SAME)
    result = take_a_step(library)
    facts = result.library
    told = f"{place}, {library.digest.short}, {size(library.size_bytes)}"
    if facts:
        built = facts.build_info
        words = [str(built.get("backend", "")), ", ".join(built.get("architectures", ()))]
        lacks = f"lacks {len(facts.missing)} optional entries" if facts.missing else ""
        told = ", ".join(filter(None, (told, *words, facts.revision, lacks)))
    if result.status == "done":
        return Check(name, "ok", told)
    reason = f"{told}: {result.reason}"
    return Check(name, "broken", reason, Exit.FAILED if needed else Exit.SAME)
