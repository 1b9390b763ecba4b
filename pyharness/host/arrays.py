"""Arrays that cross the C edge: exact inputs, and outputs that show what was not written."""

from __future__ import annotations

import ctypes
import zlib
from math import prod
from typing import Any

import numpy as np

from pyharness.errors import LibraryFailure

# Float outputs are filled with a signalling NaN of a payload that no arithmetic makes (its results
# are quiet), so an element that still holds it was not written: it is taken for no finite value.
UNWRITTEN = 0x7FA5A5A5
GUARD = 0xA5A5A5A5
GUARD_WORDS = 1024  # 4 KiB on both sides: the buffer keeps the alignment of the allocation
_EXPONENT = np.uint32(0x7F800000)


def pointer(array: np.ndarray, dtype: Any, kind: Any) -> Any:
    """A typed pointer to an array of exactly this dtype; the caller holds the array meanwhile."""
    if array.dtype != np.dtype(dtype):
        raise TypeError(f"expected an array of {np.dtype(dtype)}, got {array.dtype}")
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise TypeError("expected a C-contiguous, aligned array")
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


class GuardedOutput:
    """A float32 buffer of one or two dimensions between two guards."""

    def __init__(self, name: str, *shape: int) -> None:
        self.name, size = name, prod(shape)
        self.memory = np.empty(2 * GUARD_WORDS + size, np.uint32)
        self._collected: int | None = None  # checksum of the memory since ``collect``
        self.words = self.memory[GUARD_WORDS : GUARD_WORDS + size].reshape(shape)

    def arm(self) -> Any:
        """Fill with the sentinel; returns the float pointer for the call."""
        self.require_kept()
        self._collected = None
        self.memory[:GUARD_WORDS] = GUARD
        self.memory[GUARD_WORDS + self.words.size :] = GUARD
        self.words.fill(UNWRITTEN)
        return ctypes.cast(self.words.ctypes.data, ctypes.POINTER(ctypes.c_float))

    def require_kept(self) -> None:
        """LibraryFailure where the values are no longer those that ``collect`` gave: a thread or a
        copy that the call did not wait for.
        """
        if self._collected is not None and self._collected != zlib.crc32(self.memory.data):
            raise LibraryFailure(f"the library wrote to the {self.name} buffer after its call")

    @property
    def untouched(self) -> bool:
        return bool((self.words == UNWRITTEN).all()) and self._overrun() is None

    def collect(self) -> np.ndarray:
        """The float32 values, valid until the next ``arm``; LibraryFailure says what is wrong."""
        self._collected = zlib.crc32(
            self.memory.data
        )  # first: what comes later is seen by the next arm
        if (where := self._overrun()) is not None:
            raise LibraryFailure(f"the library wrote {where} the {self.name} buffer")
        suspect = (self.words & _EXPONENT) == _EXPONENT  # NaN, infinity, or not written
        if suspect.any():
            raise LibraryFailure(self._complaint(int(suspect.argmax()), int(suspect.sum())))
        return self.words.view(np.float32)

    def _overrun(self) -> str | None:
        before = np.flatnonzero(self.memory[:GUARD_WORDS] != GUARD)
        if before.size:
            return f"{GUARD_WORDS - int(before[-1])} words before"
        after = np.flatnonzero(self.memory[GUARD_WORDS + self.words.size :] != GUARD)
        return f"{int(after[0]) + 1} words past the end of" if after.size else None

    def _complaint(self, first: int, count: int) -> str:
        place = [int(i) for i in np.unravel_index(first, self.words.shape)]
        where = "row {} column {}" if len(place) == 2 else "element {}"
        where = f"{self.name} {where.format(*place)}"
        word, of = int(self.words[tuple(place)]), self.words.size
        unwritten = int((self.words == UNWRITTEN).sum())
        if word == UNWRITTEN:
            return f"{where} was not written ({unwritten} of {of} elements were not)"
        kind = "NaN" if word & 0x007FFFFF else "infinite"
        return (
            f"{where} is {kind}, 0x{word:08x} ({count - unwritten} of {of} elements are not finite)"
        )
