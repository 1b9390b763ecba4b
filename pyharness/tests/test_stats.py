"""Statistics against enumeration, published tables and their own promises."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from pyharness.speed import stats
from pyharness.speed.stats import Estimate, Word, conclude, estimate, pair_orders, signed_rank_p

MARGIN = stats.log_margin(1)


# ---- signed rank ---------------------------------------------------------------------------------


def enumerated_p(values: list[float]) -> float:
    """All 2^n patterns of signs, one by one."""
    kept = [v for v in values if v != 0]
    magnitudes = sorted(abs(v) for v in kept)
    if not kept:
        return 1.0
    rank = {m: 1 + magnitudes.index(m) + (magnitudes.count(m) - 1) / 2 for m in magnitudes}
    ranks = np.array([rank[abs(v)] for v in kept])
    signs = np.array(list(itertools.product((0, 1), repeat=len(kept))))
    sums, observed = signs @ ranks, sum(rank[v] for v in kept if v > 0)
    return min(1.0, 2 * min(np.mean(sums <= observed + 1e-9), np.mean(sums >= observed - 1e-9)))


@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize("grain", [0.0, 0.5, 2.0])
def test_p_is_that_of_all_patterns_of_signs(n: int, grain: float) -> None:
    """A grain rounds the values, so that there are ties and zeros."""
    rng = np.random.default_rng(n)
    for _ in range(10 if n < 10 else 2):
        values = rng.normal(0.5, 2, n)
        if grain:
            values = np.round(values / grain) * grain
        assert signed_rank_p(values) == pytest.approx(enumerated_p(list(values)), rel=1e-12)


@pytest.mark.parametrize(
    ("n", "critical"),
    # Largest smaller rank sum with a two-sided p of at most 5 %, as printed in tables of the test.
    [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (11, 10), (12, 13), (13, 17), (14, 21), (15, 25),
     (16, 29), (17, 34), (18, 40), (19, 46), (20, 52), (21, 58), (22, 65), (23, 73), (24, 81),
     (25, 89)],
)  # fmt: skip
def test_critical_values_are_the_published_ones(n: int, critical: int) -> None:
    def with_sum(total: int) -> list[float]:
        """Ranks 1..n, the positive ones of which have this sum."""
        values = []
        for rank in range(n, 0, -1):
            positive = rank <= total
            total -= rank if positive else 0
            values.append(float(rank if positive else -rank))
        assert total == 0
        return values

    assert signed_rank_p(with_sum(critical)) <= 0.05 < signed_rank_p(with_sum(critical + 1))


def test_the_smallest_p_and_the_fewest_pairs() -> None:
    for n in range(1, 40):
        assert signed_rank_p(np.arange(1.0, n + 1)) == pytest.approx(2 / 2**n, rel=1e-12)
    assert 2 / 2**stats.FEWEST_PAIRS <= stats.ALPHA < 2 / 2 ** (stats.FEWEST_PAIRS - 1)


def test_p_without_any_difference_and_with_exchanged_arms() -> None:
    assert signed_rank_p([0.0, 0.0]) == 1.0 and signed_rank_p([]) == 1.0
    values = np.random.default_rng(3).normal(1, 2, 17)
    assert signed_rank_p(values) == signed_rank_p(-values)


def test_many_pairs_keep_their_digits() -> None:
    """Against the normal approximation."""
    n = 400
    values = np.arange(1.0, n + 1)
    values[::2] *= -1
    values[-20:] = np.abs(values[-20:])
    w = values[values > 0].sum()
    z = (w - n * (n + 1) / 4) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    assert signed_rank_p(values) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.01)


# ---- intervals -----------------------------------------------------------------------------------


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng, covered, experiments = np.random.default_rng(4), 0, 1000
    for i in range(experiments):
        values = rng.standard_t(3, 20) * 0.003 + 0.01  # heavier tails than normal
        low, high = stats.bootstrap_interval(values, i, 400)
        covered += low <= 0.01 <= high
    assert 0.92 <= covered / experiments <= 0.98


def test_an_estimate_follows_from_its_seed() -> None:
    values = list(np.random.default_rng(5).normal(0.01, 0.003, 20))
    first = estimate(values, 1)
    assert first == estimate(values, 1) and first.median == pytest.approx(np.median(values))
    other = estimate(values, 2)
    assert stats.bootstrap_interval(np.array(values), 1, 50) != stats.bootstrap_interval(
        np.array(values), 2, 50
    )
    assert other.low == pytest.approx(first.low, abs=2e-4)
    assert first.low < first.median < first.high and first.significant
    exchanged = estimate([-v for v in values], 1)
    assert exchanged.low == pytest.approx(-first.high) and exchanged.p == first.p


def test_blocks_of_resamples_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(6).normal(0, 1, 50)
    whole = stats.bootstrap_interval(values, 0, 3000)
    monkeypatch.setattr(stats, "_BLOCK_ELEMENTS", 50 * 100)
    assert stats.bootstrap_interval(values, 0, 3000) == whole


def test_no_estimate_of_nothing() -> None:
    for values in ([], [math.nan], [0.1, math.inf]):
        with pytest.raises(ValueError, match="pair"):
            estimate(values, 0)


# ---- orders --------------------------------------------------------------------------------------


def test_orders_are_balanced_and_drawn() -> None:
    for pairs in (1, 2, 7, 20):
        orders = pair_orders(pairs, 3)
        assert len(orders) == pairs and orders == pair_orders(pairs, 3)
        assert all(a != b for a, b in zip(orders[::2], orders[1::2], strict=False))
    seen = {pair_orders(8, seed) for seed in range(200)}
    assert len(seen) == 2**4  # every counterbalanced order occurs


# ---- words ---------------------------------------------------------------------------------------


def made(median: float, half: float, p: float = 1e-4, pairs: int = 20) -> Estimate:
    """In per cent of a log ratio."""
    return Estimate(pairs, median / 100, (median - half) / 100, (median + half) / 100, p)


QUIET = made(0.02, 0.2, 0.7)


@pytest.mark.parametrize(
    ("found", "self_test", "word", "said"),
    [
        (made(3, 0.5), QUIET, Word.SLOWER, ""),
        (made(-3, 0.5), QUIET, Word.FASTER, ""),
        (made(0.1, 0.4, 0.5), QUIET, Word.SAME, ""),
        (made(0.5, 0.2), QUIET, Word.SAME, ""),  # a change, and one that does not matter
        (made(0.8, 0.4), QUIET, Word.SLOWER, ""),
        (made(0.2, 3, 0.6), QUIET, Word.INCONCLUSIVE, "both"),
        (made(3, 0.5, 0.07), QUIET, Word.INCONCLUSIVE, "yet p is over 5%"),
        (made(3, 0.5), made(0.1, 2.6, 0.8), Word.INCONCLUSIVE, "own copy"),  # a noisy self-test
        (made(3, 0.5), made(2, 0.5), Word.INCONCLUSIVE, "differs from its own copy"),
        (made(0.1, 0.2), made(-2, 0.5), Word.INCONCLUSIVE, "differs from its own copy"),
        (made(3, 0.5), made(0.3, 0.2), Word.SLOWER, ""),  # its difference is within the margin
        (made(0.1, 0.2, 0.06, 5), made(0, 0.1, 0.06, 5), Word.INCONCLUSIVE, "5 pairs cannot"),
        (made(30, 0.1, 0.06, 5), made(0, 0.1, 0.06, 20), Word.INCONCLUSIVE, "at least 6"),
        (made(30, 0.1), made(0, 0.1, 0.06, 5), Word.INCONCLUSIVE, "at least 6"),
    ],
)
def test_words(found: Estimate, self_test: Estimate, word: Word, said: str) -> None:
    conclusion = conclude(found, self_test, MARGIN)
    assert conclusion.word is word and said in conclusion.reason
    assert bool(conclusion.reason) == (word is Word.INCONCLUSIVE)
    mirrored = dataclasses.replace(
        found, median=-found.median, low=-found.high, high=-found.low
    )  # fmt: skip
    opposite = {Word.FASTER: Word.SLOWER, Word.SLOWER: Word.FASTER}
    assert conclude(mirrored, self_test, MARGIN).word is opposite.get(word, word)


@pytest.mark.parametrize("median", [0.0, 0.2, 0.45, 0.55, 0.9, 1.0, 1.5, 4.0])
def test_the_number_of_pairs_needed_decides_if_the_assumption_holds(median: float) -> None:
    found, self_test = made(median, 5, 0.3), made(0, 4, 0.5)
    before = conclude(found, self_test, MARGIN)
    assert before.word is Word.INCONCLUSIVE and before.pairs_needed > found.pairs

    def scaled(e: Estimate, pairs: int) -> Estimate:
        shrink = math.sqrt(e.pairs / pairs)
        low, high = (e.median + (x - e.median) * shrink for x in (e.low, e.high))
        return Estimate(pairs, e.median, low, high, 1e-4 if low > 0 else 0.3)

    more = before.pairs_needed + 1
    after = conclude(scaled(found, more), scaled(self_test, more), MARGIN)
    assert after.word is (Word.SAME if median <= 0.2 else after.word)
    assert after.word in (Word.SAME, Word.SLOWER)
    fewer = int(before.pairs_needed * 0.9)
    still = conclude(scaled(found, fewer), scaled(self_test, fewer), MARGIN)
    assert still.word is Word.INCONCLUSIVE


def test_a_margin_is_the_same_for_both_arms() -> None:
    assert stats.percent(stats.log_margin(1)) == pytest.approx(1)
    assert stats.percent(-stats.log_margin(1)) == pytest.approx(-100 / 101)


def test_settled() -> None:
    assert stats.settled([900, 100, 101, 100, 102, 101])
    assert not stats.settled([100, 101, 100, 103, 101])
    assert not stats.settled([100, 100, 100, 100])
