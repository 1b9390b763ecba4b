"""How far apart two float32 bit patterns are, in units in the last place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Classes = npt.NDArray[np.uint8]

CLASSES = 9  # the fields of ``Distances``, in their order
EQUAL, MORE, INFINITE, NAN = 0, 6, 7, 8
_INFINITY = 0x7F800000
_EDGES = np.array([1, 2, 3, 11, 101])  # of ulp_1, ulp_2, ulp_3_to_10, ulp_11_to_100, ulp_more


def classes(x: Words, y: Words) -> Classes:
    """Of each pair, the number of its field in ``Distances``."""
    found = np.zeros(x.shape, np.uint8)
    unequal = x != y
    a, b = x[unequal], y[unequal]
    apart = np.abs(_ordered(a) - _ordered(b))
    largest = np.maximum(a & 0x7FFFFFFF, b & 0x7FFFFFFF)
    finite = 1 + np.digitize(apart, _EDGES)  # unequal words that are 0 apart: the sign of zero
    found[unequal] = np.where(
        largest > _INFINITY, NAN, np.where(largest == _INFINITY, INFINITE, finite)
    )
    return found


def _ordered(words: Words) -> npt.NDArray[np.int64]:
    """Whole numbers in the order of the floats, neighbours one apart; both zeros are 0."""
    magnitude = (words & 0x7FFFFFFF).astype(np.int64)
    return np.where(words >> 31 != 0, -magnitude, magnitude)
