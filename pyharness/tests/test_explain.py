"""Distances against numpy's own neighbours, and what is told of rows, elements and flips."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.compare import compare_dumps
from pyharness.differences import explain, ulp
from pyharness.differences.findings import Distances, Element, Flip, Group, explanation_line
from pyharness.tests.test_compare import safetensors
from pyharness.values import from_json, to_json

WORDS = st.integers(0, 2**32 - 1)
NAMES = list(Distances.__dataclass_fields__)


def write_state(path: Path, tensors: dict[str, np.ndarray]) -> None:
    path.write_bytes(safetensors(tensors))


def words(*values: float) -> np.ndarray:
    return np.array(values, np.float32).view(np.uint32)


def name_of(x: int, y: int) -> str:
    """The class of one pair, from its definition and in exact integers."""
    if x == y:
        return "equal"
    a, b = (np.array([w], np.uint32).view(np.float32)[0] for w in (x, y))
    if math.isnan(a) or math.isnan(b):
        return "nan"
    if math.isinf(a) or math.isinf(b):
        return "infinite"
    if a == b:
        return "sign_of_zero"
    places = [-(w & 0x7FFFFFFF) if w >> 31 else w for w in (x, y)]
    apart = abs(places[0] - places[1])
    limits = ((1, "ulp_1"), (2, "ulp_2"), (10, "ulp_3_to_10"), (100, "ulp_11_to_100"))
    return next((name for limit, name in limits if apart <= limit), "ulp_more")


@given(
    st.lists(st.tuples(WORDS, st.one_of(WORDS, st.integers(-120, 120)), st.booleans()), max_size=40)
)
def test_each_pair_has_one_class(pairs: list[tuple[int, int, bool]]) -> None:
    x = [a for a, _, _ in pairs]
    y = [(a + b) % 2**32 if near else b % 2**32 for a, b, near in pairs]
    counts = explain.distances(np.array(x, np.uint32), np.array(y, np.uint32))
    expected = [name_of(a, b) for a, b in zip(x, y, strict=True)]
    assert dict(zip(NAMES, counts.tolist(), strict=True)) == {n: expected.count(n) for n in NAMES}


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 11, 100, 101])
@pytest.mark.parametrize("start", [1.0, -1.0, 0.0, 1e-45, 255.99998])
def test_distance_counts_the_neighbours_between(start: float, steps: int) -> None:
    value = np.float32(start)
    for _ in range(steps):
        value = np.nextafter(value, np.float32(9.0))
    edges = [(1, "ulp_1"), (2, "ulp_2"), (10, "ulp_3_to_10"), (100, "ulp_11_to_100")]
    expected = next((n for limit, n in edges if steps <= limit), "ulp_more")
    counts = explain.distances(words(start), words(float(value)))
    assert NAMES[int(counts.argmax())] == expected and counts.sum() == 1


def dumps(tmp_path: Path) -> tuple[Path, Path, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    h, logits = rng.normal(size=(5, 6)).astype("<f4"), rng.normal(size=(5, 9)).astype("<f4")
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        np.save(folder / "h_out.npy", h)
        np.save(folder / "logits.npy", logits)
        write_state(folder / "state.safetensors", {"layers.0.S": h[:3], "layers.1.conv": h[3:]})
    return *folders, h, logits


def test_only_files_that_differ_are_explained(tmp_path: Path) -> None:
    a, b, _, _ = dumps(tmp_path)
    assert explain.explain(a, b, compare_dumps(a, b)) == ()


def test_rows_elements_and_flips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "BLOCK_ELEMENTS", 4)  # a row is read in three blocks
    a, b, _, logits = dumps(tmp_path)
    other = logits.copy()
    other[1, 2] = np.nextafter(other[1, 2], np.float32(9))
    other[3, 8] = 50.0
    other[4, 0] = np.nan
    np.save(b / "logits.npy", other)
    (told,) = explain.explain(a, b, compare_dumps(a, b))
    assert told.file == "logits.npy"
    assert told.distances == Distances(equal=42, ulp_1=1, ulp_more=1, nan=1)
    assert [(g.name, g.distances.different) for g in told.groups] == [("1", 1), ("3", 1), ("4", 1)]
    best = int(logits[3].argmax())
    flips = [Flip(3, best, 8)]
    if int(logits[4].argmax()) == 0:  # a NaN is never the largest
        flips.append(Flip(4, 0, int(np.nanargmax(other[4]))))
    assert told.flips == tuple(flips) and told.flipped == len(flips)
    first = told.first[0]
    assert (first.tensor, first.index) == ("", (1, 2))
    assert int(first.candidate_bits, 16) == int(other[1, 2:3].view(np.uint32)[0])
    assert [e.index for e in told.first] == [(1, 2), (3, 8), (4, 0)]
    line = explanation_line(told)
    assert line.startswith("1 x 1 ulp, 1 x over 100 ulp, 1 x NaN; rows 1, 3-4; argmax of row 3: ")
    assert from_json(type(told), to_json(told)) == told


def test_the_state_by_tensors(tmp_path: Path) -> None:
    a, b, h, _ = dumps(tmp_path)
    conv = h[3:].copy()
    conv[1, 5] = -conv[1, 5]
    write_state(b / "state.safetensors", {"layers.0.S": h[:3], "layers.1.conv": conv})
    (told,) = explain.explain(a, b, compare_dumps(a, b))
    assert told.groups == (Group("layers.1.conv", Distances(equal=11, ulp_more=1)),)
    assert told.first[0].tensor == "layers.1.conv" and told.first[0].index == (1, 5)
    assert "layers.1.conv" in explanation_line(told) and not told.flips


def test_what_is_listed_is_bounded(tmp_path: Path) -> None:
    rows = 3 * explain.GROUPS
    for name, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "logits.npy", np.full((rows, 2), value, "<f4"))
    np.save(tmp_path / "b/logits.npy", np.tile(np.array([1, 2], "<f4"), (rows, 1)))
    told = explain.explain_file(tmp_path / "a/logits.npy", tmp_path / "b/logits.npy")
    assert len(told.groups) == explain.GROUPS and told.groups_differing == rows
    assert len(told.first) == explain.ELEMENTS and isinstance(told.first[0], Element)
    assert len(told.flips) == explain.FLIPS and told.flipped == rows
    assert told.distances.different == rows and told.distances.total == 2 * rows
    assert f"and {rows - 1} more" in explanation_line(told)


def test_other_shapes_are_named_and_not_counted(tmp_path: Path) -> None:
    a, b, h, _ = dumps(tmp_path)
    np.save(b / "h_out.npy", h[:, :5])
    write_state(b / "state.safetensors", {"layers.0.S": h[:3], "layers.9.conv": h[3:]})
    told = {e.file: e for e in explain.explain(a, b, compare_dumps(a, b))}
    assert explanation_line(told["h_out.npy"]) == "not the same tensors: the array"
    assert told["state.safetensors"].note == "not the same tensors: layers.1.conv, layers.9.conv"
    assert told["state.safetensors"].distances == Distances(equal=18)


def test_the_named_classes_are_fields() -> None:
    assert [NAMES[i] for i in (ulp.EQUAL, ulp.MORE, ulp.INFINITE, ulp.NAN)] == [
        "equal", "ulp_more", "infinite", "nan",
    ]  # fmt: skip
    assert len(NAMES) == ulp.CLASSES
