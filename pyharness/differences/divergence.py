"""Where two arms part: two traces, or else two dumps, compared in the order of the forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyharness.compare import pattern_of
from pyharness.differences.findings import Divergence
from pyharness.differences.places import (
    KIND_NAMES,
    OUTPUTS,
    STATE_PARTS,
    TAPS,
    state_part,
    state_shape,
    tap_part,
)
from pyharness.differences.traces import Call, Site, Trace, digest
from pyharness.dumps import Dump
from pyharness.host.script import cursors
from pyharness.inputs.layout import ModelConfig
from pyharness.values import Op

Floats = npt.NDArray[np.float32]


class Place(NamedTuple):
    """A call and a row of it, in one trace; ``row`` -1: the state after the call."""

    call: int
    row: int


# ---- two traces ----------------------------------------------------------------------------------


def word_at(trace: Trace, place: Place, site: Site) -> int:
    """The digest of a row of an operation, or of a part of the state."""
    return int(trace.line(*place)[trace.column(site)])


def differing(
    ours: Trace, theirs: Trace, *, same_script: bool
) -> Iterator[tuple[Site, tuple[Place, Place]]]:
    """Every differing site in the order in which the second arm computes: by call, then by layer
    and operation, then by row. Only rows and states behind the same tokens are compared.
    """
    rows: dict[str, Place] = {}
    states: dict[str, Place] = {}
    for number, call in enumerate(ours.calls):
        states.setdefault(call.history, Place(number, -1))
        for row, history in enumerate(call.rows):
            rows.setdefault(history, Place(number, row))
    for number, call in enumerate(theirs.calls):
        pairs = [
            (Place(number, row), Place(number, row) if same_script else rows.get(history))
            for row, history in enumerate(call.rows)
        ]
        after = Place(number, -1) if same_script else states.get(call.history)
        pairs.append((Place(number, -1), after))
        unequal = [(a, b, ours.line(*a) != theirs.line(*b)) for b, a in pairs if a is not None]
        unequal = [found for found in unequal if found[2].any()]
        for site in theirs.sites() if unequal else ():
            for a, b, where in unequal:
                if site.state == (b.row < 0) and where[theirs.column(site)]:
                    yield site, (a, b)


def states_beside(
    config: ModelConfig, found: Sequence[tuple[Site, tuple[Place, Place]]]
) -> tuple[str, ...]:
    """Parts of the state that differ after the call of the first site, in its layer."""
    layer, call = found[0][0].layer, found[0][1][1].call
    behind = takewhile(lambda other: other[1][1].call == call, found[1:])
    beside = [site for site, _ in behind if site.state and site.layer == layer]
    return tuple(STATE_PARTS[config.layer_kinds[layer]][site.kind] for site in beside)


def reproduces(trace: Trace, dump: Path) -> bool:
    """Whether the recorded rows and the last state of a trace are those of the arm's dump."""
    files = Dump.open(dump)
    outputs = [[digest(row) for row in rows] for rows in (files.h_out, files.logits)]
    wanted = [list(pair) for pair in zip(*outputs, strict=True)]
    found = [
        [word_at(trace, Place(number, row), Site(-1, kind)) for kind in range(len(OUTPUTS))]
        for number, call in enumerate(trace.calls)
        for row in range(call.recorded)
    ]
    return found == wanted and [digest(part) for part in files.state.values()] == [
        int(word) for word in trace.states[-1]
    ]


