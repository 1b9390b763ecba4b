"""Measures two warm sides in pairs, one at a time, and says what the pairs show.

The same way serves the self-test (the baseline and its own copy in another process) and the
comparison, so the self-test has every advantage and every fault of the comparison.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyharness.device import GpuState
from pyharness.errors import LibraryFailure
from pyharness.speed import stats
from pyharness.speed.stats import Conclusion, Estimate, Word

SAMPLE_NS = 2_000_000  # a sample takes at least this long, so that a clock's step is nothing in it
LONGEST_NS = 1 << 62  # more is no time
FEWEST_DROPPED = 3  # samples of each side before the first one that may count
MOST_DROPPED = 40
WARM_UP_S = 10.0
MOST_CALLS = 1 << 14


class Side(Protocol):
    """A warm worker."""

    def sample(self, calls: int) -> int:
        """Nanoseconds of so many calls."""
        ...


@dataclass(frozen=True)
class Design:
    """How is measured; all of it is fixed before the first time is seen."""

    pairs: int
    seed: int
    margin_percent: float
    rounds: int = 1  # of pairs, each in fresh processes; with several, a round counts, not a pair
    resamples: int = stats.RESAMPLES
    sample_ns: int = SAMPLE_NS

    @property
    def unit(self) -> str:
        """What is drawn anew and counted."""
        return "pair" if self.rounds == 1 else "round"


@dataclass(frozen=True)
class Pair:
    """Two times taken right after each other."""

    baseline_first: bool
    baseline_ns: int
    candidate_ns: int
    device: tuple[GpuState, ...] = ()  # before and after; empty without a GPU

    @property
    def throttled(self) -> bool:
        return any(state.throttled for state in self.device)

    @property
    def log_ratio(self) -> float:
        return math.log(self.candidate_ns / self.baseline_ns)


@dataclass(frozen=True)
class Series:
    """Everything that was timed, in the order in which it was."""

    calls: int  # in a sample, the same for both sides
    warm_up_ns: tuple[tuple[int, int], ...]  # dropped: baseline, candidate
    settled: bool  # both sides were steady before the first pair
    pairs: tuple[Pair, ...]

    @property
    def kept(self) -> tuple[Pair, ...]:
        """Pairs that the device did not spoil by protecting itself."""
        return tuple(pair for pair in self.pairs if not pair.throttled)


def measure(
    baseline: Side,
    candidate: Side,
    design: Design,
    *,
    round_: int = 0,
    device: Callable[[], GpuState | None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Series:
    """Fits the number of calls, warms up, takes all pairs; only one side computes at a time."""
    calls = _fit_calls(baseline, candidate, design.sample_ns)
    warm_up, settled = _warm_up(baseline, candidate, calls, clock)
    pairs = []
    for baseline_first in stats.pair_orders(design.pairs, design.seed, round_):
        before = device()
        if baseline_first:
            baseline_ns, candidate_ns = baseline.sample(calls), candidate.sample(calls)
        else:
            candidate_ns, baseline_ns = candidate.sample(calls), baseline.sample(calls)
        states = tuple(state for state in (before, device()) if state is not None)
        pairs.append(Pair(baseline_first, baseline_ns, candidate_ns, states))
    return Series(calls, warm_up, settled, tuple(pairs))


def _fit_calls(baseline: Side, candidate: Side, sample_ns: int) -> int:
    """The smallest power of two whose sample is long enough on both sides."""
    calls = 1
    while min(baseline.sample(calls), candidate.sample(calls)) < sample_ns and calls < MOST_CALLS:
        calls *= 2
    return calls


def _warm_up(
    baseline: Side, candidate: Side, calls: int, clock: Callable[[], float]
) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Until five samples in a row of each side fall within 2 %, after at least three, at most so
    many or so long.
    """
    dropped: list[tuple[int, int]] = []
    end = clock() + WARM_UP_S
    settled = False
    while not settled and len(dropped) < MOST_DROPPED:
        if len(dropped) >= FEWEST_DROPPED + 5 and clock() > end:
            break
        dropped.append((baseline.sample(calls), candidate.sample(calls)))
        later = dropped[FEWEST_DROPPED:]
        settled = all(stats.settled(times) for times in zip(*later, strict=True)) and bool(later)
    return tuple(dropped), settled


# ---- what the pairs show -------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    word: Word
    reason: str
    pairs_needed: int
    change: Estimate
    self_test: Estimate
    self_test_word: Word  # what the same rules say of the baseline and its copy


Rounds = Sequence[Series]


def judge(self_test: Rounds, comparison: Rounds, design: Design) -> Result:
    """LibraryFailure where the device spoilt every pair.

    Two processes of one library may differ by a per cent, always in the same direction: where their
    memory lies is a matter of luck. Pairs in one process share that luck. With several rounds each
    contributes one number, the median of its pairs, so that the luck is part of the spread.
    """
    margin = stats.log_margin(design.margin_percent)
    same = _estimate("the baseline and its copy", self_test, design)
    change = _estimate("the libraries", comparison, design)
    said: Conclusion = stats.conclude(change, same, margin, design.unit)
    return Result(
        said.word,
        said.reason,
        said.pairs_needed,
        change,
        same,
        stats.conclude(same, _NOTHING, margin).word,
    )


# Against this, the self-test itself is judged by its own interval alone.
_NOTHING = Estimate(pairs=1 << 30, median=0.0, low=0.0, high=0.0, p=1.0)


def _estimate(who: str, rounds: Rounds, design: Design) -> Estimate:
    by_round = [[pair.log_ratio for pair in series.kept] for series in rounds if series.kept]
    if not by_round:
        raise LibraryFailure(f"{who}: the device throttled in every pair; cool it and run again")
    ratios = by_round[0] if design.rounds == 1 else list(map(statistics.median, by_round))
    return stats.estimate(ratios, design.seed, design.resamples)
