"""Statistics of paired times: pure functions, numpy only.

A pair is one time of the baseline and one of the candidate, taken right after each other. Drift of
the machine is common to both, so what is looked at is the logarithm of their ratio, pair by pair.
No normal distribution is assumed: the estimate is a median, its interval a percentile bootstrap
over pairs, and p comes from the exact null distribution of the signed-rank statistic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

ALPHA = 0.05
RESAMPLES = 10_000
# The most extreme of the 2^n patterns of signs and its mirror image: p cannot be below 2 / 2^n.
FEWEST_PAIRS = 6
MOST_PAIRS = 1000  # the exact distribution costs their third power: here half a second
_BLOCK_ELEMENTS = 1 << 20  # of resampled ratios held at a time


class Word(StrEnum):
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Estimate:
    """Of the natural logarithm of candidate / baseline: above 0, the candidate takes longer."""

    pairs: int
    median: float
    low: float  # 95 % interval
    high: float
    p: float  # two-sided
    zeros: int = 0  # pairs without a difference: p is that of the others

    @property
    def reach(self) -> float:
        """The largest change, either way, that the interval holds."""
        return max(abs(self.low), abs(self.high))

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def significant(self) -> bool:
        """Both say so: p and the interval."""
        return self.p <= ALPHA and (self.low > 0 or self.high < 0)

    def within(self, margin: float) -> bool:
        return self.reach <= margin


@dataclass(frozen=True)
class Conclusion:
    word: Word
    reason: str = ""  # of an INCONCLUSIVE
    pairs_needed: int = 0  # 0: more pairs would not help, or none are needed


def percent(log_ratio: float) -> float:
    """A log ratio as a change in per cent."""
    return 100 * math.expm1(log_ratio)


def log_margin(margin_percent: float) -> float:
    """The margin, as a log ratio: symmetric there, so that exchanging the arms changes nothing."""
    return math.log1p(margin_percent / 100)


# ---- the order of a pair ------------------------------------------------------------------------


def pair_orders(pairs: int, seed: int, round_: int = 0) -> tuple[bool, ...]:
    """For each pair, whether the baseline goes first.

    Of each two pairs in a row, one begins with the baseline and one with the candidate; chance
    decides which. So a trend and an advantage of the second place cancel, and no rhythm of the
    machine can fall in step with the order.
    """
    first = np.random.default_rng([seed, 0, round_]).integers(0, 2, (pairs + 1) // 2).astype(bool)
    return tuple(bool(x) for flip in first for x in (flip, not flip))[:pairs]


# ---- estimates ----------------------------------------------------------------------------------


def estimate(log_ratios: Sequence[float], seed: int, resamples: int = RESAMPLES) -> Estimate:
    """ValueError for no pairs, or for a ratio that is not finite."""
    values = np.asarray(log_ratios, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError("an estimate needs at least one pair of positive finite times")
    low, high = bootstrap_interval(values, seed, resamples)
    return Estimate(
        pairs=len(values),
        median=float(np.median(values)),
        low=low,
        high=high,
        p=signed_rank_p(values),
        zeros=int(np.count_nonzero(values == 0)),
    )


def bootstrap_interval(
    values: np.ndarray, seed: int, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The middle 95 % of the medians of pairs drawn with replacement."""
    rng = np.random.default_rng([seed, 1])
    n, block = len(values), max(1, _BLOCK_ELEMENTS // len(values))
    medians = [
        np.median(values[rng.integers(0, n, (min(block, resamples - done), n))], axis=1)
        for done in range(0, resamples, block)
    ]
    low, high = np.quantile(np.concatenate(medians), [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def signed_rank_p(values: Sequence[float] | np.ndarray) -> float:
    """Exact two-sided p of Wilcoxon's signed-rank test that the values lie symmetrically about 0.

    Zeros are left out (Wilcoxon's own rule). Equal magnitudes share the mean of their ranks, and
    the null distribution is that of these very ranks: every pattern of signs is equally likely, so
    the sum of the positive ranks is counted over all 2^n of them, one rank at a time. Doubled
    ranks are whole numbers, ties included. 1.0 where nothing is left.
    """
    differences = np.asarray(values, np.float64)
    differences = differences[differences != 0]
    doubled = _doubled_midranks(np.abs(differences))
    chance = np.zeros(int(doubled.sum()) + 1)
    chance[0], reached = 1.0, 1  # sums below ``reached`` have been possible so far
    for rank in np.sort(doubled):  # all terms are positive: nothing cancels, no digit is lost
        chance[:reached] /= 2
        chance[rank : rank + reached] += chance[:reached].copy()
        reached += rank
    observed = int(doubled[differences > 0].sum())
    tail = min(chance[: observed + 1].sum(), chance[observed:].sum())
    return float(min(1.0, 2 * tail))


def _doubled_midranks(magnitudes: np.ndarray) -> np.ndarray:
    """Twice the rank, 1 the smallest; equal ones get twice the mean of theirs."""
    _, group, counts = np.unique(magnitudes, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # rank of the last member of each group
    doubled: np.ndarray = (2 * last - counts + 1)[group]
    return doubled


# ---- verdict ------------------------------------------------------------------------------------


def conclude(found: Estimate, self_test: Estimate, margin: float, unit: str = "pair") -> Conclusion:
    """The first rule that applies. ``self_test``: the baseline against its own copy, the same way;
    ``margin``: a log ratio, the smallest change that matters; ``unit``: what a pair is called.
    """
    fewest = min(found.pairs, self_test.pairs)
    if fewest < FEWEST_PAIRS:
        reason = (
            f"{fewest} {unit}{'s' if fewest != 1 else ''} cannot give a p of {ALPHA:.0%} or less, "
            f"whatever they show; at least {FEWEST_PAIRS} can"
        )
        return Conclusion(Word.INCONCLUSIVE, reason, FEWEST_PAIRS)
    if self_test.significant and not self_test.within(margin):
        reason = "the baseline differs from its own copy by more than the margin"
        return Conclusion(Word.INCONCLUSIVE, reason)
    if found.within(margin):
        return Conclusion(Word.SAME)
    beyond = min(abs(found.low), abs(found.high)) > self_test.reach
    if found.significant and beyond:
        return Conclusion(Word.SLOWER if found.median > 0 else Word.FASTER)
    if found.significant:
        reason = "the change is not beyond what the baseline shows against its own copy"
    else:
        reason = "the interval holds both no change and one beyond the margin"
        if not found.low <= 0 <= found.high:
            reason = f"the interval is on one side of no change, yet p is over {ALPHA:.0%}"
    return Conclusion(Word.INCONCLUSIVE, reason, pairs_needed(found, self_test, margin))


def pairs_needed(found: Estimate, self_test: Estimate, margin: float) -> int:
    """Pairs after which the word would be another one, if the median stays where it is, the pairs
    spread as they do, and so both intervals narrow with the square root of their number.
    """
    change = abs(found.median)
    # as a difference: the interval must leave that of the self-test; as SAME: reach the margin
    options = [
        (width / room) ** 2
        for width, room in (
            (found.half_width + self_test.reach, change),
            (found.half_width, margin - change),
        )
        if room > 0
    ]
    if not options:
        return 0
    return max(FEWEST_PAIRS, found.pairs + 1, math.ceil(found.pairs * min(min(options), 1e9)))


def settled(times: Sequence[int], window: int = 5, tolerance: float = 0.02) -> bool:
    """Whether the last few times lie within a tolerance of the smallest of them."""
    last = times[-window:]
    return len(last) == window and max(last) <= (1 + tolerance) * min(last)
