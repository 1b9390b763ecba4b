"""How far two dumps are apart: counts by distance, rows, first elements, flipped greedy tokens.

Only for arms that are known to differ. Files are memory maps, read in blocks, so that memory does
not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyharness.compare import FILES, Tensor, len_and_layout, number_of, pattern_of
from pyharness.differences.findings import Distances, Element, Explanation, Flip, Group
from pyharness.differences.ulp import CLASSES, EQUAL, MORE, Words, classes
from pyharness.values import Comparison

ELEMENTS = 8  # first differing elements that are written out
GROUPS = 64  # rows or tensors that are listed
FLIPS = 64
BLOCK_ELEMENTS = 1 << 20
LOGITS = FILES[1]

Counts = npt.NDArray[np.int64]  # one for each field of Distances


def explain(baseline: Path, candidate: Path, comparison: Comparison) -> tuple[Explanation, ...]:
    """One explanation for each file that differs, in the order of the comparison."""
    return tuple(
        explain_file(baseline / d.file, candidate / d.file) for d in comparison.differences
    )


def explain_file(baseline: Path, candidate: Path) -> Explanation:
    """Of two .npy or .safetensors files. What cannot be compared element by element is named."""
    ours = {t.name: t for t in len_and_layout(baseline)[1]}
    theirs = {t.name: t for t in len_and_layout(candidate)[1]}
    file = _File(baseline, candidate)
    unlike = [name for name in {**ours, **theirs} if not _alike(ours.get(name), theirs.get(name))]
    for name, tensor in ours.items():
        if name not in unlike:
            file.add(tensor, theirs[name])
    note = f"not the same tensors: {', '.join(unlike[:3]) or 'the array'}" if unlike else ""
    return file.explanation(note)


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and (a.dtype, a.shape) == (b.dtype, b.shape)


@dataclass
class _File:
    baseline: Path
    candidate: Path
    counts: Counts = field(default_factory=lambda: np.zeros(CLASSES, np.int64))
    groups: list[Group] = field(default_factory=list)
    differing: int = 0
    first: list[Element] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    flipped: int = 0

    def add(self, tensor: Tensor, other: Tensor) -> None:
        """Rows of a .npy are groups; a tensor of the state is one."""
        if tensor.dtype != "F32":  # the position: a number, not a value with a distance
            return self._add_whole(tensor, other)
        rows = tensor.shape[0] if not tensor.name else 1
        width = tensor.elements // max(1, rows)
        for row in range(rows if width else 0):
            counts = np.zeros(CLASSES, np.int64)
            best: list[tuple[float, int]] = [(-np.inf, 0), (-np.inf, 0)]
            for at, x, y in _blocks(self.baseline, self.candidate, tensor, other, row, width):
                counts += distances(x, y)
                self._elements(tensor, row * width + at, x, y)
                if self.baseline.name == LOGITS:
                    best = [_larger(b, at, words) for b, words in zip(best, (x, y), strict=True)]
            self.counts += counts
            if counts[1:].any():
                self._group(str(row) if not tensor.name else tensor.name, counts)
            if best[0][1] != best[1][1]:
                self.flipped += 1
                if len(self.flips) < FLIPS:
                    self.flips.append(Flip(row, best[0][1], best[1][1]))

    def _add_whole(self, tensor: Tensor, other: Tensor) -> None:
        x, y = (
            np.memmap(path, f"<u{t.itemsize}", "r", t.start, (t.elements,)) if t.elements else None
            for path, t in ((self.baseline, tensor), (self.candidate, other))
        )
        if x is None or y is None:
            return
        unequal = int(np.count_nonzero(x != y))
        counts = np.zeros(CLASSES, np.int64)
        counts[EQUAL], counts[MORE] = tensor.elements - unequal, unequal
        self.counts += counts
        if unequal:
            self._elements(tensor, 0, x, y)
            self._group(tensor.name, counts)

    def _group(self, name: str, counts: Counts) -> None:
        self.differing += 1
        if len(self.groups) < GROUPS:
            self.groups.append(Group(name, Distances(*(int(n) for n in counts))))

    def _elements(self, tensor: Tensor, start: int, x: npt.NDArray[Any], y: Any) -> None:
        room = ELEMENTS - len(self.first)
        if room <= 0:
            return
        for at in np.flatnonzero(x != y)[:room]:
            raw = x[at].tobytes(), y[at].tobytes()
            index = np.unravel_index(start + int(at), tensor.shape) if tensor.shape else ()
            self.first.append(
                Element(
                    tensor.name,
                    tuple(int(i) for i in index),
                    *(pattern_of(r) for r in raw),
                    *(number_of(r, tensor.dtype) for r in raw),
                )
            )

    def explanation(self, note: str) -> Explanation:
        return Explanation(
            self.baseline.name,
            Distances(*(int(n) for n in self.counts)),
            tuple(self.groups),
            self.differing,
            tuple(self.first),
            tuple(self.flips),
            self.flipped,
            note,
        )


def _blocks(
    baseline: Path, candidate: Path, tensor: Tensor, other: Tensor, row: int, width: int
) -> Iterator[tuple[int, Words, Words]]:
    """(first element, words of the baseline, words of the candidate) of one row, block by block."""
    for at in range(0, width, BLOCK_ELEMENTS):
        count = min(BLOCK_ELEMENTS, width - at)
        skip = 4 * (row * width + at)
        yield (
            at,
            np.memmap(baseline, "<u4", "r", tensor.start + skip, (count,)),
            np.memmap(candidate, "<u4", "r", other.start + skip, (count,)),
        )


def distances(x: Words, y: Words) -> Counts:
    """Counts in the order of the fields of ``Distances``."""
    return np.bincount(classes(x, y), minlength=CLASSES)


def _larger(best: tuple[float, int], at: int, words: Words) -> tuple[float, int]:
    """The largest value so far and its column: of equal ones the first, a NaN never."""
    values = words.view(np.float32)
    if np.isnan(values).any():
        values = np.where(np.isnan(values), -np.inf, values)
    column = int(values.argmax())
    value = float(values[column])
    return (value, at + column) if value > best[0] else best
