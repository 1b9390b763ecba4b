"""What a control leaves out, and the tokens that a detour is made of."""

from __future__ import annotations

import pytest

from pyharness.scripts import BACK, MARK, Scripts, last_rollback, without_call
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
