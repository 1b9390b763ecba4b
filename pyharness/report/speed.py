"""What was timed, for people: lines of a terminal and a section of the page. No number stands
without its spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from pyharness.report import svg
from pyharness.report.markup import esc, figure, table
from pyharness.report.svg import Row
from pyharness.speed import stats
from pyharness.speed.pairs import Rounds
from pyharness.speed.stats import Estimate, Word
from pyharness.speed.timing import Timing

_SIDES = {"A/A": "the baseline against its own copy", "A/B": "the candidate against the baseline"}


def speed_lines(timing: Timing) -> list[str]:
    """The self-test, the comparison, what may spoil them."""
    lines = [
        f"{change_line(name, word, found, timing.design.unit)}, {_SIDES[name]}"
        for name, word, found, _ in _both(timing)
    ]
    if timing.result.reason:
        lines.append(f"     {_reason(timing)}")
    return [*lines, f"     {_times(timing)}", *_conditions(timing)]


def change_line(name: str, word: Word, found: Estimate, unit: str) -> str:
    """``name  WORD  +1.2 %  95 % interval +0.9 .. +1.5 %, p 0.0001, 20 pairs``; + is slower."""
    return (
        f"{name}  {word.value:<12}  {_percent(found.median):>9}  95 % interval {_interval(found)}, "
        f"p {found.p:.2g}, {_count(found, unit)}"
    )


def _both(timing: Timing) -> tuple[tuple[str, Word, Estimate, Rounds], ...]:
    result = timing.result
    return (
        ("A/A", result.self_test_word, result.self_test, timing.self_test),
        ("A/B", result.word, result.change, timing.comparison),
    )


def _percent(log_ratio: float) -> str:
    return f"{stats.percent(log_ratio):+.2f} %"


def _interval(found: Estimate) -> str:
    return f"{stats.percent(found.low):+.2f} .. {_percent(found.high)}"


def _count(found: Estimate, unit: str) -> str:
    return f"{found.pairs} {unit}{'s' if found.pairs != 1 else ''}"


def _reason(timing: Timing) -> str:
    """Why it is INCONCLUSIVE, and what would help."""
    result, design = timing.result, timing.design
    advice = ""
    if min(result.change.pairs, result.self_test.pairs) >= stats.FEWEST_PAIRS:
        if result.pairs_needed:
            advice = (
                f"; about {result.pairs_needed} {design.unit}s would decide, if median and spread "
                "stay as they are"
            )
        elif design.rounds == 1:
            advice = "; --rounds 8 takes each eighth of the evidence from fresh processes"
    return f"{result.reason}{advice}"


def _times(timing: Timing) -> str:
    calls = timing.comparison[0].calls
    return (
        f"{timing.call}: baseline {milliseconds(timing.comparison, 'baseline_ns')} ms, "
        f"candidate {milliseconds(timing.comparison, 'candidate_ns')} ms (medians); "
        f"{calls} call{'s' if calls != 1 else ''} a sample"
    )


def milliseconds(rounds: Rounds, side: str) -> str:
    """The median of one call."""
    times = [getattr(pair, side) / series.calls / 1e6 for series in rounds for pair in series.kept]
    return f"{statistics.median(times):.4g}"


def _conditions(timing: Timing) -> Iterator[str]:
    """Under what the times were taken, where it may spoil them."""
    for name, _, _, rounds in _both(timing):
        if restless := sum(not series.settled for series in rounds):
            times = f" in {restless} of {len(rounds)} rounds" if len(rounds) > 1 else ""
            yield f"note: {name}: the times before the first pair did not become steady{times}"
        if spoilt := sum(len(series.pairs) - len(series.kept) for series in rounds):
            yield f"note: {name}: {spoilt} pairs discarded: the device throttled"
    before, after = (state.load for state in timing.cpu)
    if before and after:
        busy = f": {timing.cores} cores were not idle" if before[0] > 0.5 * timing.cores else ""
        yield f"load average {before[0]:.2f} before, {after[0]:.2f} after{busy}"
    if others := timing.other_gpu_processes:
        yield f"note: {others} other processes computed on the device"


# ---- the page ------------------------------------------------------------------------------------


def speed_fact(timing: Timing) -> str:
    """For the head of the page."""
    return f"{timing.result.word.value} {_interval(timing.result.change)}"


def speed_section(timing: Timing) -> str:
    """A table of both comparisons, and every pair of them as a dot."""
    rows, drawn = [], []
    for name, word, found, rounds in _both(timing):
        unit = timing.design.unit
        rows.append(
            (
                esc(f"{name}: {_SIDES[name]}"), f"<strong>{esc(word.value)}</strong>",
                _percent(found.median), _interval(found), f"{found.p:.2g}", _count(found, unit),
            )
        )  # fmt: skip
        values = [pair.log_ratio for series in rounds for pair in series.kept]
        drawn.append(Row(name, values, found.low, found.median, found.high))
    margin = timing.design.margin_percent
    numbers = "; ".join(f"{name} {change}, {interval}" for name, _, change, interval, *_ in rows)
    picture = svg.intervals(
        "speed", "Change of each pair",
        "Candidate against baseline on a logarithmic scale, to the right is slower. Dots are "
        f"pairs, bars 95 % intervals of the median. {numbers}.",
        drawn, stats.log_margin(margin), lambda x: f"{stats.percent(x):+.1f} %",
    )  # fmt: skip
    notes = [*([_reason(timing)] if timing.result.reason else []), *_conditions(timing)]
    told = "".join(f'<p class="soft">{esc(note)}</p>' for note in notes)
    head = ("", "", "change", "95 % interval", "p", "of")
    caption = f"{_times(timing)}; + is slower"
    shown = figure(picture, f"Change of each pair; band: the margin of {margin:g} %")
    return f'<div class="card">{table(head, rows, caption=caption)}{told}{shown}</div>'
