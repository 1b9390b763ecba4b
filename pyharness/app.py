"""The pipeline: plan -> gate -> runner -> compare -> verdict -> record -> report. Each arrow is a
frozen value.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyharness
from pyharness import identity, leftovers, record
from pyharness.config import Settings
from pyharness.coverage import coverage_of
from pyharness.differences.investigate import Investigator
from pyharness.errors import NothingProved
from pyharness.inputs.watch import InputFile, require_unchanged
from pyharness.jobs import ArmRecord, run_jobs
from pyharness.plan import Suite
from pyharness.record import LibraryRecord, Record
from pyharness.report.files import files
from pyharness.report.gather import gather
from pyharness.runner.base import Runner, SealedLibrary
from pyharness.values import Arm, ArmResult, LibraryFacts
from pyharness.verdict import JobVerdict, Verdict, conclude


class Library(SealedLibrary, Protocol):
    """Verified bytes, and where they came from."""

    @property
    def origin(self) -> str: ...


@dataclass(frozen=True)
class Listener:
    """Who hears of progress."""

    job: Callable[[JobVerdict], None] = lambda verdict: None
    arm: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True)
class Outcome:
    folder: Path
    verdict: Verdict
    record: Record
    document: dict[str, Any]


def run(
    suite: Suite,
    libraries: Mapping[Arm, Library],
    inputs: tuple[InputFile, ...],
    settings: Settings,
    runner: Runner,
    *,
    workers: int,
    listener: Listener = Listener(),
    replay_of: str = "",
    trace: bool = True,
) -> Outcome:
    """Everything after the gate. The folder of the run has its verdict only when all of this is
    done. ``trace``: of a red job, look for the first operation that differs.
    """
    started, sources = record.now(), record.sources_digest()
    leftovers.sweep(settings["out"])
    folder = record.new_run(settings["out"])
    record.write_plan(folder, suite)
    with leftovers.living(folder):
        verdicts, arms = run_jobs(
            suite, libraries, runner, folder,
            workers=workers, on_job=listener.job, on_arm=listener.arm,
            look=Investigator(libraries, runner, folder, trace=trace),
        )  # fmt: skip
        if record.sources_digest() != sources:
            raise NothingProved("the harness's own files changed during the run: run it again")
        require_unchanged(inputs)
        verdict = conclude(verdicts)
        made = Record(
            run=folder.name,
            started=started,
            finished=record.now(),
            harness=pyharness.__version__,
            sources=sources,
            argv=tuple(sys.argv[1:]),
            revision=record.revision(settings.root),
            machine=record.machine(),
            environment=record.environment_of(suite.jobs[0].candidate),
            libraries=_library_records(libraries, arms),
            inputs=tuple(file.fact for file in inputs),
            workers=workers,
            suite=suite,
            arms=tuple(dataclasses.replace(a, result=_without_library(a.result)) for a in arms),
            replay_of=replay_of,
            coverage=coverage_of(suite.jobs, verdict.jobs),
        )
        record.write_record(folder, made)
        text = gather(made, verdict, folder, settings)
        record.finish(folder, files(text), text)
        return Outcome(folder, verdict, made, text)


def _without_library(result: ArmResult) -> ArmResult:
    """The record tells what each library is once, not with every arm."""
    return dataclasses.replace(result, library=None)


def _library_records(
    libraries: Mapping[Arm, Library], arms: tuple[ArmRecord, ...]
) -> dict[str, LibraryRecord]:
    seen: dict[str, LibraryFacts] = {a.arm: a.result.library for a in arms if a.result.library}
    made: dict[str, LibraryRecord] = {
        arm: LibraryRecord(lib.digest, lib.size_bytes, lib.origin, seen.get(arm))
        for arm, lib in libraries.items()
    }
    identity.check_loaded(made)
    return made
