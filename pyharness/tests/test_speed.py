"""The protocol on a machine that drifts: made of numbers, so a clock decides nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyharness.device import CpuState, GpuState
from pyharness.errors import InputError, LibraryFailure
from pyharness.report import document
from pyharness.report.html import page
from pyharness.report.speed import speed_lines
from pyharness.report.svg import Row, intervals
from pyharness.speed import pairs, stats
from pyharness.speed.pairs import Design, Pair, Series, judge, measure
from pyharness.speed.stats import Word
from pyharness.speed.timing import (
    FILE,
    SCHEMA,
    Timing,
    estimate_json,
    read,
    series_json,
    timing_json,
    timing_of,
)
from pyharness.tests.report.samples import whole
from pyharness.values import to_json

EXPERIMENTS = 1000


@dataclass
class Machine:
    """One sample after the other. The logarithm of its speed is an AR(1) process and a trend; each
    time has noise of its own.
    """

    seed: int = 0
    noise: float = 0.003
    drift: float = 0.003  # standard deviation of the process; its memory is about 20 samples
    trend: float = 0.0005  # a sample
    log: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._state = 0.0

    def time(self, who: str, calls: int, call_ns: float) -> int:
        self.log.append((who, calls))
        memory = 0.95
        kick, noise = self._rng.standard_normal(2)
        self._state = memory * self._state + self.drift * math.sqrt(1 - memory**2) * kick
        slowness = self._state + self.trend * len(self.log) + self.noise * noise
        return round(calls * call_ns * math.exp(slowness))


@dataclass
class FakeSide:
    machine: Machine
    name: str
    call_ns: float = 5e6

    def sample(self, calls: int) -> int:
        return self.machine.time(self.name, calls, self.call_ns)


def experiment(effect: float, seed: int, design: Design, trend: float = 0.0005) -> pairs.Result:
    """Self-test and comparison, as the command makes them."""
    machine = Machine(seed, trend=trend)
    baseline = FakeSide(machine, "baseline")
    self_test = measure(baseline, FakeSide(machine, "copy"), design)
    other = FakeSide(machine, "candidate", baseline.call_ns * (1 + effect))
    return judge([self_test], [measure(baseline, other, design)], design)


def design(seed: int = 0, pairs: int = 20) -> Design:
    return Design(pairs, seed, 1.0, resamples=400)


def test_false_alarms_under_drift() -> None:
    """Without a margin to hide behind: how often do p and interval say that something changed?"""
    results = [experiment(0.0, i, design(i)) for i in range(EXPERIMENTS)]
    assert sum(r.change.significant for r in results) / EXPERIMENTS <= 0.07
    assert sum(r.self_test.significant for r in results) / EXPERIMENTS <= 0.07
    assert sum(r.word in (Word.FASTER, Word.SLOWER) for r in results) / EXPERIMENTS <= 0.01
    assert sum(r.word is Word.SAME for r in results) / EXPERIMENTS >= 0.95


@pytest.mark.parametrize(("effect", "word"), [(0.01, Word.SLOWER), (-0.01, Word.FASTER)])
def test_one_per_cent_is_found_under_drift(effect: float, word: Word) -> None:
    results = [experiment(effect, i, design(i)) for i in range(EXPERIMENTS // 4)]
    assert sum(r.change.significant for r in results) / len(results) >= 0.99
    assert sum(r.word is word for r in results) / len(results) >= 0.9
    assert np.median([r.change.median for r in results]) == pytest.approx(
        math.log1p(effect), abs=2e-4
    )


def test_without_counterbalanced_orders_the_same_test_is_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trend alone then reads as a change: that is what the orders are for."""
    monkeypatch.setattr(stats, "pair_orders", lambda pairs, seed, round_: (True,) * pairs)
    results = [experiment(0.0, i, design(i), trend=0.003) for i in range(100)]
    assert sum(r.change.significant for r in results) / 100 > 0.5


def rounds(effect: float, seed: int, design: Design) -> pairs.Result:
    """As ``experiment``, where each process is faster or slower than its library by luck: 1 %."""
    luck, machine = np.random.default_rng([seed, 9]), Machine(seed)

    def side(name: str, change: float = 0.0) -> FakeSide:
        return FakeSide(machine, name, 5e6 * (1 + change) * math.exp(luck.normal(0, 0.01)))

    self_test, comparison = [], []
    for round_ in range(design.rounds):
        baseline = side("baseline")
        self_test.append(measure(baseline, side("copy"), design, round_=round_))
        comparison.append(measure(baseline, side("candidate", effect), design, round_=round_))
    return judge(self_test, comparison, design)


