"""What ``run-ab speed`` measured, as one value, and ``speed.json``, which holds it.

``speed.schema.json`` beside this module is the file's published form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pyharness.device import CpuState
from pyharness.errors import InputError
from pyharness.files import read_regular
from pyharness.speed import stats
from pyharness.speed.pairs import LONGEST_NS, Design, Result, Rounds, Series
from pyharness.speed.stats import Estimate, Word
from pyharness.values import from_json, to_json

SCHEMA = "ab-speed/1"
SCHEMA_FILE = Path(__file__).with_name("speed.schema.json")
FILE = "speed.json"  # in the folder of the run whose verdict is the bit check
_LARGEST_LOG = 50.0  # of a ratio of two times


@dataclass(frozen=True)
class Timing:
    """Behind a green bit check."""

    design: Design
    call: str  # what one call is, for people: "a step of 4 rows"
    by_rows: dict[str, bool]  # by arm: whether an M-row step was timed, or M single steps
    result: Result
    self_test: tuple[Series, ...]  # of each round
    comparison: tuple[Series, ...]
    cores: int
    cpu: tuple[CpuState, CpuState]  # before and after
    gpu: dict[str, Any] | None
    other_gpu_processes: int | None  # of others that computed on the device


# ---- to JSON -------------------------------------------------------------------------------------


def timing_json(timing: Timing) -> dict[str, Any]:
    """Members of ``speed.json``, beside what is known before anything is timed."""
    result = timing.result
    return {
        "word": result.word.value,
        "reason": result.reason,
        "pairs_needed": result.pairs_needed,
        "call": timing.call,
        "by_rows": timing.by_rows,
        "change": estimate_json(result.change),
        "self_test": {
            "word": result.self_test_word.value,
            **estimate_json(result.self_test),
        },
        "alpha": stats.ALPHA,
        "cores": timing.cores,
        "cpu": to_json(timing.cpu),
        "gpu": timing.gpu,
        "other_gpu_processes": timing.other_gpu_processes,
        "samples": {
            "self_test": [series_json(series) for series in timing.self_test],
            "comparison": [series_json(series) for series in timing.comparison],
        },
    }


def estimate_json(found: Estimate) -> dict[str, Any]:
    """With the changes in per cent beside the log ratios."""
    return {
        "change_percent": stats.percent(found.median),
        "low_percent": stats.percent(found.low),
        "high_percent": stats.percent(found.high),
        **to_json(found),
    }


def series_json(series: Series) -> dict[str, Any]:
    return {**to_json(series), "discarded": len(series.pairs) - len(series.kept)}


# ---- from JSON -----------------------------------------------------------------------------------


def read(folder: Path) -> Timing | None:
    """Of a run's folder; None where nothing was timed. InputError where the file is not one."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        whole = json.loads(read_regular(path))
        if not isinstance(whole, dict) or whole.get("schema") != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        return timing_of(whole) if whole["word"] is not None else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(f"{path}: not a speed: {' '.join(str(e).split())}") from None


def timing_of(whole: Mapping[str, Any]) -> Timing:
    """The inverse of ``timing_json``; ValueError, KeyError or TypeError where that does not go."""
    same, change, samples = whole["self_test"], whole["change"], whole["samples"]
    result = Result(
        word=Word(whole["word"]),
        reason=from_json(str, whole["reason"]),
        pairs_needed=from_json(int, whole["pairs_needed"]),
        change=_known(Estimate, change),
        self_test=_known(Estimate, same),
        self_test_word=Word(same["word"]),
    )
    timing = Timing(
        result=result,
        self_test=tuple(_known(Series, s) for s in samples["self_test"]),
        comparison=tuple(_known(Series, s) for s in samples["comparison"]),
        **{
            name: from_json(kind, whole[name])
            for name, kind in (
                ("design", Design), ("call", str), ("by_rows", dict[str, bool]), ("cores", int),
                ("cpu", tuple[CpuState, CpuState]), ("gpu", dict[str, Any] | None),
                ("other_gpu_processes", int | None),
            )
        },
    )  # fmt: skip
    for found in (result.change, result.self_test):
        _check(found)
    for rounds in (timing.self_test, timing.comparison):
        _check_rounds(rounds)
    return timing


def _known(kind: type, data: Mapping[str, Any]) -> Any:
    """A value whose JSON holds more than its fields."""
    return from_json(kind, {f.name: data[f.name] for f in fields(kind)})


def _check(found: Estimate) -> None:
    logs = found.median, found.low, found.high
    if not all(abs(x) < _LARGEST_LOG for x in logs) or not 0 <= found.p <= 1:  # NaN is refused too
        raise ValueError("an estimate is out of range")


def _check_rounds(rounds: Rounds) -> None:
    times = [ns for s in rounds for p in s.kept for ns in (p.baseline_ns, p.candidate_ns)]
    if not times or not all(0 < ns < LONGEST_NS for ns in times):
        raise ValueError("no times, or times out of range")
    if not all(0 < s.calls < LONGEST_NS for s in rounds):
        raise ValueError("a sample without calls")
