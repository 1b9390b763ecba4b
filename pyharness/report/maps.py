"""Where two dumps differ, on grids small enough for a picture: how many elements, and how far apart
the farthest are.

The verdict never rests on these: they are made after it, from the dumps of a red job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyharness.compare import FILES, Tensor, len_and_layout
from pyharness.differences.ulp import Words, classes
from pyharness.report.svg import SHADES

BINS = 64  # the most cells along one axis
BLOCK_ELEMENTS = 1 << 20
FAR = 4  # shade of what is no float32 and differs
_SHADES = np.array(SHADES, np.uint8)


@dataclass(frozen=True)
class Grid:
    """The differences of one array in cells of ``step`` [rows, columns]."""

    file: str
    tensor: str  # of state.safetensors, else ""
    axes: tuple[str, str]  # what rows and columns are
    shape: tuple[int, int]  # rows and columns of the array
    step: tuple[int, int]
    elements: int  # of the array; at one (row, column) there may be several
    different: tuple[tuple[int, ...], ...]  # elements that differ; () where the array is equal
    distance: tuple[tuple[int, ...], ...]  # shade of the farthest ones


def difference_grids(baseline: Path, candidate: Path) -> tuple[Grid, ...]:
    """A grid for each array that both dumps have in one shape; equal arrays too, without counts."""
    grids = []
    for name in FILES:
        paths = baseline / name, candidate / name
        ours, theirs = ({t.name: t for t in len_and_layout(p)[1]} for p in paths)
        for tensor in ours.values():
            other = theirs.get(tensor.name)
            if other is None or (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
                continue
            if len(tensor.shape) >= 2 and tensor.elements:
                grids.append(_grid(paths, (tensor, other)))
    return tuple(grids)


def _grid(paths: tuple[Path, Path], pair: tuple[Tensor, Tensor]) -> Grid:
    tensor = pair[0]
    axes, (outer, rows, columns, inner) = _view(tensor)
    step = -(-rows // BINS), -(-columns // BINS)
    cells = -(-rows // step[0]), -(-columns // step[1])
    counts, farthest = np.zeros(cells, np.int64), np.zeros(cells, np.uint8)
    starts = np.arange(0, columns, step[1])
    for first, found in _shaded(paths, pair, (outer * rows, columns * inner)):
        lines = found.reshape(len(found), columns, inner)
        at = (first + np.arange(len(found))) % rows // step[0]
        binned = np.add.reduceat((lines > 0).sum(2, dtype=np.int64), starts, axis=1)
        np.add.at(counts, at, binned)
        np.maximum.at(farthest, at, np.maximum.reduceat(lines.max(2), starts, axis=1))
    differs = bool(counts.any())
    return Grid(
        paths[0].name, tensor.name, axes, (rows, columns), step, tensor.elements,
        _told(counts) if differs else (), _told(farthest) if differs else (),
    )  # fmt: skip


def _told(cells: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in line) for line in cells)


def _view(tensor: Tensor) -> tuple[tuple[str, str], tuple[int, int, int, int]]:
    """The axes to show, and the array as [outer, rows, columns, inner]."""
    shape = tensor.shape
    rest = int(np.prod(shape[1:]))
    part = re.fullmatch(r"layers\.\d+\.(\w+)", tensor.name)
    if not part:
        return ("row", "column"), (1, shape[0], rest, 1)
    if part[1] in ("keys", "values") and len(shape) == 3:  # [KV heads, position, head size]
        return ("part", "position"), (shape[0], 1, shape[1], shape[2])
    name = {"S": "value head", "conv": "channel"}.get(part[1], "first axis")
    return ("part", name), (1, 1, shape[0], rest)


def _shaded(
    paths: tuple[Path, Path], pair: tuple[Tensor, Tensor], lines: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """(first line, shades [lines, width]), a few lines at a time."""
    count, width = lines
    a, b = (
        np.memmap(path, f"<u{t.itemsize}", "r", t.start, (count, width))
        for path, t in zip(paths, pair, strict=True)
    )
    block = max(1, BLOCK_ELEMENTS // max(1, width))
    for first in range(0, count, block):
        x, y = a[first : first + block], b[first : first + block]
        yield first, shades(x, y) if pair[0].dtype == "F32" else np.where(x != y, FAR, 0)


def shades(x: Words, y: Words) -> np.ndarray:
    """Of float32 bit patterns; 0 where they are equal."""
    return _SHADES[classes(x, y)]
