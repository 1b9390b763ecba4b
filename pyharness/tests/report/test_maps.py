"""Grids of differences: each planted difference is in its cell, in its class, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.compare import compare_dumps
from pyharness.differences.divergence import Place
from pyharness.differences.spread import SPREAD_ROWS, spread
from pyharness.differences.traces import Call, Site, Trace
from pyharness.report.maps import BINS, Grid, difference_grids, shades
from pyharness.tests.test_compare import safetensors

ONE = 0x3F800000
SHAPES = {
    "layers.0.S": (4, 8, 16), "layers.0.conv": (100, 3),
    "layers.1.keys": (2, 70, 8), "layers.1.values": (2, 70, 8),
}  # fmt: skip


class Pair:
    """Two equal dumps; a test bends the candidate."""

    def __init__(self, folder: Path, rows: int = 6, vocab: int = 130) -> None:
        self.folders = folder / "baseline", folder / "candidate"
        rng = np.random.default_rng(5)
        self.arrays = {
            "h_out.npy": rng.normal(size=(rows, 8)).astype("<f4"),
            "logits.npy": rng.normal(size=(rows, vocab)).astype("<f4"),
        }
        self.state = {name: rng.normal(size=s).astype("<f4") for name, s in SHAPES.items()}
        self.state["position"] = np.array([70], "<i8")
        self.folders[0].mkdir()
        self.write(self.folders[0])
        shutil.copytree(*self.folders)

    def write(self, folder: Path) -> None:
        for name, array in self.arrays.items():
            np.save(folder / name, array)
        (folder / "state.safetensors").write_bytes(safetensors(self.state))

    def grids(self) -> dict[str, Grid]:
        self.write(self.folders[1])
        return {g.tensor or g.file: g for g in difference_grids(*self.folders)}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def flip(array: np.ndarray, index: tuple[int, ...], mask: int = 1) -> None:
    array.view("<u4")[index] ^= mask


def cells(grid: Grid) -> dict[tuple[int, int], int]:
    """Cells that are not equal, with how many elements differ there."""
    return {(i, j): n for i, line in enumerate(grid.different) for j, n in enumerate(line) if n}


def test_equal_dumps_have_grids_without_cells(pair: Pair) -> None:
    grids = pair.grids()
    assert set(grids) == {"h_out.npy", "logits.npy", *SHAPES}
    assert all(g.different == g.distance == () for g in grids.values())


def test_each_difference_is_in_its_cell(pair: Pair) -> None:
    flip(pair.arrays["h_out.npy"], (2, 7))
    flip(pair.arrays["logits.npy"], (5, 129))  # 130 columns in cells of 3: the last has one
    flip(pair.state["layers.0.S"], (3, 0, 1))
    flip(pair.state["layers.0.conv"], (99, 2))
    flip(pair.state["layers.1.keys"], (0, 69, 7))
    flip(pair.state["layers.1.keys"], (1, 69, 0))  # another head, the same position
    grids = pair.grids()
    assert cells(grids["h_out.npy"]) == {(2, 7): 1}
    assert grids["logits.npy"].step == (1, 3) and cells(grids["logits.npy"]) == {(5, 43): 1}
    assert cells(grids["layers.0.S"]) == {(0, 3): 1}
    assert grids["layers.0.S"].axes == ("part", "value head")
    assert cells(grids["layers.0.conv"]) == {(0, 49): 1}
    assert cells(grids["layers.1.keys"]) == {(0, 34): 2}
    assert cells(grids["layers.1.values"]) == {}


def test_a_grid_stays_small_and_loses_no_difference(tmp_path: Path) -> None:
    pair = Pair(tmp_path, rows=200, vocab=1000)
    rng = np.random.default_rng(0)
    for at in rng.integers(0, 200_000, 500):
        pair.arrays["logits.npy"].reshape(-1).view("<u4")[at] ^= 2
    grid = pair.grids()["logits.npy"]
    assert len(grid.different) <= BINS and len(grid.different[0]) <= BINS
    (told,) = (d for d in compare_dumps(*pair.folders).differences if d.file == "logits.npy")
    assert sum(cells(grid).values()) == told.different > 400


def test_arrays_of_unlike_shape_have_no_grid(pair: Pair) -> None:
    pair.state["layers.1.keys"] = pair.state["layers.1.keys"][:, :60]
    pair.arrays["h_out.npy"] = pair.arrays["h_out.npy"][:5]
    assert set(pair.grids()) == {"logits.npy", *SHAPES} - {"layers.1.keys"}


def test_the_farthest_element_of_a_cell_gives_its_class(pair: Pair) -> None:
    pair.arrays["logits.npy"][0, :3] = 1.0
    pair.write(pair.folders[0])
    row = pair.arrays["logits.npy"].view("<u4")[0]
    row[:3] += np.array([1, 50, 0], "<u4")
    assert pair.grids()["logits.npy"].distance[0][0] == 3


@pytest.mark.parametrize(
    ("ours", "theirs", "shade"),
    [
        (0x00000000, 0x80000000, 1),  # the sign of zero
        (ONE, ONE + 1, 1),
        (ONE, ONE - 2, 2),
        (ONE, ONE + 10, 2),
        (ONE, ONE + 11, 3),
        (ONE, ONE + 100, 3),
        (ONE, ONE + 101, 4),
        (0x00000001, 0x80000001, 2),  # the smallest numbers around zero, 2 apart
        (ONE, ONE | 0x80000000, 4),
        (0x7F7FFFFF, 0x7F800000, 5),  # the largest number and infinity
        (0x7FC00000, 0x7FC00001, 5),  # payloads of NaN
        (ONE, 0xFFC00000, 5),
    ],
)
def test_shades_of_distances(ours: int, theirs: int, shade: int) -> None:
    pair = np.array([ours], "<u4"), np.array([theirs], "<u4")
    assert shades(*pair).tolist() == shades(*pair[::-1]).tolist() == [shade]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_every_difference_has_a_shade(ours: int, theirs: int) -> None:
    if ours != theirs:
        shade = shades(np.array([ours], "<u4"), np.array([theirs], "<u4"))[0]
        values = np.array([ours, theirs], "<u4").view("<f4")
        assert 1 <= shade <= 5 and bool(np.isfinite(values).all()) is bool(shade < 5)


# ---- rows by layers ------------------------------------------------------------------------------


def trace(calls: tuple[Call, ...]) -> Trace:
    rows = sum(len(c.rows) for c in calls)
    return Trace(
        calls, np.zeros((rows, 2 * 8 + 2), np.uint64), np.zeros((len(calls), 4), np.uint64)
    )


def test_a_spread_counts_operations_from_the_first_row_on() -> None:
    calls = (Call("step", 1, "a", ("a",)), Call("step_m", 4, "d", ("b", "c", "d")))
    call = Call("rollback", 1, "a")
    found = [
        (Site(0, 2), Place(1, 1)), (Site(0, 3), Place(1, 1)), (Site(1, 0), Place(1, 2)),
        (Site(-1, 1), Place(1, 2)), (Site(0, 0, True), Place(0, -1)),
    ]  # fmt: skip
    made = spread(trace((*calls, call)), [(site, (place, place)) for site, place in found])
    assert made is not None
    assert made.positions == (2, 3) and made.layers == ((2, 0), (0, 1))
    assert made.outputs == ((False, False), (False, True)) and made.operations == 8


def test_a_spread_is_bounded_and_none_where_only_states_differ() -> None:
    calls = tuple(Call("step", n + 1, str(n), (str(n),)) for n in range(100))
    every = [(Site(0, 0), (Place(n, 0), Place(n, 0))) for n in range(100)]
    made = spread(trace(calls), every)
    assert made is not None and len(made.layers) == SPREAD_ROWS
    place = Place(3, -1)
    assert spread(trace(calls), [(Site(0, 0, True), (place, place))]) is None
