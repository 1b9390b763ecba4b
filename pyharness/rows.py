"""Every row that an arm computed, recorded or not, held against those of the same tokens.

A row follows from the tokens in the state and from nothing else, however they came there: so rows
of one history must be the same bits within an arm and across arms. Those of the prefix, of drafts
that are taken back, and of tokens that are made again are in no file; their digests are here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from pyharness.values import Op

DIGITS = 16  # of a row's SHA-256, hexadecimal: 1023 rows of a long prefix stay below 17 kB


def row_digests(h_out: np.ndarray, logits: np.ndarray) -> str:
    """Of float32 rows h_out [M, H] and logits [M, V]: DIGITS for each row, one after the other."""
    made = []
    for h, row in zip(h_out, logits, strict=True):
        state = hashlib.sha256(h.data)
        state.update(row.data)
        made.append(state.hexdigest()[:DIGITS])
    return "".join(made)


def count(script: Sequence[Op]) -> int:
    """Rows that the script computes."""
    return sum(len(op.tokens) for op in script if op.kind in ("step", "step_m"))


def unlike(*arms: tuple[Sequence[Op], str]) -> str:
    """Scripts with their digests, "" where an arm gives none: one line where rows of one history
    differ, "" where none do.
    """
    tokens: dict[tuple[int, int], int] = {}  # (a history's number, a token) -> that of both
    known: dict[int, str] = {}
    wrong: list[int] = []
    total = 0
    for script, digests in arms:
        if digests:
            rows = (digests[i : i + DIGITS] for i in range(0, len(digests), DIGITS))
            for (position, history), row in zip(_histories(script, tokens), rows, strict=True):
                total += 1
                if known.setdefault(history, row) != row:
                    wrong.append(position)
    if not wrong:
        return ""
    told = (
        f"rows of the same tokens differ beside the recorded ones, first at position {min(wrong)}"
    )
    return f"{told} ({len(wrong)} of {total} rows)"


def _histories(
    script: Sequence[Op], tokens: dict[tuple[int, int], int]
) -> Iterator[tuple[int, int]]:
    """Of each computed row its position and the number of the tokens up to and with its own."""
    state, mark = [0], 0
    for op in script:
        if op.kind == "mark":
            mark = len(state)
        elif op.kind == "reset":
            state = [0]
        elif op.kind in ("rollback", "rollback_to"):
            del state[mark + op.number :]
        elif op.kind in ("step", "step_m"):
            for token in op.tokens:
                state.append(tokens.setdefault((state[-1], token), len(tokens) + 1))
                yield len(state) - 2, state[-1]