def described(
    arms: tuple[str, str],
    config: ModelConfig,
    trace: Trace,
    site: Site,
    place: Place,
    ours: Floats,
    theirs: Floats,
    note: str = "",
) -> Divergence:
    """The first differing element of two captures, in words."""
    call = trace.calls[place.call]
    if ours.shape != theirs.shape:
        note = f"{ours.size} and {theirs.size} elements" + (f"; {note}" if note else "")
        return Divergence(arms, call.position, _operation(config, site), (), ("", ""), note=note)
    unequal = ours.view(np.uint32) != theirs.view(np.uint32)
    first = int(unequal.argmax())
    bits = pattern_of(ours[first].tobytes()), pattern_of(theirs[first].tobytes())
    index, part = _index(config, site, place, call, first)
    return Divergence(
        arms,
        _position(call, place),
        _operation(config, site),
        index,
        bits,
        row=max(0, place.row),
        rows=len(call.rows),
        call=call.kind,
        layer=site.layer,
        layer_kind=KIND_NAMES[config.layer_kinds[site.layer]] if site.layer >= 0 else "",
        part=part,
        different=int(np.count_nonzero(unequal)),
        total=ours.size,
        note=note,
    )


def _position(call: Call, place: Place) -> int:
    """Of a row: the tokens before it; of a state: the tokens in it."""
    return call.position if place.row < 0 else call.position - len(call.rows) + place.row


def _operation(config: ModelConfig, site: Site) -> str:
    if site.layer < 0:
        return OUTPUTS[site.kind]
    if site.state:
        return f"state {STATE_PARTS[config.layer_kinds[site.layer]][site.kind]}"
    return TAPS[site.kind]


def _index(
    config: ModelConfig, site: Site, place: Place, call: Call, first: int
) -> tuple[tuple[int, ...], str]:
    if not site.state:
        part = "" if site.layer < 0 else tap_part(config, site.layer, TAPS[site.kind], first)
        return (place.row, first), part
    name = STATE_PARTS[config.layer_kinds[site.layer]][site.kind]
    shape = state_shape(config, name, call.position)
    index = tuple(int(i) for i in np.unravel_index(first, shape))
    return index, state_part(config, name, index)


# ---- without taps --------------------------------------------------------------------------------


def from_dumps(
    arms: tuple[str, str],
    config: ModelConfig,
    script: tuple[Op, ...],
    dumps: tuple[Path, Path],
    note: str = "",
) -> Divergence | None:
    """What the three files show: the first differing row, or else the first part of the state.
    ``script`` is that of the second arm.
    """
    a, b = (Dump.open(folder) for folder in dumps)
    for row, place in zip(range(min(a.rows, b.rows)), _recorded(script), strict=False):
        for name, x, y in (("h_out", a.h_out, b.h_out), ("logits", a.logits, b.logits)):
            if found := _first(x[row], y[row]):
                at, bits, count = found
                position, of_step, m = place
                return Divergence(
                    arms, position, name, (of_step, at), bits, row=of_step, rows=m,
                    different=count, total=x.shape[1], note=note,
                )  # fmt: skip
    for name, x in a.state.items():
        y = b.state.get(name, x)
        if x.shape == y.shape and (found := _first(x.reshape(-1), y.reshape(-1))):
            at, bits, count = found
            layer, part = int(name.split(".")[1]), name.split(".")[2]
            index = tuple(int(i) for i in np.unravel_index(at, x.shape))
            return Divergence(
                arms, b.position, f"state {part}", index, bits, layer=layer, call="script",
                layer_kind=KIND_NAMES[config.layer_kinds[layer]],
                part=state_part(config, part, index), different=count, total=x.size, note=note,
            )  # fmt: skip
    return None


def _first(x: Floats, y: Floats) -> tuple[int, tuple[str, str], int] | None:
    unequal = x.view(np.uint32) != y.view(np.uint32)
    if not unequal.any():
        return None
    at = int(unequal.argmax())
    bits = pattern_of(x[at].tobytes()), pattern_of(y[at].tobytes())
    return at, bits, int(np.count_nonzero(unequal))


def _recorded(script: tuple[Op, ...]) -> Iterator[tuple[int, int, int]]:
    """(position, row of its step, M) of each recorded row."""
    for op, after in zip(script, cursors(script), strict=True):
        count, batch = len(op.tokens), op.kind == "step_m"
        for i in range(len(op.recorded)):
            yield after - count + i, i if batch else 0, count if batch else 1