def test_fresh_processes_take_the_luck_of_a_process_out() -> None:
    one, many = design(pairs=12), dataclasses.replace(design(pairs=4), rounds=8)
    alone = [rounds(0.0, i, one) for i in range(150)]
    fresh = [rounds(0.0, i, many) for i in range(150)]
    assert sum(r.change.significant for r in alone) / 150 > 0.5  # pairs of one process agree
    assert sum(r.change.significant for r in fresh) / 150 <= 0.07
    assert {r.change.pairs for r in fresh} == {8}
    found = [rounds(0.06, i, many) for i in range(50)]
    assert sum(r.word is Word.SLOWER for r in found) / 50 >= 0.9


# ---- the protocol --------------------------------------------------------------------------------


def test_the_order_of_everything() -> None:
    machine = Machine(noise=0, drift=0, trend=0)
    wanted = Design(6, 7, 1.0)
    fast, slow = FakeSide(machine, "b", 3e5), FakeSide(machine, "c", 9e5)
    series = measure(fast, slow, wanted)
    assert series.calls == 8 and series.settled  # 8 * 0.3 ms is the first power of two >= 2 ms
    assert len(series.warm_up_ns) == pairs.FEWEST_DROPPED + 5
    fitting, rest = machine.log[:8], machine.log[8:]
    assert fitting == [(who, calls) for calls in (1, 2, 4, 8) for who in "bc"]
    assert rest[:16] == [(who, 8) for _ in range(8) for who in "bc"]
    orders = stats.pair_orders(6, 7)
    assert rest[16:] == [(who, 8) for first in orders for who in ("bc" if first else "cb")]
    assert [p.baseline_first for p in series.pairs] == list(orders)
    assert {(p.baseline_ns, p.candidate_ns) for p in series.pairs} == {(2_400_000, 7_200_000)}


def test_a_machine_that_never_becomes_steady_is_measured_and_told() -> None:
    machine = Machine(noise=0.2)
    series = measure(FakeSide(machine, "b"), FakeSide(machine, "c"), design())
    assert not series.settled and len(series.warm_up_ns) == pairs.MOST_DROPPED
    lines = speed_lines(timing([series], [series]))
    assert sum("did not become steady" in line for line in lines) == 2


def test_the_warm_up_ends_by_the_clock() -> None:
    seconds = iter(range(0, 10_000, 100))
    machine = Machine(noise=0.2)
    series = measure(
        FakeSide(machine, "b"), FakeSide(machine, "c"), design(), clock=lambda: next(seconds)
    )
    assert len(series.warm_up_ns) == pairs.FEWEST_DROPPED + 5


def throttling(every: int) -> Callable[[], GpuState]:
    asked = iter(range(10_000))
    return lambda: GpuState(1000, 2000, 60, 300.0, (), throttled=next(asked) % every == 1)


def test_pairs_of_a_throttled_device_do_not_count() -> None:
    machine = Machine()
    sides = FakeSide(machine, "b"), FakeSide(machine, "c")
    series = measure(*sides, design(), device=throttling(10))
    assert len(series.pairs) == 20 and len(series.kept) == 16
    measured = timing([series], [series])
    assert measured.result.change.pairs == 16
    lines = speed_lines(measured)
    assert "note: A/B: 4 pairs discarded: the device throttled" in lines
    with pytest.raises(LibraryFailure, match="throttled in every pair"):
        judge([measure(*sides, design(), device=throttling(2))], [series], design())


# ---- what is told --------------------------------------------------------------------------------


def timing(self_test: Sequence[Series], comparison: Sequence[Series]) -> Timing:
    """As the command makes it."""
    states = CpuState((1.5, 1.0, 1.0), (2000.0,), None, 0.0), CpuState((0.5,), (), "x", None)
    return Timing(
        design(), "a step of 4 rows", {"baseline": True, "candidate": True},
        judge(self_test, comparison, design()), tuple(self_test), tuple(comparison),
        cores=2, cpu=states, gpu={"name": "a GPU"}, other_gpu_processes=None,
    )  # fmt: skip


def steady(ratio: float, pairs: int = 20, spread: float = 0.001) -> Series:
    rng = np.random.default_rng(1)
    times = [
        (8_000_000, round(8e6 * ratio * math.exp(rng.normal(0, spread)))) for _ in range(pairs)
    ]
    return Series(4, (), True, tuple(Pair(True, b, c) for b, c in times))


def told(self_test: Series, comparison: Series) -> Sequence[str]:
    return speed_lines(timing([self_test], [comparison]))


