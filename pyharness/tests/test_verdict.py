"""Every path to a verdict, and the exit code of every mixture."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from typing import Any

import pytest

from pyharness.errors import Exit
from pyharness.plan import Job, Request, Workload, build
from pyharness.values import (
    ArmResult,
    Comparison,
    Difference,
    Digest,
    FileFact,
    JobStatus,
    LibraryFacts,
    ModelSpec,
)
from pyharness.verdict import Facts, JobVerdict, RowChange, conclude, judge

SAME, DIFFERS, UNSUPPORTED = JobStatus.SAME, JobStatus.DIFFERS, JobStatus.UNSUPPORTED
NONDETERMINISTIC, INDISTINCT, FAILED = (
    JobStatus.NONDETERMINISTIC,
    JobStatus.INDISTINCT,
    JobStatus.FAILED,
)


def job_named(name: str) -> Job:
    suite = build([Workload(ModelSpec("synthetic", "gdn", "tiny"), 512)], Request())
    return next(job for job in suite.jobs if job.id.endswith(f"/{name}"))


MT4, RB2 = job_named("mt4"), job_named("rb2")


def done(job: Job, content: str = "a") -> ArmResult:
    files = tuple(
        FileFact(name, Digest(content * 64), 100)
        for name in ("h_out.npy", "logits.npy", "state.safetensors")
    )
    return ArmResult("done", files=files, rows=job.rows)


EQUAL = Comparison(True, 300)
UNEQUAL = Comparison(
    False, 300, (Difference("logits.npy", "", (2, 5), "0x0", "0x1", "0.0", "1e-45", 1, 96),)
)


def facts(job: Job, **changes: Any) -> Facts:
    """Those of a job that passes, with changes."""
    row = job.control.row
    passing = Facts(
        baseline=done(job),
        candidate=done(job),
        baseline_again=done(job),
        candidate_again=done(job),
        control=done(job, "b"),
        baseline_repeat=EQUAL,
        candidate_repeat=EQUAL,
        comparison=EQUAL,
        change=RowChange((row, row + 1), (row, row + 1), True),
    )
    if changes.get("comparison") == UNEQUAL:
        other = {"candidate": done(job, "c"), "candidate_again": done(job, "c")}
        changes = {**other, **changes}
    return dataclasses.replace(passing, **changes)


FAIL = ArmResult("failed", "killed by SIGSEGV")
MISSING = ArmResult("unsupported", "lacks it", ("vcuda_dev_model_mark", "vcuda_dev_model_rollback"))


@pytest.mark.parametrize("job", [MT4, RB2, job_named("m1"), job_named("libs-mt3")])
def test_a_job_passes_only_with_everything_in_place(job: Job) -> None:
    verdict = judge(job, facts(job))
    assert (verdict.status, verdict.reason) == (SAME, "")
    assert verdict.comparison == EQUAL and f"2 of {job.rows} rows differ" in verdict.control


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"baseline": FAIL}, FAILED, "baseline: killed by SIGSEGV"),
        ({"candidate": FAIL}, FAILED, "candidate: killed by SIGSEGV"),
        ({"candidate": FAIL, "baseline": MISSING}, FAILED, "candidate: killed by SIGSEGV"),
        (
            {"baseline": MISSING},
            UNSUPPORTED,
            "baseline lacks vcuda_dev_model_mark, vcuda_dev_model_rollback",
        ),
        ({"candidate": MISSING}, UNSUPPORTED, "candidate lacks vcuda_dev_model_mark"),
        (
            {"candidate": ArmResult("unsupported", "a float32 projection")},
            FAILED,
            "candidate: unsupported, and no entry is named that it lacks",
        ),
        ({"baseline_again": FAIL}, FAILED, "baseline, run again: killed"),
        ({"candidate_again": None}, FAILED, "candidate, run again: it was not run"),
        (
            {"baseline_repeat": UNEQUAL},
            NONDETERMINISTIC,
            "the baseline differs from itself: logits.npy",
        ),
        ({"unlike": "rows differ"}, DIFFERS, "rows differ"),
        ({"unlike": "rows differ", "candidate_repeat": UNEQUAL}, NONDETERMINISTIC, "candidate"),
        ({"candidate_repeat": UNEQUAL}, NONDETERMINISTIC, "the candidate differs from itself"),
        ({"candidate_repeat": None}, NONDETERMINISTIC, "the candidate differs from itself"),
        (
            {"candidate_again": done(MT4, "c")},
            NONDETERMINISTIC,
            "the candidate differs from itself",
        ),
        ({"comparison": None}, INDISTINCT, "no bytes"),
        ({"comparison": Comparison(True, 0)}, INDISTINCT, "no bytes"),
        ({"comparison": UNEQUAL}, DIFFERS, ""),
        ({"control": FAIL}, FAILED, "control (another token in row 3): killed"),
        ({"control": None}, FAILED, "it was not run"),
        ({"change": None}, INDISTINCT, "nothing was compared"),
        ({"change": RowChange((), (), False)}, INDISTINCT, "row 3 of h_out.npy stays the same"),
        (
            {"change": RowChange((4, 5), (3, 4), True)},
            INDISTINCT,
            "row 3 of h_out.npy stays the same",
        ),
        (
            {"change": RowChange((3, 4), (4, 5), True)},
            INDISTINCT,
            "row 3 of logits.npy stays the same",
        ),
        ({"change": RowChange((3,), (3,), False)}, INDISTINCT, "state.safetensors stays the same"),
        (
            {"change": RowChange((1, 3), (3,), True)},
            DIFFERS,
            "row 1 depends on the token of the later row 3",
        ),
        (
            {"change": RowChange((3,), (2, 3), True)},
            DIFFERS,
            "row 2 depends on the token of the later row 3",
        ),
    ],
)
def test_each_fault_turns_the_job_from_green(
    changes: dict[str, Any], status: JobStatus, reason: str
) -> None:
    verdict = judge(MT4, facts(MT4, **changes))
    assert verdict.status is status and reason in verdict.reason
    assert "\n" not in verdict.reason


def test_rows_that_were_not_recorded_do_not_pass() -> None:
    short = dataclasses.replace(done(MT4), rows=MT4.rows - 1)
    both = {"baseline": short, "candidate": short}
    assert judge(MT4, facts(MT4, **both)).status is INDISTINCT


def test_a_rollback_control_must_differ_from_the_first_row_on() -> None:
    assert judge(RB2, facts(RB2, change=RowChange((1, 2), (0, 1), True))).status is INDISTINCT
    assert judge(RB2, facts(RB2, change=RowChange((0,), (0,), True))).status is SAME


def test_nothing_is_said_of_the_other_library_when_one_differs_from_itself() -> None:
    verdict = judge(MT4, facts(MT4, baseline_repeat=UNEQUAL, comparison=UNEQUAL))
    assert verdict.status is NONDETERMINISTIC and verdict.comparison is None and not verdict.control


def test_a_difference_is_told_though_the_control_failed() -> None:
    verdict = judge(MT4, facts(MT4, comparison=UNEQUAL, control=FAIL, change=None))
    assert verdict.status is DIFFERS and verdict.comparison == UNEQUAL


def test_missing_entries_are_listed_once() -> None:
    verdict = judge(RB2, facts(RB2, baseline=MISSING, candidate=MISSING))
    assert verdict.missing == MISSING.missing


# ---- the run -------------------------------------------------------------------------------------


def verdict_of(status: JobStatus, requested: bool = False) -> JobVerdict:
    return JobVerdict(status.value, status, "", requested)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], Exit.UNPROVED),
        ([SAME], Exit.SAME),
        ([SAME, UNSUPPORTED], Exit.SAME),
        ([UNSUPPORTED, UNSUPPORTED], Exit.UNPROVED),
        ([SAME, NONDETERMINISTIC], Exit.UNPROVED),
        ([SAME, INDISTINCT], Exit.UNPROVED),
        ([SAME, FAILED], Exit.FAILED),
        ([INDISTINCT, FAILED, UNSUPPORTED], Exit.FAILED),
        ([SAME, DIFFERS], Exit.DIFFERS),
        ([FAILED, DIFFERS, INDISTINCT], Exit.DIFFERS),
        ([NONDETERMINISTIC, DIFFERS], Exit.DIFFERS),
    ],
)
def test_exit_code_does_not_depend_on_the_order(statuses: list[JobStatus], code: Exit) -> None:
    for order in permutations(statuses):
        verdict = conclude([verdict_of(s) for s in order])
        assert verdict.exit_code == code
        for status in order:
            assert f"{statuses.count(status)} {status.value}" in verdict.summary


def test_unsupported_is_no_success_where_it_was_asked_for() -> None:
    mixed = [verdict_of(SAME, True), verdict_of(UNSUPPORTED, True)]
    assert conclude(mixed).exit_code == Exit.UNPROVED
    assert conclude([*mixed, verdict_of(DIFFERS, True)]).exit_code == Exit.DIFFERS
    assert conclude([*mixed, verdict_of(FAILED, True)]).exit_code == Exit.FAILED


def test_every_status_but_same_is_no_success_alone() -> None:
    for status in JobStatus:
        assert (conclude([verdict_of(status)]).exit_code == Exit.SAME) == (status is SAME)


def test_one_layers_state_under_two_names_is_no_proof() -> None:
    twins = "candidate: layers.0.S and layers.2.S are the same bytes"
    verdict = judge(MT4, facts(MT4, twins=twins))
    assert (verdict.status, verdict.reason) == (INDISTINCT, twins)
    verdict = judge(MT4, facts(MT4, twins=twins, comparison=UNEQUAL))
    assert (verdict.status, verdict.reason) == (DIFFERS, twins)


def test_files_that_changed_after_they_were_hashed_prove_nothing() -> None:
    """A process that outlived its arm once could put the baseline's bytes into the other folder."""
    other = {"candidate": done(MT4, "c"), "candidate_again": done(MT4, "c")}
    same_files = {"candidate": done(MT4), "candidate_again": done(MT4)}
    for changes in (
        {**other, "comparison": EQUAL},
        {**same_files, "comparison": UNEQUAL},
        {"control": done(MT4)},
    ):
        verdict = judge(MT4, facts(MT4, **changes))
        assert verdict.status is FAILED and "changed between their hashing" in verdict.reason


def test_a_candidate_that_lost_an_entry_is_no_success() -> None:
    """A job of the default suite that only the candidate cannot run."""
    lacking = dataclasses.replace(MT4, requested=False)
    for symbols, requested in (((*MISSING.missing, "x"), True), (("x",), False)):
        library = LibraryFacts(Digest("a" * 64), 1, 1, {}, symbols, ())
        baseline = dataclasses.replace(done(MT4), library=library)
        verdict = judge(lacking, facts(MT4, baseline=baseline, candidate=MISSING))
        assert (verdict.status, verdict.requested) == (UNSUPPORTED, requested)
        assert ("which the baseline has" in verdict.reason) == requested
        code = conclude([verdict_of(SAME), verdict]).exit_code
        assert code == (Exit.UNPROVED if requested else Exit.SAME)
