"""Lines of a run: every M has one, no job is left out, and what is red is told at once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.plan import Request, Workload, build
from pyharness.report.grouping import Gathering, case_names, ranges
from pyharness.report.text import group_lines
from pyharness.values import Comparison, JobStatus, ModelSpec
from pyharness.verdict import JobVerdict

SUITE = build(
    [Workload(ModelSpec("synthetic", f, "tiny"), 512) for f in ("hybrid", "gdn")],
    Request(profile="full"),
)
IDS = [job.id for job in SUITE.jobs]
STATUSES = list(JobStatus)


def verdict(name: str, status: JobStatus, reason: str = "") -> JobVerdict:
    comparison = Comparison(True, 1000) if status is JobStatus.SAME else None
    return JobVerdict(name, status, reason, False, comparison)


def groups_of(verdicts: list[JobVerdict]) -> list[list[JobVerdict]]:
    gathering = Gathering()
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
def test_what_is_red_is_told_at_once_and_alone(status: JobStatus) -> None:
    gathering = Gathering()
    gathering.add(verdict("a/p0/mt2", JobStatus.SAME))
    red = verdict("a/p0/mt2-nan", status, "why")
    assert gathering.add(red) == [[red]]
    assert group_lines([red])[0].endswith("a/p0/mt2-nan  why")


@given(st.lists(st.tuples(st.sampled_from(STATUSES), st.sampled_from(["x", "y"])), max_size=60))
def test_no_job_is_lost_or_told_twice(drawn: list[tuple[JobStatus, str]]) -> None:
    made = [verdict(name, *said) for name, said in zip(IDS, drawn, strict=False)]
    groups = groups_of(made)
    assert sorted(v.id for group in groups for v in group) == sorted(v.id for v in made)
    for group in groups:
        assert len({(v.status, v.reason if v.status != "same" else "") for v in group}) == 1
        assert len(group_lines(group)) == 1


def test_names_of_another_harness_stand_alone() -> None:
    made = [verdict("odd", JobStatus.SAME), verdict("other name", JobStatus.SAME)]
    assert groups_of(made) == [[made[0]], [made[1]]]


def test_ranges() -> None:
    assert ranges([2, 3, 4, 8]) == "2..4,8" and ranges([5]) == "5" and ranges([]) == ""
    names = [verdict(f"a/p0/rb4-keep{n}", JobStatus.SAME) for n in (0, 1, 2)]
    assert case_names([verdict("a/p0/rb4", JobStatus.SAME), *names]) == "plain keep0..2"
