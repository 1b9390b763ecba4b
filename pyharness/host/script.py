"""What a script of calls needs and reaches, known before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyharness.values import Op

MM_VARIABLE = "VLLM_CUDA_Q35_MM"  # the library reads it at load: largest M of step_m
STATE_READ = "vcuda_dev_model_state_read"
TAPS = ("vcuda_dev_model_taps", "vcuda_dev_model_tap_read")
_ENTRY = {
    "step_m": "vcuda_dev_model_step_m",
    "mark": "vcuda_dev_model_mark",
    "rollback": "vcuda_dev_model_rollback",
    "rollback_to": "vcuda_dev_model_rollback_to",
    "poison": "vcuda_dev_poison",
}
_ONE_SHOT = ("rollback", "rollback_to")


def needed_entries(script: Sequence[Op]) -> tuple[str, ...]:
    """Optional entries without which the script cannot run or its state cannot be written."""
    used = {op.what if op.kind == "refused" else op.kind for op in script}
    return (*(name for kind, name in _ENTRY.items() if kind in used), STATE_READ)


def recorded_rows(script: Sequence[Op]) -> int:
    """Rows that the dump of the script has."""
    return sum(len(op.recorded) for op in script)


def cursors(script: Sequence[Op]) -> Iterator[int]:
    """Tokens in the state after each call; what is refused moves nothing."""
    cursor, marked = 0, None
    for op in script:
        if op.kind == "mark":
            marked = cursor
        elif op.kind == "reset":
            cursor, marked = 0, None
        elif op.kind in _ONE_SHOT:
            cursor, marked = (cursor, None) if marked is None else (marked + op.number, None)
        elif op.kind != "refused":
            cursor += len(op.tokens)
        yield cursor


def reach(script: Sequence[Op]) -> int:
    """The most tokens the state ever holds: the context that the script needs."""
    return max(cursors(script), default=0)
