"""How a difference spreads over rows and layers: every differing operation of two traces, for a
picture.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyharness.differences.divergence import Place
from pyharness.differences.findings import Spread
from pyharness.differences.traces import TAPS, Site, Trace

SPREAD_ROWS = 64


def spread(trace: Trace, found: Iterable[tuple[Site, tuple[Place, Place]]]) -> Spread | None:
    """All differing operations by row and layer, for at most ``SPREAD_ROWS`` rows of the second
    arm's trace from the first that differs on; None where only states differ.
    """
    sites: dict[Place, list[Site]] = {}
    for site, (_, place) in found:
        if not site.state:
            sites.setdefault(place, []).append(site)
    if not sites:
        return None
    every = [
        Place(number, row)
        for number, call in enumerate(trace.calls)
        for row in range(len(call.rows))
    ]
    first = min(sites)
    shown = [place for place in every if place >= first][:SPREAD_ROWS]
    layers, outputs = [], []
    for place in shown:
        here = sites.get(place, [])
        layers.append(tuple(sum(s.layer == n for s in here) for n in range(trace.layers)))
        outputs.append((Site(-1, 0) in here, Site(-1, 1) in here))
    positions = tuple(_tokens_before(trace, place) for place in shown)
    return Spread(positions, TAPS, tuple(layers), tuple(outputs))


def _tokens_before(trace: Trace, place: Place) -> int:
    call = trace.calls[place.call]
    return call.position - len(call.rows) + place.row
