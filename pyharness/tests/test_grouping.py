"""Lines of a run: every M has one, no job is left out, and what is red is told at once, the first
few of it in full.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.plan import Request, Workload, build
from pyharness.report.grouping import FEW, Gathering, Group, case_names, ranges
from pyharness.report.text import group_lines
from pyharness.values import NOT_RUN, Comparison, Difference, JobStatus, ModelSpec
from pyharness.verdict import JobVerdict

SUITE = build(
    [Workload(ModelSpec("synthetic", f, "tiny"), 512) for f in ("hybrid", "gdn")],
    Request(profile="full"),
)
IDS = [job.id for job in SUITE.jobs]
STATUSES = list(JobStatus)


UNLIKE = Difference("h_out.npy", "", (0, 1), "0x00000000", "0x00000001", "0.0", "1e-45", 1, 9)


def verdict(name: str, status: JobStatus, reason: str = "") -> JobVerdict:
    comparison = None
    if status in (JobStatus.SAME, JobStatus.DIFFERS):
        comparison = Comparison(status is JobStatus.SAME, 1000)
    if status is JobStatus.DIFFERS:
        comparison = Comparison(False, 1000, (UNLIKE,))
    return JobVerdict(name, status, reason, False, comparison)


def groups_of(verdicts: list[JobVerdict], few: int | None = FEW) -> list[Group]:
    gathering = Gathering(few)
    groups = [group for v in verdicts for group in gathering.add(v)]
    return groups + gathering.rest()


def default_lines(lacking: str = "libs") -> list[str]:
    made = [
        verdict(job.id, JobStatus.UNSUPPORTED, "baseline lacks it")
        if job.kind.startswith(lacking)
        else verdict(job.id, JobStatus.SAME)
        for job in build([Workload(ModelSpec("synthetic", "gdn", "tiny"), 512)], Request()).jobs
    ]
    return [line for group in groups_of(made) for line in group_lines(group)]


def test_every_m_has_a_line_and_one_reason_has_one() -> None:
    lines = default_lines()
    names = [line.split()[1].rsplit("/", 1)[1] for line in lines]
    ms = [f"mt{m}" for m in range(2, 9)]
    libs = ["libs-mt2..8", "libs-rb2,4,8"]
    assert names == ["m1", *ms, "rb2", "rb4", "rb8", *libs, "mt8-fresh"]
    assert all(len(line) < 320 for line in lines)
    assert "4.0 kB equal, every control differs: plain" not in lines[1]
    assert re.search(r"mt8 .*: plain mixed refused reset nan large$", lines[7])
    assert lines[-2].endswith("libs-rb2,4,8  baseline lacks it")


def test_cases_that_lack_an_entry_are_named() -> None:
    made = [verdict(f"a/p0/rb4{c}", JobStatus.SAME) for c in ("", "-twice")]
    made += [verdict(f"a/p0/rb4-keep{n}", JobStatus.UNSUPPORTED, "lacks it") for n in (1, 3)]
    told = [line for group in groups_of(made) for line in group_lines(group)]
    assert told[0].startswith("same") and told[0].endswith("a/p0/rb4  2.0 kB equal, "
        "every control differs: plain twice")  # fmt: skip
    assert told[1].endswith("a/p0/rb4-keep1,keep3  lacks it")


@pytest.mark.parametrize("status", [s for s in STATUSES if s not in ("same", "unsupported")])
def test_the_first_red_jobs_are_told_at_once_and_alone(status: JobStatus) -> None:
    gathering = Gathering()
    gathering.add(verdict("a/p0/mt2", JobStatus.SAME))
    red = verdict("a/p0/mt2-nan", status, "why")
    for _ in range(FEW):
        assert gathering.add(red) == [Group([red], full=True)]
    assert group_lines(Group([red], full=True))[0].endswith("a/p0/mt2-nan  why")
    assert gathering.add(red) == []


def test_further_red_jobs_have_a_line_for_each_m() -> None:
    differs = [verdict(f"a/p0/mt2{c}", JobStatus.DIFFERS) for c in ("", "-a", "-b", "-c")]
    differs += [verdict(f"a/p0/mt{m}{c}", JobStatus.DIFFERS) for m in (3, 4) for c in ("", "-nan")]
    failed = [verdict(f"a/p0/rb{m}", JobStatus.FAILED, "killed") for m in (2, 3, 4, 5, 6)]
    told = [line for group in groups_of(differs + failed) for line in group_lines(group)]
    assert len(told) == 4 * 2 + 2 + 4 + 1
    assert told[8] == "differs           a/p0/mt3  in h_out.npy: plain nan"
    assert told[-1] == "failed            a/p0/rb6  killed"
    every = [line for group in groups_of(differs + failed, None) for line in group_lines(group)]
    assert len(every) == 2 * len(differs) + len(failed)


def test_a_library_that_is_wrong_in_every_job_still_fits_on_a_few_screens() -> None:
    models = [ModelSpec("synthetic", f, "tiny") for f in ("hybrid", "gdn", "attn")]
    red = [verdict(job.id, JobStatus.DIFFERS)
           for job in build([Workload(m, 512) for m in models], Request()).jobs]  # fmt: skip
    assert len(red) > 150
    assert sum(len(group_lines(group)) for group in groups_of(red)) < len(red) / 2
    names = {name for group in groups_of(red) for name in case_names(group.jobs).split()}
    assert {"plain", "refused", "schedule"} <= names


def test_jobs_that_were_not_run_have_one_line_in_all() -> None:
    reason = f"{NOT_RUN}3 runs of the candidate timed out"
    made = [verdict(name, JobStatus.FAILED, reason) for name in IDS]
    made[40:40] = [verdict("x/p0/m1", JobStatus.SAME)]
    (group, same) = sorted(groups_of(made), key=lambda g: g.status)
    assert group_lines(group) == [f"failed            {len(IDS)} jobs  {reason}"]
    assert [job.id for job in same.jobs] == ["x/p0/m1"]
    assert group_lines(Group(group.jobs[:1])) == [f"failed            1 job  {reason}"]


@given(st.lists(st.tuples(st.sampled_from(STATUSES), st.sampled_from(["x", "y"])), max_size=60))
def test_no_job_is_lost_or_told_twice(drawn: list[tuple[JobStatus, str]]) -> None:
    made = [verdict(name, *said) for name, said in zip(IDS, drawn, strict=False)]
    groups = groups_of(made)
    assert sorted(v.id for group in groups for v in group.jobs) == sorted(v.id for v in made)
    for group in groups:
        assert len({(v.status, v.reason if v.status != "same" else "") for v in group.jobs}) == 1
        assert len(group_lines(group)) == 1 + (group.status == "differs" and group.full)
    in_full = Counter(group.status for group in groups if group.full)
    assert in_full == {s: min(n, FEW) for s, n in Counter(v.status for v in made).items()
        if s not in ("same", "unsupported")}  # fmt: skip


def test_names_of_another_harness_stand_alone() -> None:
    made = [verdict("odd", JobStatus.SAME), verdict("other name", JobStatus.SAME)]
    assert groups_of(made) == [Group([made[0]]), Group([made[1]])]


def test_ranges() -> None:
    assert ranges([2, 3, 4, 8]) == "2..4,8" and ranges([5]) == "5" and ranges([]) == ""
    names = [verdict(f"a/p0/rb4-keep{n}", JobStatus.SAME) for n in (0, 1, 2)]
    assert case_names([verdict("a/p0/rb4", JobStatus.SAME), *names]) == "plain keep0..2"
