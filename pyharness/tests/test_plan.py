"""Plans: which scripts run, that they fit together, and that each control has something to differ
in.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.errors import InputError, UsageError
from pyharness.host.script import cursors, needed_entries, reach
from pyharness.options import parse_prefixes, parse_rows
from pyharness.plan import (
    DEFAULT_MT,
    DEFAULT_PREFIX,
    FULL_PREFIXES,
    SPAN_PREFIX,
    Job,
    Request,
    Suite,
    Workload,
    again,
    arm_key,
    build,
    generated_tokens,
)
from pyharness.scripts import ROLLBACK_CASES, ROW_CASES, Scripts
from pyharness.values import Digest, ModelSpec, Op, from_json, to_json

MODEL = ModelSpec("synthetic", "hybrid", "tiny")
WORKLOAD = Workload(MODEL, 512)
NO_JOB: dict[str, Any] = {"mt": (), "rb": (), "libs_mt": (), "libs_rb": ()}  # but m1
CASES = ("singles", "mixed", "twice", "changing", "then-rows")
OLD, NEW = Digest("1" * 64), Digest("2" * 64)


def jobs_of(request: Request, workload: Workload = WORKLOAD) -> dict[str, Job]:
    jobs = build([workload], request).jobs
    assert len({job.id for job in jobs}) == len(jobs)
    return {job.id.rsplit("/", 1)[1]: job for job in jobs}


def recorded(script: tuple[Op, ...]) -> list[int]:
    return [t for op in script for t in op.recorded]


def surviving(script: tuple[Op, ...]) -> list[int]:
    """The tokens that are in the state at the end."""
    state: list[int] = []
    mark: list[int] | None = None
    for op in script:
        if op.kind == "mark":
            mark = list(state)
        elif op.kind in ("rollback", "rollback_to"):
            assert mark is not None, "a rollback without a mark"
            state, mark = state[: len(mark) + op.number], None
        elif op.kind == "reset":
            state, mark = [], None
        elif op.kind != "refused":
            state.extend(op.tokens)
    return state


@pytest.mark.parametrize("profile", ["quick", "full"])
@pytest.mark.parametrize("prefix", [0, 1, 5, 63, 64])
@pytest.mark.parametrize("libs", [False, True])
def test_both_arms_record_the_same_tokens_from_the_same_state(
    prefix: int, libs: bool, profile: Any
) -> None:
    request = Request(
        prefixes=(prefix,), libs_mt=DEFAULT_MT if libs else (), explicit=True, profile=profile
    )
    for job in jobs_of(request).values():
        assert surviving(job.baseline.script) == surviving(job.candidate.script)
        assert recorded(job.baseline.script) == recorded(job.candidate.script)
        assert len(recorded(job.candidate.script)) == job.rows
        assert len(surviving(job.candidate.script)) == prefix + job.rows
        assert recorded(job.control.plan.script) != [] and job.control.plan.role == "control"


def test_default_suite_names_every_m_and_every_rollback_case() -> None:
    jobs = jobs_of(Request())
    plain = Counter(job.kind for job in jobs.values() if not job.case)
    assert plain == {"m1": 1, "mt": 7, "rb": 3, "libs-mt": 7, "libs-rb": 3}
    assert {f"mt{m}" for m in range(2, 9)} <= set(jobs)
    for case in ("singles", "mixed", "twice", "changing", "then-rows"):
        assert {f"rb{m}-{case}" for m in (2, 4, 8)} <= set(jobs)
    assert {"m1-refused", "mt8-nan", "mt8-refused", "rb4-accept2", "rb8-keep7"} <= set(jobs)
    assert {name for name, job in jobs.items() if job.prefix != DEFAULT_PREFIX} == {"mt8-fresh"}
    assert not any(job.requested for job in jobs.values())


def test_every_m_row_step_of_the_default_crosses_a_border_of_64_keys() -> None:
    for m in DEFAULT_MT:
        first = DEFAULT_PREFIX + 1  # keys that row 0 sees
        assert first == 64 and first + m - 1 > 64


def test_single_steps_of_the_baseline_are_one_run() -> None:
    jobs = [j for j in jobs_of(Request()).values() if not j.kind.startswith("libs") and j.prefix]
    contexts = {j.baseline.model.context for j in jobs}
    assert len({arm_key(j.baseline, OLD) for j in jobs}) == len(contexts) == 2
    assert len({arm_key(j.candidate, NEW) for j in jobs}) == len(jobs)


def test_libs_jobs_share_their_candidate_runs_and_control_with_mt() -> None:
    jobs = jobs_of(Request())
    for m in DEFAULT_MT:
        libs, mt = jobs[f"libs-mt{m}"], jobs[f"mt{m}"]
        assert libs.candidate == mt.candidate and libs.control == mt.control
        assert libs.baseline.script == mt.candidate.script and libs.baseline.arm == "baseline"


def test_keys_tell_arms_roles_libraries_and_scripts_apart() -> None:
    job = jobs_of(Request())["m1"]
    keys = {arm_key(plan, NEW) for plan in job.arms()}
    assert len(keys) == 5
    assert again(job.candidate).environment != job.candidate.environment
    assert arm_key(job.candidate, OLD) != arm_key(job.candidate, NEW)
    assert again(job.candidate).script == job.candidate.script


def test_scripts_of_the_rollback_cases() -> None:
    jobs = jobs_of(Request(mt=(), rb=(4,), libs_mt=(), libs_rb=(), prefixes=(0,), profile="full"))

    def shape(name: str) -> list[tuple[str, int]]:
        steps = jobs[name].candidate.script
        return [(op.kind, len(op.tokens) or op.number) for op in steps]

    mark, back, rest = ("mark", 0), ("rollback", 0), ("step", 64)
    assert shape("rb4") == [mark, ("step_m", 4), back, rest]
    assert shape("rb4-singles") == [mark, ("step", 4), back, rest]
    assert shape("rb4-mixed") == [mark, ("step", 1), ("step_m", 4), ("step", 1), back, rest]
    assert shape("rb4-twice") == [mark, ("step_m", 4), back, mark, ("step_m", 4), back, rest]
    assert shape("rb4-changing") == [mark, ("step_m", 4), ("step_m", 3), back, rest]
    four = ("step_m", 4)
    assert shape("rb4-then-rows") == [mark, four, back, four, ("step", 60)]
    assert shape("rb4-after-rows") == [mark, four, mark, four, back, ("step", 60)]
    assert shape("rb4-accept1") == [mark, four, back, ("step", 1), ("step", 63)]
    assert shape("rb4-accept4") == [mark, four, ("step", 60)]
    assert shape("rb4-keep3") == [mark, four, ("rollback_to", 3), ("step", 61)]
    assert shape("rb4-keep0") == [mark, four, ("rollback_to", 0), rest]
    assert shape("rb4-schedule-all") == [mark, four] * 16
    once = [mark, four, back, ("step", 1)]
    assert shape("rb4-schedule-none")[:8] == once * 2
    assert shape("rb4-schedule-one")[:8] == once * 2
    widths = {n for kind, n in shape("rb4-keep-schedule") if kind == "step_m"}
    assert widths == {2, 3, 4}


@pytest.mark.parametrize("m", [2, 3, 8])
@pytest.mark.parametrize("prefix", [0, 1])
def test_control_of_a_rollback_drops_it_and_the_detour_has_other_tokens(
    m: int, prefix: int
) -> None:
    for job in jobs_of(
        Request(mt=(), rb=(m,), libs_mt=(), libs_rb=(), prefixes=(prefix,))
    ).values():
        if job.kind != "rb" or job.case not in ("", *CASES):
            continue
        count = Counter(op.kind for op in job.candidate.script)
        control = Counter(op.kind for op in job.control.plan.script)
        assert count["rollback"] == control["rollback"] + 1 and job.control.row == 0
        detour = {t for op in job.candidate.script if not op.record for t in op.tokens}
        assert not set(recorded(job.candidate.script)) & (
            detour - set(surviving(job.baseline.script))
        )
        assert len(surviving(job.control.plan.script)) > len(surviving(job.candidate.script))


def test_detours_of_one_script_differ_from_each_other() -> None:
    job = jobs_of(Request(mt=(), rb=(4,), libs_mt=(), libs_rb=()))["rb4-twice"]
    first, second = (op.tokens for op in job.candidate.script if op.kind == "step_m")
    assert first != second


@pytest.mark.parametrize("vocab", [2, 3, 4, 512])
def test_control_of_rows_changes_one_token_in_the_row_it_names(vocab: int) -> None:
    for job in jobs_of(Request(rb=(), libs_rb=()), Workload(MODEL, vocab)).values():
        if job.case == "mixed":
            continue
        ours, theirs = recorded(job.candidate.script), recorded(job.control.plan.script)
        assert [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b] == [
            job.control.row
        ]
        assert job.control.row == (job.rows - 1 if job.kind == "m1" else job.m - 1)
        assert all(0 <= t < vocab for t in theirs)


def test_other_tokens_exist_where_the_script_uses_the_whole_vocabulary() -> None:
    for job in jobs_of(Request(), Workload(MODEL, 2)).values():
        calls = [op for op in job.candidate.script if not op.record and op.kind != "refused"]
        assert all(0 <= t < 2 for op in calls for t in op.tokens)


def test_mmax_is_the_largest_step_and_unset_for_single_steps() -> None:
    jobs = jobs_of(Request())
    assert jobs["m1"].candidate.mmax == 0 and jobs["mt5"].candidate.mmax == 5
    assert jobs["mt5"].baseline.mmax == 0 and jobs["libs-mt5"].baseline.mmax == 5
    assert jobs["rb2-changing"].candidate.mmax == 3
    singles = jobs_of(Request(mt=(), rb=(6,), libs_mt=(), libs_rb=()))["rb6-singles"]
    assert singles.candidate.mmax == 2  # no M-row step, but mark needs the feature


def test_context_is_one_for_all_arms() -> None:
    for job in jobs_of(Request(profile="full", prefixes=(63,))).values():
        (context,) = {plan.model.context for plan in job.arms()}
        exact = job.case == "refused" and job.kind in ("m1", "mt", "libs-mt")
        assert (context == job.prefix + job.rows) == exact


def test_every_script_fits_the_context() -> None:
    for m in (2, 3, 8):
        only = {**NO_JOB, "mt": (m,), "rb": (m,)}
        for job in jobs_of(Request(**only, prefixes=(0,), profile="full")).values():
            for plan in job.arms():
                assert reach(plan.script) <= plan.model.context


def recorded_at(script: tuple[Op, ...]) -> list[tuple[int, int]]:
    """Position and token of each recorded row."""
    found: list[tuple[int, int]] = []
    for op, end in zip(script, cursors(script), strict=True):
        found += ((end - len(op.tokens) + i, token) for i, token in enumerate(op.recorded))
    return found


@pytest.mark.parametrize("continuation", [None, 0, 1])
@pytest.mark.parametrize("profile", ["quick", "full"])
def test_every_row_is_recorded_at_its_position_and_a_control_leaves_it(
    profile: Any, continuation: int | None
) -> None:
    request = Request(
        profile=profile, prefixes=(5,), explicit=True, continuation=continuation, rb=(2, 3, 8)
    )
    for job in jobs_of(request).values():
        rows, row = recorded_at(job.candidate.script), job.control.row
        assert rows == recorded_at(job.baseline.script)
        assert [position for position, _ in rows] == list(range(5, 5 + job.rows))
        control = recorded_at(job.control.plan.script)
        assert len(control) == job.rows and control[:row] == rows[:row]
        assert control[row] != rows[row], job.id
        taken_back = job.kind.endswith("rb") and job.case not in (
            f"accept{job.m}", f"keep{job.m}", "schedule-all",
        )  # fmt: skip
        assert (job.control.change == "the last rollback is left out") == taken_back


def test_the_full_profile_has_every_case_and_count() -> None:
    jobs = jobs_of(Request(profile="full", prefixes=(63,)))
    for m in (2, 4, 8):
        assert {f"rb{m}-keep{n}" for n in range(m + 1)} <= set(jobs)
        assert {f"rb{m}-accept{n}" for n in range(1, m + 1)} <= set(jobs)
    cases = {job.case.rstrip("0123456789") for job in jobs.values() if job.kind == "rb"}
    assert cases == {case.removesuffix("{n}") for case in ROLLBACK_CASES}
    rows = {job.case for job in jobs.values() if job.kind in ("mt", "m1")}
    assert rows == set(ROW_CASES) - {"fresh"}
    assert all(job.rows == 64 for job in jobs.values())
    fresh = jobs_of(Request(profile="full", prefixes=(0,)))["mt8-fresh"]
    assert fresh.candidate.alone and again(fresh.candidate).alone
    assert fresh.candidate.script[0].kind == "step_m"


def test_windows_of_the_profiles() -> None:
    def prefixes(family: str, profile: Any) -> set[int]:
        workload = Workload(ModelSpec("synthetic", family, "tiny"), 512)
        return {job.prefix for job in build([workload], Request(profile=profile)).jobs}

    assert prefixes("gdn", "quick") == prefixes("hybrid", "quick") == {0, DEFAULT_PREFIX}
    at_0 = [job.id for job in build([WORKLOAD], Request()).jobs if not job.prefix]
    assert at_0 == ["hybrid-tiny/p0/mt8-fresh"]
    assert not jobs_of(Request(mt=(), libs_mt=())).keys() & {"mt8-fresh"}
    assert {job.prefix for job in jobs_of(Request(explicit=True)).values()} == {DEFAULT_PREFIX}
    assert prefixes("attn", "quick") == {0, DEFAULT_PREFIX, SPAN_PREFIX}
    assert prefixes("hybrid", "full") == {DEFAULT_PREFIX, SPAN_PREFIX, *FULL_PREFIXES}
    assert prefixes("gdn", "full") == {DEFAULT_PREFIX, *FULL_PREFIXES}


def test_what_lacks_an_optional_entry_is_not_what_was_asked_for() -> None:
    for job in jobs_of(Request(explicit=True)).values():
        entries = needed_entries(job.candidate.script)
        extra = {"vcuda_dev_poison", "vcuda_dev_model_rollback_to"} & set(entries)
        assert job.requested == (not extra)


@pytest.mark.parametrize("m", [2, 3, 8])
def test_a_refused_call_changes_nothing_that_the_script_expects(m: int) -> None:
    scripts = Scripts(tuple(range(5)), tuple(range(20, 32)), 512)
    for script in (scripts.singles("refused"), scripts.rows(m, "refused")):
        kept = tuple(op for op in script if op.kind != "refused")
        assert list(cursors(script))[-1] == list(cursors(kept))[-1] == 17
        assert {op.what for op in script} >= {"step", "step_m"}
        assert all(len(op.tokens) != 1 or op.what == "step" for op in script if op.what)


def test_a_suite_is_json_and_back() -> None:
    suite = build([WORKLOAD], Request(profile="full"))
    assert from_json(Suite, json.loads(json.dumps(to_json(suite)))) == suite


def test_given_tokens_shorten_the_default_prefix_and_say_so() -> None:
    suite = build([Workload(MODEL, 512, tuple(range(48)), given=True)], Request())
    assert {job.prefix for job in suite.jobs} == {48 - 12}
    assert any("prefix 36" in note for note in suite.notes)


def test_given_tokens_too_few_for_the_prefix_asked_for() -> None:
    workload = Workload(MODEL, 512, tuple(range(48)), given=True)
    with pytest.raises(InputError, match="48 tokens are too few: prefix 40"):
        build([workload], Request(prefixes=(40,)))
    with pytest.raises(InputError, match="too few"):
        build([Workload(MODEL, 512, (1, 2, 3), given=True)], Request())


def test_continuation() -> None:
    workload = Workload(MODEL, 512, tuple(range(100)), given=True)
    request = Request(**{**NO_JOB, "mt": (2,)}, prefixes=(10,), continuation="all")
    assert jobs_of(request, workload)["mt2"].rows == 90
    assert jobs_of(Request(**{**NO_JOB, "mt": (2,)}, continuation=0), workload)["mt2"].rows == 2
    with pytest.raises(UsageError, match="continuation all"):
        build([WORKLOAD], Request(continuation="all"))
    only_m1 = Request(**NO_JOB, prefixes=(0,))
    assert jobs_of(only_m1, workload)["m1"].rows == 100


def test_nothing_asked_for() -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        build([WORKLOAD], Request(m1=False, **NO_JOB))


@pytest.mark.parametrize(
    ("text", "rows"),
    [("4", (4,)), ("2-8", (2, 3, 4, 5, 6, 7, 8)), ("8,2,4", (2, 4, 8)), (" 2 - 3, 3", (2, 3))],
)
def test_parse_rows(text: str, rows: tuple[int, ...]) -> None:
    assert parse_rows(text) == rows


@pytest.mark.parametrize("text", ["", "x", "1", "0-4", "8-2", "2,", "-3", "2-400", "2.5", "257"])
def test_parse_rows_refuses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rows(text)


def test_parse_prefixes() -> None:
    assert parse_prefixes("64, 0,1,64") == (64, 0, 1)
    for text in ("", "-1", "a", "1,,2", "12345678"):
        with pytest.raises(UsageError):
            parse_prefixes(text)


@given(st.integers(0, 2**64 - 1), st.integers(1, 300_000))
def test_generated_tokens_do_not_depend_on_the_count(seed: int, vocab: int) -> None:
    tokens = generated_tokens(seed, 20, vocab)
    assert tokens[:5] == generated_tokens(seed, 5, vocab)
    assert all(0 <= t < vocab for t in tokens)


def test_model_slugs() -> None:
    assert MODEL.slug == "hybrid-tiny"
    assert ModelSpec("synthetic", "gdn", "mid", 7).slug == "gdn-mid-s7"
    assert ModelSpec("checkpoint", path="/a/b/Qwen 3.5/").slug == "Qwen_3.5"
    assert ModelSpec("pack", path="/").slug == "model"