def test_lines() -> None:
    first, second, third, load = told(steady(1), steady(2))
    assert load == "load average 1.50 before, 0.50 after: 2 cores were not idle"
    assert first.startswith("A/A  SAME") and "the baseline against its own copy" in first
    assert second.startswith("A/B  SLOWER") and "+100.0" in second and "95 % interval" in second
    assert "p 1.9e-06, 20 pairs" in second
    assert third.strip() == (
        "a step of 4 rows: baseline 2 ms, candidate 4.001 ms (medians); 4 calls a sample"
    )


def test_inconclusive_says_what_it_would_need() -> None:
    (reason,) = (
        line for line in told(steady(1), steady(1.004, spread=0.03)) if "pairs would" in line
    )
    assert "if median and spread stay as they are" in reason
    lines = told(steady(1, pairs=3), steady(2, pairs=3))
    assert "3 pairs cannot give a p of 5% or less, whatever they show; at least 6 can" in lines[2]
    assert "INCONCLUSIVE" in lines[1]


def test_json_holds_every_sample() -> None:
    series = steady(2)
    data = json.loads(document.dumps(series_json(series)))
    assert len(data["pairs"]) == 20 and data["pairs"][0]["baseline_ns"] == 8_000_000
    assert data["discarded"] == 0
    found = estimate_json(judge([series], [series], design()).change)
    assert found["change_percent"] == pytest.approx(100, abs=0.2) and found["p"] < 1e-5


def throttled() -> Timing:
    """A pair of each kind that JSON must hold."""
    machine = Machine()
    sides = FakeSide(machine, "b"), FakeSide(machine, "c")
    return timing([steady(1)], [measure(*sides, design(), device=throttling(10))])


def speed_json(measured: Timing) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        document.dumps({"schema": SCHEMA, **timing_json(measured), "design": to_json(design())})
    )
    return told


def test_what_was_timed_comes_back_from_its_file(tmp_path: Path) -> None:
    measured = throttled()
    assert timing_of(speed_json(measured)) == measured
    assert read(tmp_path) is None
    (tmp_path / FILE).write_text(json.dumps(speed_json(measured)))
    assert read(tmp_path) == measured
    (tmp_path / FILE).write_text(json.dumps({"schema": SCHEMA, "word": None}))
    assert read(tmp_path) is None  # the bit check was red


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "ab-speed/2"),
        (("word",), "QUICKER"),
        (("change", "median"), float("nan")),
        (("change", "high"), 1e308),
        (("self_test", "p"), 2.0),
        (("samples", "comparison"), []),
        (("samples", "comparison", 0, "calls"), 0),
        (("samples", "self_test", 0, "pairs", 3, "candidate_ns"), 0),
        (("samples", "self_test", 0, "pairs", 3, "candidate_ns"), 10**400),
        (("cpu",), []),
        (("design",), None),
    ],
)
def test_a_file_that_was_bent_is_one_line(
    tmp_path: Path, path: tuple[Any, ...], value: Any
) -> None:
    broken = place = speed_json(throttled())
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / FILE).write_text(json.dumps(broken))
    with pytest.raises(InputError, match=r"speed\.json: not a speed: ") as found:
        read(tmp_path)
    assert "\n" not in str(found.value)


def test_the_page_shows_every_pair_and_both_words() -> None:
    measured = throttled()
    text = page(whole(), measured)
    (section,) = re.findall(r"<section[^>]*><h2[^>]*>Speed</h2>.*?</section>", text, re.S)
    kept = [len(s.kept) for s in (*measured.self_test, *measured.comparison)]
    assert kept == [20, 16] and section.count('class="dot"') == sum(kept)
    for line in speed_lines(measured):
        if line.startswith(("note: ", "load ")):
            assert line in section
    for word in (measured.result.word, measured.result.self_test_word):
        assert f"<strong>{word}</strong>" in section
    ET.fromstring(re.findall(r"<svg.*?</svg>", section, re.S)[0])
    assert "<h2>Speed</h2>" not in page(whole()) and ">Speed<" not in page(whole())


def test_dots_lie_where_their_numbers_say() -> None:
    rows = [Row("A/B", [-2.0, 2.0], -1, 0, 1)]
    root = ET.fromstring(intervals("x", "t", "d", rows, 1.0, lambda x: f"<{x:.1f}>"))
    assert [t.text for t in root.iter("text")] == ["A/B", "<-2.1>", "0", "<2.1>"]
    left, right = (float(c.attrib["cx"]) for c in root.iter("circle"))
    rects = {r.attrib["class"]: r.attrib for r in root.iter("rect")}
    zero = float(rects["axis"]["x"])
    assert zero - left == pytest.approx(right - zero, abs=0.02) and right > left
    assert float(rects["band"]["width"]) == pytest.approx((right - left) / 2, abs=0.02)
    assert float(rects["bar"]["width"]) == pytest.approx((right - left) / 2, abs=0.02)
