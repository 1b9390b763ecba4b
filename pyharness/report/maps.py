"""Where two dumps differ, as counts on grids small enough for a picture.

The verdict never rests on these: they are made after it, from the dumps of a red job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyharness.compare import FILES, Tensor, len_and_layout

BINS = 64  # the most cells along one axis
BLOCK_ELEMENTS = 4 << 20


@dataclass(frozen=True)
class Grid:
    """Differing elements of one array, counted in cells of ``step`` [rows, columns]."""

    file: str
    tensor: str  # of state.safetensors, else ""
    axes: tuple[str, str]  # what rows and columns are
    shape: tuple[int, int]  # rows and columns of the array
    step: tuple[int, int]
    unit: int  # elements at one (row, column)
    different: tuple[tuple[int, ...], ...]  # () where the array is equal


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
    counts = np.zeros((-(-rows // step[0]), -(-columns // step[1])), np.int64)
    starts = range(0, rows, step[0]), range(0, columns, step[1])
    for first, unequal in _unequal(paths, pair, (outer * rows, columns * inner)):
        lines = unequal.reshape(len(unequal), columns, inner).sum(2, dtype=np.int64)
        binned = np.add.reduceat(lines, starts[1], axis=1)
        at = (first + np.arange(len(binned))) % rows // step[0]
        np.add.at(counts, at, binned)
    told = tuple(tuple(int(n) for n in line) for line in counts) if counts.any() else ()
    return Grid(paths[0].name, tensor.name, axes, (rows, columns), step, outer * inner, told)


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


def _unequal(
    paths: tuple[Path, Path], pair: tuple[Tensor, Tensor], lines: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """(first line, [lines, width] of booleans), a few lines at a time."""
    count, width = lines
    a, b = (
        np.memmap(path, f"<u{t.itemsize}", "r", t.start, (count, width))
        for path, t in zip(paths, pair, strict=True)
    )
    block = max(1, BLOCK_ELEMENTS // max(1, width))
    for first in range(0, count, block):
        yield first, a[first : first + block] != b[first : first + block]
