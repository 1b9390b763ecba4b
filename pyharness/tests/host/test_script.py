from __future__ import annotations

from pyharness.host import abi
from pyharness.host.script import cursors, needed_entries, reach, recorded_rows
from pyharness.values import Op

PREFIX = Op("step", (1, 2, 3))
ROLLBACK = (
    PREFIX,
    Op("mark"),
    Op("step_m", (4, 5, 6)),
    Op("rollback"),
    Op("step", (7,), record=True),
)
OTHERS = (PREFIX, Op("mark"), Op("step_m", (4, 5, 6)), Op("rollback_to", number=2), Op("poison"))
TAPS = {"vcuda_dev_model_taps", "vcuda_dev_model_tap_read"}  # no script needs them


def test_entries_that_a_script_needs() -> None:
    assert needed_entries((PREFIX,)) == ("vcuda_dev_model_state_read",)
    assert set(needed_entries((*ROLLBACK, *OTHERS))) == set(abi.OPTIONAL) - TAPS
    assert needed_entries((Op("mark"),)) == ("vcuda_dev_model_mark", "vcuda_dev_model_state_read")


def test_only_recorded_rows_count() -> None:
    assert recorded_rows(ROLLBACK) == 1
    assert recorded_rows((PREFIX, Op("step_m", (4, 5), record=True))) == 2


def test_cursors_follow_mark_and_rollback() -> None:
    assert list(cursors(ROLLBACK)) == [3, 3, 6, 3, 4]
    assert list(cursors((*ROLLBACK, Op("rollback")))) == [3, 3, 6, 3, 4, 4]
    assert list(cursors((PREFIX, Op("rollback")))) == [3, 3]
    assert list(cursors(OTHERS)) == [3, 3, 6, 5, 5]
    marks = (Op("mark"), PREFIX, Op("mark"), PREFIX, Op("rollback"))
    assert list(cursors(marks)) == [0, 3, 3, 6, 3]


def test_reach_is_the_most_tokens_at_any_time() -> None:
    assert reach(ROLLBACK) == 6
    assert reach(()) == 0
