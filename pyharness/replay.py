"""Doing a recorded run again: the libraries found by their digests, and every arm's digests held
against the record.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

from pyharness import device, gate
from pyharness.app import Library
from pyharness.config import Settings
from pyharness.errors import Exit, GateRefusal, InputError
from pyharness.files import sha256_file
from pyharness.host.script import recorded_rows
from pyharness.inputs.watch import InputFile, input_file
from pyharness.jobs import ArmRecord
from pyharness.plan import Job
from pyharness.record import LibraryRecord, Record
from pyharness.values import NOT_RUN, Arm

MOST_WORKERS = 1024
LONGEST_S = 1e7  # of a time-out


def with_candidate(before: Record, path: Path | None) -> Record:
    """The record, with its candidate at the place where it is now. GateRefusal unless it is the
    one of the run.
    """
    library = before.libraries.get("candidate")
    if path is None or library is None:
        return before
    if (found := sha256_file(path)[0]) != library.digest:
        raise GateRefusal(
            f"{path}: expected {library.digest}, the candidate of {before.run}, found {found}"
        )
    moved = dataclasses.replace(library, origin=os.path.abspath(path))
    return dataclasses.replace(before, libraries={**before.libraries, "candidate": moved})


def open_libraries(stack: ExitStack, before: Record, settings: Settings) -> dict[Arm, Library]:
    """Each library out of the archive, or from its recorded path if it is still the same one."""
    if missing := [arm for arm in get_args(Arm) if arm not in before.libraries]:
        raise InputError(f"the record of {before.run} names no {missing[0]} library")
    opened: dict[Arm, Library] = {}
    for arm in get_args(Arm):
        hint = "; say where it is with --candidate" if arm == "candidate" else ""
        library = stack.enter_context(_open(before.libraries[arm], settings, hint))
        device.require(library.backend, f"{arm} {library.label or library.origin}")
        opened[arm] = library
    return opened


def _open(library: LibraryRecord, settings: Settings, hint: str) -> gate.SealedLibrary:
    """GateRefusal where neither the archive's log nor the recorded path leads to its bytes."""
    try:
        return gate.open_baseline(settings["archive"], settings["pin"], str(library.digest))
    except (GateRefusal, InputError) as e:
        archived = str(e)
    path = Path(library.origin)
    if path.is_file() and _is_outside(path, settings["archive"]):
        try:
            return gate.open_candidate(path, library.digest)
        except GateRefusal as e:
            raise GateRefusal(f"{e}{hint}") from None
    raise GateRefusal(
        f"the library {library.digest} cannot be found again: {archived}; nor is it at {path}{hint}"
    )


def _is_outside(path: Path, archive: Path) -> bool:
    """A blob of the archive is only to be had through its log."""
    return not path.resolve().is_relative_to(archive.resolve())


def check_inputs(before: Record) -> tuple[InputFile, ...]:
    """The files behind models and tokens, read again. InputError unless each has its recorded
    bytes. Tokens are in the plan itself.
    """
    files = tuple(input_file(Path(fact.name)) for fact in before.inputs)
    for fact, file in zip(before.inputs, files, strict=True):
        if (found := file.fact.sha256) != fact.sha256:
            raise InputError(
                f"{fact.name}: is not the file of this run: expected {fact.sha256}, found {found}"
            )
    return files


def check_plans(before: Record) -> None:
    """InputError unless the jobs are such as this harness plans: whoever wrote the record."""
    jobs = before.suite.jobs
    if not 1 <= before.workers <= MOST_WORKERS or not jobs:
        raise InputError(
            f"the record of {before.run} has {len(jobs)} jobs, {before.workers} workers"
        )
    if len({job.id for job in jobs}) != len(jobs):
        raise InputError(f"the record of {before.run} names a job twice")
    for job in jobs:
        if reason := _strange(job):
            raise InputError(f"the record of {before.run}: {job.id}: {reason}")


def _strange(job: Job) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._/-]{1,200}", job.id):
        return "not the name of a job"
    plans = (job.baseline, job.candidate, job.control.plan)
    found = [(plan.arm, plan.role) for plan in plans]
    if found != [("baseline", "arm"), ("candidate", "arm"), ("candidate", "control")]:
        return f"its arms are {found}"
    rows = {recorded_rows(plan.script) for plan in plans}
    if rows != {job.rows} or not 0 <= job.control.row < job.rows:
        return f"{job.rows} rows, its arms record {sorted(rows)}, the control changes another one"
    for plan in plans:
        numbers = [plan.mmax, plan.threads]
        wrong: list[int] = []  # tokens that the library must refuse: any 32-bit integer
        for op in plan.script:
            (wrong if op.kind == "refused" else numbers).extend(op.tokens)
        words = [op.number for op in plan.script]
        if (
            not all(0 <= n < 2**31 for n in numbers)
            or not all(-(2**31) <= n < 2**31 for n in wrong)
            or not all(0 <= n < 2**32 for n in words)
        ):
            return "a number is out of range"
        if not 0 < plan.timeout_s < LONGEST_S:
            return f"a time-out of {plan.timeout_s} s"
    return ""


def changes(before: Sequence[ArmRecord], after: Sequence[ArmRecord]) -> list[str]:
    """One line for each arm that ended otherwise."""
    found = {a.key: a for a in after}
    lines = []
    for arm in before:
        name = f"{arm.job} {arm.arm} {arm.role}"
        now = found.get(arm.key)
        if now is None:
            lines.append(f"{name}: was not run again")
        elif now.result.status != arm.result.status:
            why = now.result.reason or arm.result.reason
            lines.append(f"{name}: was {arm.result.status}, is {now.result.status}: {why}")
        else:
            lines += [f"{name}: {line}" for line in _file_changes(arm, now)]
    return lines


def reproduced(arms: Sequence[ArmRecord]) -> str:
    """What to say where nothing changed: only an arm that ended well has digests."""
    words = (NOT_RUN.rstrip(": ") if a.result.reason.startswith(NOT_RUN) else a.result.status
             for a in arms)  # fmt: skip
    count = Counter(words)
    others = [f"{count[word]} {word}" for word in sorted(count) if word != "done"]
    again = f"; as before, {', '.join(others)}" if others else ""
    return f"same: {count['done']} arms gave the recorded digests again{again}"


def _file_changes(before: ArmRecord, after: ArmRecord) -> list[str]:
    found = {f.name: f.sha256 for f in after.result.files}
    return [
        f"{f.name}: expected {f.sha256}, found {found.get(f.name, 'no such file')}"
        for f in before.result.files
        if found.get(f.name) != f.sha256
    ]


def exit_code(before: Sequence[ArmRecord], after: Sequence[ArmRecord]) -> Exit:
    """Of the replay: whether the record was reproduced, whatever its verdict was."""
    found = {a.key: a for a in after}
    both = [(arm, found[arm.key]) for arm in before if arm.key in found]
    if any(_file_changes(a, b) for a, b in both if a.result.status == b.result.status == "done"):
        return Exit.DIFFERS
    if any(a.result.status != b.result.status for a, b in both):
        return Exit.FAILED
    if len(both) != len(before) or not any(a.result.files for a, _ in both):
        return Exit.UNPROVED
    return Exit.SAME
