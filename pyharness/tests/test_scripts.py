"""What a control leaves out, the tokens that a detour is made of, and what lies between calls."""

from __future__ import annotations

import pytest

from pyharness.host.script import cursors
from pyharness.scripts import BACK, MARK, POISON, Scripts, last_rollback, without_call
from pyharness.values import Op

WINDOW = Scripts(prefix=tuple(range(8)), recorded=tuple(range(8, 16)), vocab=40)


def test_without_its_rollback_a_script_refuses_nothing() -> None:
    """A second rollback is refused after the first only."""
    gone = Op("refused", what="rollback")
    rows = Op("step_m", (20, 21), record=True)
    script = (Op("step", (1,), record=True), MARK, rows, BACK, gone, Op("step", (2,), record=True))
    kept, row = without_call(script, last_rollback(script))
    assert kept == (script[0], MARK, rows, script[-1])
    assert row == 3  # the first one after the rollback


@pytest.mark.parametrize("offset", [0, 4])
def test_other_tokens_are_those_of_no_other_row(offset: int) -> None:
    """A detour of the very tokens that follow would leave keys that happen to be right."""
    other = WINDOW.other(200, offset)
    assert set(other) == set(range(16, 40))
    assert WINDOW.other(3, offset) == other[:3] != WINDOW.other(3, offset + 1)


def test_other_tokens_of_a_vocabulary_that_is_used_up() -> None:
    small = Scripts(prefix=(0, 1), recorded=(2, 3), vocab=4)
    assert set(small.other(50, 0)) == {0, 1, 3}  # never the token of the first recorded row
    assert Scripts((), (0,), vocab=1).other(2, 0) == (0, 0)


@pytest.mark.parametrize("case", POISON)
def test_memory_is_poisoned_before_each_call_and_each_recorded_step(case: str) -> None:
    scripts = Scripts(tuple(range(5)), tuple(range(20, 32)), 512)
    plain = {"rows": scripts.rows(4), "rollback": scripts.rollback(4, "")}
    for script, calls in ((scripts.rows(4, case), "rows"), (scripts.rollback(4, case), "rollback")):
        poison, made = script[::2], script[1::2]
        assert set(poison) == {Op("poison", number=POISON[case])}
        assert all(len(op.tokens) == 1 for op in made if op.kind == "step" and op.record)
        merged = [(op.kind, op.record, token) for op in made for token in op.tokens]
        assert merged == [(op.kind, op.record, t) for op in plain[calls] for t in op.tokens]


@pytest.mark.parametrize("m", [2, 3, 8])
def test_the_context_is_asked_for_one_row_too_many_and_then_filled(m: int) -> None:
    """And a token that does not exist stands in the last of the rows, then in the first."""
    scripts = Scripts(tuple(range(5)), tuple(range(20, 32)), 512)
    script, end = scripts.rows(m, "refused"), 5 + 12
    steps = list(zip(script, cursors(script), strict=True))
    over, fills = steps[-4], steps[-3]
    assert over[0].kind == "refused" and over[1] + len(over[0].tokens) == end + 1
    assert fills[1] == end and len(fills[0].tokens) == min(m - 1, 12 - m)
    assert fills[0].kind == ("step_m" if m > 2 else "step")
    wrong = [[t not in range(512) for t in op.tokens] for op, _ in steps if op.what == "step_m"]
    assert [True, *[False] * (m - 1)] in wrong and [*[False] * (m - 1), True] in wrong


def test_rollback_to_is_refused_after_two_m_row_steps_and_after_a_single_one() -> None:
    script = Scripts((), tuple(range(20, 32)), 512).rollback(4, "keep-refused")
    assert [op.what or op.kind for op in script] == [
        "mark", "rollback_to", "step_m", "step_m", "rollback_to", "step", "rollback_to",
        "rollback", "rollback_to", "step",
    ]  # fmt: skip
