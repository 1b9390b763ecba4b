"""Several jobs in one line: all cases of one M that are equal, all M that lack the same entries,
all jobs that were not run for one reason.

Of what is neither equal nor unsupported the first few of each status are told at once and in full,
further ones in short, all cases of one M in one line: a verdict below a thousand lines is not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyharness.differences.findings import runs_of
from pyharness.values import NOT_RUN, JobStatus
from pyharness.verdict import JobVerdict

# folder of the job's name, kind, M, case
_NAME = re.compile(r"(.*/)?(m1|(?:libs-)?(?:mt|rb))(\d*)(?:-(.+))?")
Name = tuple[str, str, str, str]
PLAIN = "plain"
FEW = 4  # jobs of each red status that are told in full


def name_of(job: JobVerdict) -> Name:
    match = _NAME.fullmatch(job.id)
    if match is None:  # of another harness: it makes no group
        return job.id, "", "", ""
    where, kind, m, case = match.groups(default="")
    return where, kind, m, case


@dataclass(frozen=True)
class Group:
    """Jobs that are told together: of one status and, unless they are the same, of one reason."""

    jobs: list[JobVerdict]
    full: bool = False  # one job, with everything that is known of it

    @property
    def status(self) -> JobStatus:
        return self.jobs[0].status

    @property
    def not_run(self) -> bool:
        return self.jobs[0].reason.startswith(NOT_RUN)


@dataclass
class Gathering:
    """Jobs in the order of a suite go in, groups come out as soon as no further job can join."""

    few: int | None = FEW  # None: every red job in full
    _told: Counter[JobStatus] = field(default_factory=Counter)
    _open: dict[tuple[str, ...], list[JobVerdict]] = field(default_factory=dict)

    def add(self, job: JobVerdict) -> list[Group]:
        where, kind, m, case = name_of(job)
        place = where, kind, m
        closed = [key for key in self._open if not _reaches(key, place)]
        groups = [Group(self._open.pop(key)) for key in closed]
        key: tuple[str, ...]
        if job.status is JobStatus.SAME:
            key = (*place, "", "")
        elif job.status is JobStatus.UNSUPPORTED:
            key = (where, kind, m if case else "", "lacks", job.reason)
        elif job.reason.startswith(NOT_RUN):
            key = _EVERYWHERE, job.reason
        elif self.few is None or self._told[job.status] < self.few:
            self._told[job.status] += 1
            return [*groups, Group([job], full=True)]
        else:
            key = (*place, job.status.value, job.reason)
        self._open.setdefault(key, []).append(job)
        return groups

    def rest(self) -> list[Group]:
        groups, self._open = [Group(jobs) for jobs in self._open.values()], {}
        return groups


_EVERYWHERE = "*"  # the key of jobs of any place


def _reaches(key: tuple[str, ...], place: tuple[str, str, str]) -> bool:
    """Whether a job of that place could join the group of that key."""
    return key[0] == _EVERYWHERE or (key[:2] == place[:2] and key[2] in ("", place[2]))


def group_name(jobs: Sequence[JobVerdict]) -> str:
    """``hybrid-tiny/p63/libs-mt2..8``, ``.../rb8``, ``.../rb8-keep1,keep7``"""
    names = [name_of(job) for job in jobs]
    where, kind, m, _ = names[0]
    if jobs[0].status is not JobStatus.UNSUPPORTED:
        return f"{where}{kind}{m}"
    if any(case for *_, case in names):
        return f"{where}{kind}{m}-{','.join(case for *_, case in names)}"
    return f"{where}{kind}{ranges([int(m) for _, _, m, _ in names if m])}"


def case_names(jobs: Sequence[JobVerdict]) -> str:
    """``plain singles twice keep1..3``"""
    counted: dict[str, list[int]] = {}
    for job in jobs:
        case = name_of(job)[3] or PLAIN
        stem = case.rstrip("0123456789")
        numbers = counted.setdefault(stem, [])
        if stem != case:
            numbers.append(int(case[len(stem) :]))
    return " ".join(stem + ranges(numbers) for stem, numbers in counted.items())


def ranges(numbers: Sequence[int]) -> str:
    """2, 3, 4, 8 -> ``2..4,8``"""
    return ",".join(str(a) if a == b else f"{a}..{b}" for a, b in runs_of(numbers))
