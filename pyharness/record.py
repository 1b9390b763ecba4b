"""The folder of a run: what was planned, everything needed to do it again, and, written last, the
verdict.

A run without ``verdict.json`` is unfinished and proves nothing, whatever else lies in its folder.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import platform
import re
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyharness.canonical import canonical_json
from pyharness.coverage import ModelCoverage
from pyharness.device import open_gpu
from pyharness.errors import InputError, NothingProved, UsageError
from pyharness.files import make_directory, read_regular, sha256_file, write_atomically
from pyharness.jobs import ArmRecord
from pyharness.plan import Job, Suite, again, arm_key
from pyharness.report import document
from pyharness.runner.environment import worker_environment
from pyharness.values import (
    ArmPlan,
    ArmResult,
    Digest,
    FileFact,
    JobStatus,
    LibraryFacts,
    from_json,
    to_json,
)
from pyharness.verdict import Verdict, conclude

SCHEMA = "ab-record/1"
RUN_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{6}")  # what ``new_run`` makes


@dataclass(frozen=True)
class LibraryRecord:
    digest: Digest
    size_bytes: int
    origin: str  # absolute path, or how the archive names it
    facts: LibraryFacts | None = None  # None: no worker could load it


@dataclass(frozen=True)
class Record:
    """Everything of a run but its verdict: what to do again, and what came of it."""

    run: str
    started: str  # UTC
    finished: str
    harness: str  # version
    sources: Digest  # of the harness's own modules
    argv: tuple[str, ...]
    revision: str  # git revision of the project, "" where there is none; "-dirty" with changes
    machine: dict[str, Any]
    environment: dict[str, str]  # what the workers saw
    libraries: dict[str, LibraryRecord]  # by arm
    inputs: tuple[FileFact, ...]  # every file behind the models and tokens, by absolute path
    workers: int
    suite: Suite
    arms: tuple[ArmRecord, ...]
    replay_of: str = ""
    coverage: tuple[ModelCoverage, ...] = ()
    schema: str = SCHEMA


def new_run(out: Path) -> Path:
    """A fresh folder ``<utc>-<id>``; names sort by time."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]  # milliseconds
    folder = out / f"{stamp}Z-{secrets.token_hex(3)}"
    try:
        make_directory(folder)
    except OSError as e:
        raise InputError(f"{folder}: cannot be made: {e.strerror or e}") from None
    return folder


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def write_plan(folder: Path, suite: Suite) -> None:
    _write(folder / "plan.json", {"schema": "ab-plan/1", **to_json(suite)})


def write_record(folder: Path, record: Record) -> None:
    _write(folder / "record.json", to_json(record))


def finish(folder: Path, files: dict[str, bytes], text: dict[str, Any]) -> None:
    """Everything that is made of the verdict, and the verdict last: where it lies, everything else
    lies beside it.
    """
    for name, data in files.items():
        write_atomically(folder / name, data)
    write_atomically(folder / "verdict.json", document.dumps(text))


def _write(path: Path, value: Any) -> None:
    write_atomically(path, canonical_json(value, floats=True) + b"\n")


# ---- reading back --------------------------------------------------------------------------------


def find_run(out: Path, name: str) -> Path:
    """A run by its folder, its name, the beginning of its name, or ``last``. UsageError unless it
    is one run.
    """
    if name and Path(name).is_dir():
        return Path(name).resolve()
    runs = run_folders(out)
    found = runs[:1] if name == "last" else [p for p in runs if p.name.startswith(name)]
    if len(found) != 1:
        why = "no run" if not found else f"{len(found)} runs"
        raise UsageError(f"{why} named {name!r} in {out}; give a folder, a name or 'last'")
    return found[0].resolve()


def run_folders(out: Path) -> list[Path]:
    """The folders of runs, newest first."""
    listed = out.iterdir() if out.is_dir() else ()
    return sorted((p for p in listed if RUN_NAME.fullmatch(p.name) and p.is_dir()), reverse=True)


