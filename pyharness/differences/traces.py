"""The trace of an arm: a digest of what every operation left in every row, and of every state.

A worker writes it, ``divergence`` reads two of them. Rows and states are named by the tokens that
led there, so that row 3 of an M-row step meets the single step of the same tokens, and a state
after a rollback meets the one that was never left.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyharness.errors import InputError
from pyharness.inputs.layout import LayerKind
from pyharness.values import from_json

INDEX, ROWS, STATES, CAPTURE = "trace.json", "rows.npy", "states.npy", "capture.npy"
TAPS = 8  # operations of a layer
PARTS = 2  # of a layer's state: S and conv, or keys and values
MIXER = 2  # the state of a layer is written by this operation
START = "start"  # of the first history


class Site(NamedTuple):
    """An operation of a layer, or a part of its state; layer -1: ``kind`` 0 h_out, 1 logits."""

    layer: int
    kind: int
    state: bool = False


@dataclass(frozen=True)
class Capture:
    """The one thing whose elements a second run of the arm keeps. ``row`` is that of the call."""

    call: int
    layer: int
    kind: int
    state: bool
    row: int = 0

    @property
    def site(self) -> Site:
        return Site(self.layer, self.kind, self.state)


@dataclass(frozen=True)
class TraceRequest:
    """Without a capture the digests of everything are written, with one only its elements."""

    capture: Capture | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return (CAPTURE,) if self.capture else (INDEX, ROWS, STATES)


@dataclass(frozen=True)
class Call:
    """One call of the library that a script led to."""

    kind: str
    position: int  # tokens in the state after it
    history: str  # digest of those tokens
    rows: tuple[str, ...] = ()  # of a step: the history that ends with each row
    recorded: int = 0  # how many of its rows, from the first on, are those of the dump


@dataclass(frozen=True)
class Trace:
    calls: tuple[Call, ...]
    rows: npt.NDArray[np.uint64]  # [rows of all calls, TAPS * layers + 2]: h_out, logits at the end
    states: npt.NDArray[np.uint64]  # [calls, PARTS * layers]

    @property
    def layers(self) -> int:
        return self.states.shape[1] // PARTS

    @cached_property
    def first_rows(self) -> tuple[int, ...]:
        """Of each call, its first line of ``rows``."""
        return tuple(accumulate((len(c.rows) for c in self.calls[:-1]), initial=0))

    def line(self, call: int, row: int) -> npt.NDArray[np.uint64]:
        """The digests of a row of a call; ``row`` -1: of the state after it."""
        return self.states[call] if row < 0 else self.rows[self.first_rows[call] + row]

    def sites(self) -> Iterator[Site]:
        """In the order of the forward pass; a layer's state right after its mixer."""
        for layer in range(self.layers):
            for kind in range(TAPS):
                yield Site(layer, kind)
                if kind == MIXER:
                    yield from (Site(layer, part, state=True) for part in range(PARTS))
        yield Site(-1, 0)
        yield Site(-1, 1)

    def column(self, site: Site) -> int:
        """Of ``rows``, or of ``states``."""
        if site.layer < 0:
            return self.layers * TAPS + site.kind
        return site.layer * (PARTS if site.state else TAPS) + site.kind


def extend(history: str, token: int) -> str:
    """The history after one more token."""
    return hashlib.sha256(f"{history}/{token}".encode()).hexdigest()[:16]


def digest(data: npt.NDArray[Any]) -> int:
    """64 bits of SHA-256: only says where to look, the elements are compared afterwards."""
    raw = np.ascontiguousarray(data).view(np.uint8).data
    return int.from_bytes(hashlib.sha256(raw).digest()[:8], "little")


def parts_of(kind: LayerKind) -> tuple[int, int]:
    """vcuda_state_kind of the two parts of a layer's state."""
    return (0, 1) if kind is LayerKind.GDN else (2, 3)


def read_trace(folder: Path) -> Trace:
    try:
        calls = from_json(tuple[Call, ...], json.loads((folder / INDEX).read_bytes()))
        rows, states = (np.load(folder / n, allow_pickle=False) for n in (ROWS, STATES))
    except (OSError, ValueError) as e:
        raise InputError(f"{folder}: not a trace: {' '.join(str(e).split())}") from None
    wanted = sum(len(c.rows) for c in calls), len(calls)
    if (len(rows), len(states)) != wanted or rows.dtype != np.uint64 or states.dtype != np.uint64:
        raise InputError(f"{folder}: not a trace: {rows.shape}, {states.shape} for {wanted}")
    return Trace(calls, rows, states)
