from __future__ import annotations

import hashlib

import numpy as np
import pytest

from pyharness.plan import Request, Workload, build
from pyharness.rows import DIGITS, count, row_digests, unlike
from pyharness.values import ModelSpec, Op

SINGLES = (Op("step", (1, 2, 3, 4)),)
REMADE = (  # positions 0 1, then 2 3 of a draft, of which 2 is made again
    Op("step", (1, 2)), Op("mark"), Op("step_m", (3, 9), record=True, number=1),
    Op("rollback"), Op("refused", (7,), what="step"), Op("step", (3,)),
)  # fmt: skip
KEPT = (*REMADE[:3], Op("rollback_to", number=1), Op("step", (4,)))
AGAIN = (Op("step", (5, 6)), Op("reset"), Op("step", (1, 2)))


def sound(script: tuple[Op, ...]) -> list[str]:
    """A digest for each computed row, as a library gives it that is right."""
    state: list[int] = []
    mark, made = 0, []
    for op in script:
        if op.kind == "mark":
            mark = len(state)
        elif op.kind == "reset":
            state = []
        elif op.kind in ("rollback", "rollback_to"):
            state = state[: mark + op.number]
        elif op.kind in ("step", "step_m"):
            for token in op.tokens:
                state.append(token)
                made.append(hashlib.sha256(str(state).encode()).hexdigest()[:DIGITS])
    return made


def test_digests_are_of_each_row_of_both_outputs() -> None:
    h_out, logits = np.array([[1, 2], [3, 4]], "<f4"), np.array([[5], [6]], "<f4")
    made = row_digests(h_out, logits)
    assert (
        made[:DIGITS] == hashlib.sha256(np.array([1, 2, 5], "<f4").tobytes()).hexdigest()[:DIGITS]
    )
    logits[1, 0] = -0.0
    h_out[1, 1] = 4
    changed = row_digests(h_out, logits)
    assert changed[:DIGITS] == made[:DIGITS] and changed[DIGITS:] != made[DIGITS:]


@pytest.mark.parametrize("script", [REMADE, KEPT, AGAIN])
@pytest.mark.parametrize("wrong", range(-1, 5))
def test_a_row_of_the_same_tokens_must_be_the_same(script: tuple[Op, ...], wrong: int) -> None:
    digests = sound(script)
    assert count(script) == len(digests)
    positions = {REMADE: [0, 1, 2, None, 2], KEPT: [0, 1, 2, None, 3], AGAIN: [None, None, 0, 1]}
    where = None
    if 0 <= wrong < len(digests):
        digests[wrong] = "0" * DIGITS
        where = positions[script][wrong]  # None: tokens that only this arm has
    told = unlike((SINGLES, "".join(sound(SINGLES))), (script, "".join(digests)))
    total = 4 + len(digests)
    expected = f"first at position {where} (1 of {total} rows)" if where is not None else ""
    assert told.endswith(expected) and bool(told) == bool(expected)


def test_an_arm_without_digests_is_compared_with_nothing() -> None:
    wrong = "0" * DIGITS * count(SINGLES)
    assert not unlike((SINGLES, ""), (SINGLES, wrong))
    assert unlike((SINGLES, wrong), (REMADE, "".join(sound(REMADE))))


def test_every_script_of_the_default_suite_agrees_with_single_steps() -> None:
    suite = build([Workload(ModelSpec("synthetic", "attn", "tiny"), 512)], Request())
    assert len(suite.jobs) > 50
    for job in suite.jobs:
        plans = (job.baseline, job.candidate, job.control.plan)
        assert not unlike(*((plan.script, "".join(sound(plan.script))) for plan in plans)), job.id
        first = sound(job.candidate.script)
        if job.prefix:
            shared = sound(job.baseline.script)[0]
            at = first.index(shared)  # the first step of the prefix is in both
            first[at] = "0" * DIGITS
            assert unlike(
                (job.baseline.script, "".join(sound(job.baseline.script))),
                (job.candidate.script, "".join(first)),
            )