def read_verdict(folder: Path) -> tuple[Verdict, dict[str, Any]]:
    """NothingProved for a run that did not finish, InputError for what is no run's folder."""
    path = folder / "verdict.json"
    if not path.is_file():
        if not RUN_NAME.fullmatch(folder.name) and not (folder / "plan.json").is_file():
            raise InputError(f"{folder}: is no run: it has neither plan.json nor verdict.json")
        raise NothingProved(f"{folder}: the run did not finish: it has no verdict.json")
    verdict, whole = document.read(read_regular(path), str(path))
    try:
        document.dumps(whole)  # it can be told again
        for library in whole["libraries"].values():
            from_json(dict[str, str], {k: library[k] for k in ("digest", "origin")})
            from_json(int, library["size_bytes"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(f"{path}: not a verdict: {type(e).__name__}: {e}") from None
    if conclude(verdict.jobs) != verdict:
        raise InputError(f"{path}: its exit code and summary do not follow from its jobs")
    return verdict, whole


def read_record(folder: Path) -> Record:
    """InputError unless it is a record."""
    path = folder / "record.json"
    return parse_record(read_regular(path), str(path))


def parse_record(data: bytes, name: str) -> Record:
    """A record from its bytes; InputError names it where they are none."""
    try:
        value = json.loads(data)
        canonical_json(value, floats=True)  # it can be written again: no NaN, nothing but text
        record = from_json(Record, value)
        if record.schema != SCHEMA:
            raise ValueError(f"schema is {record.schema!r}, not {SCHEMA}")
    except (ValueError, TypeError, RecursionError) as e:
        raise InputError(f"{name}: not a record: {' '.join(str(e).split())}") from None
    assert isinstance(record, Record)
    return record


def read_run(folder: Path) -> tuple[Verdict, dict[str, Any], Record]:
    """Verdict, document and record of a finished run. NothingProved unless they are of one run."""
    verdict, whole = read_verdict(folder)
    try:
        record = read_record(folder)
        files = {name: str(sha256_file(folder / name)[0]) for name in ("plan.json", "record.json")}
    except InputError as e:
        raise NothingProved(f"its verdict cannot be held against its record: {e}") from None
    of_record = record.run, files, [job.id for job in record.suite.jobs]
    if of_record != (whole.get("run"), whole.get("files"), [job.id for job in verdict.jobs]):
        raise NothingProved(f"{folder}: its verdict and its record do not belong together")
    for job, told in zip(record.suite.jobs, verdict.jobs, strict=True):
        if told.status is JobStatus.SAME and not _bears_out(job, record):
            raise NothingProved(
                f"{folder}: {job.id} is told to be the same, and the digests in its record are not"
            )
    return verdict, whole, record


def _bears_out(job: Job, record: Record) -> bool:
    """Whether the digests of its arms are those of a job that is the same: four equal, and a
    control that is not.
    """
    results = {arm.key: arm.result for arm in record.arms}

    def files(plan: ArmPlan) -> list[tuple[str, Digest]]:
        library = record.libraries.get(plan.arm)
        result = results.get(arm_key(plan, library.digest)) if library else None
        return [(f.name, f.sha256) for f in (result or ArmResult("failed")).files]

    arms = [files(p) for plan in (job.baseline, job.candidate) for p in (plan, again(plan))]
    control = files(job.control.plan)
    return bool(control) and all(arms) and all(a == arms[0] != control for a in arms)


# ---- what is true of this machine ----------------------------------------------------------------


def environment_of(plan: ArmPlan) -> dict[str, str]:
    """What every worker sees, without what only says where programs and temporary files are."""
    made = worker_environment(dataclasses.replace(plan, mmax=0))
    return {name: value for name, value in made.items() if name not in ("PATH", "TMPDIR")}


def machine() -> dict[str, Any]:
    """What a run was made on: a replay elsewhere may differ in speed, never in a bit."""
    import numpy as np

    return {
        "system": platform.system(),
        "release": platform.release(),
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "numpy": np.__version__,
    } | _gpu()


def _gpu() -> dict[str, str]:
    """The device that a CUDA library runs on, where there is one."""
    with open_gpu(os.environ.get("CUDA_VISIBLE_DEVICES", "")) as gpu:
        facts = gpu.facts() if gpu else {}
    return {key: str(facts[name]) for key, name in (("gpu", "name"), ("driver", "driver")) if facts}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


def sources_digest() -> Digest:
    """Of every module of the harness but its tests. Workers import them anew: they must not change
    during a run.
    """
    package = Path(__file__).parent
    state = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] != "tests":
            data = path.read_bytes()
            state.update(f"{name.as_posix()}\0{len(data)}\0".encode() + data)
    return Digest(state.hexdigest())


def revision(root: Path) -> str:
    """The checkout's revision, "" outside of one."""

    def git(*words: str) -> str:
        command = ["git", "-c", f"safe.directory={root}", *words]
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
