"""Everything that is told of a run, in one document: its record, the dumps of its red jobs, the
archive's history.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pyharness.config import Settings
from pyharness.errors import GateRefusal, InputError
from pyharness.files import sha256_file
from pyharness.jobs import ArmRecord
from pyharness.plan import Job, arm_key
from pyharness.record import LibraryRecord, Record
from pyharness.report.document import document
from pyharness.report.maps import difference_grids
from pyharness.report.trajectory import trajectory
from pyharness.values import Arm, JobStatus, Op, to_json
from pyharness.verdict import Verdict

ARMS: tuple[Arm, ...] = ("baseline", "candidate")
GRIDS = 8  # red jobs with grids of cells: as many as the page tells in full, and some


def gather(record: Record, verdict: Verdict, folder: Path, settings: Settings) -> dict[str, Any]:
    """The document of a run whose plan and record lie in its folder."""
    arms = {arm.key: arm for arm in record.arms}
    jobs = {job.id: _job(job, record, arms) for job in record.suite.jobs}
    differ = [job for job in verdict.jobs if job.status is JobStatus.DIFFERS]
    for told in (jobs[job.id] for job in differ[:GRIDS]):
        names = [dump["folder"] for dump in told["dumps"].values()]
        if all(names):
            told["grids"] = to_json(difference_grids(*(folder / name for name in names)))
    history, why = _history(settings)
    facts = {
        "started": record.started,
        "finished": record.finished,
        "harness": record.harness,
        "revision": record.revision,
        "command": shlex.join(["run-ab", *record.argv]),
        "replay": _replay(settings, folder),
        "replay_of": record.replay_of,
        "machine": record.machine,
        "environment": record.environment,
        "inputs": to_json(record.inputs),
        "files": {
            name: str(sha256_file(folder / name)[0]) for name in ("plan.json", "record.json")
        },
        "archive": history,
    }
    libraries = {arm: _library(lib) for arm, lib in record.libraries.items()}
    notes = (*record.suite.notes, *why)
    return document(verdict, record.run, libraries, notes, jobs=jobs, facts=facts)


def _library(library: LibraryRecord) -> dict[str, Any]:
    told: dict[str, Any] = {
        "digest": str(library.digest),
        "size_bytes": library.size_bytes,
        "origin": library.origin,
    }
    if facts := library.facts:
        told |= {
            "abi_version": facts.abi_version,
            "build_info": facts.build_info,
            "symbols": list(facts.symbols),
            "missing": list(facts.missing),
            "mapped": facts.mapped,
        }
    return told


def _job(job: Job, record: Record, arms: dict[str, ArmRecord]) -> dict[str, Any]:
    pair = {
        arm: arms[arm_key(plan, record.libraries[arm].digest)]
        for arm, plan in zip(ARMS, (job.baseline, job.candidate), strict=True)
    }
    return {
        "model": job.candidate.model.slug,
        "kind": job.kind,
        "m": job.m,
        "case": job.case,
        "prefix": job.prefix,
        "rows": job.rows,
        "batches": _batches(job.candidate.script),
        # Runs that several jobs share count for the first of them: all jobs add up to all runs.
        "seconds": round(sum(a.result.wall_s for a in arms.values() if a.job == job.id), 3),
        "dumps": {
            arm: {"folder": made.folder, "files": to_json(made.result.files)}
            for arm, made in pair.items()
            if made.result.status == "done"
        },
    }


def _batches(script: tuple[Op, ...]) -> list[list[int]]:
    """Recorded rows that an M-row step of the candidate made: [first, M] of each."""
    batches, at = [], 0
    for op in script:
        if op.record:
            batches += [[at, len(op.tokens)]] if op.kind == "step_m" else []
            at += len(op.tokens)
    return batches


def _history(settings: Settings) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The archive's libraries. The gate has verified them before the run; if that no longer holds,
    the run stands and the document says so.
    """
    if not settings["archive"].is_dir():
        return [], ()
    try:
        return trajectory(settings["archive"], settings["pin"]), ()
    except (GateRefusal, InputError) as e:
        return [], (f"no history of the archive: {e}",)


def _replay(settings: Settings, folder: Path) -> str:
    """The command that does this run again, with the settings that are not the defaults."""
    own = [k for k, v in settings.values.items() if v.source != "default"]
    words = ["run-ab", "replay", str(folder) if "out" in own else folder.name]
    for key in ("archive", "pin"):
        words += [f"--{key}", str(settings[key])] if key in own else []
    return shlex.join(words)
