from __future__ import annotations

import ctypes

import numpy as np
import pytest

from pyharness.errors import LibraryFailure
from pyharness.host.arrays import GUARD_WORDS, UNWRITTEN, GuardedOutput, pointer


def filled(*shape: int) -> GuardedOutput:
    out = GuardedOutput("logits", *shape)
    out.arm()
    assert out.untouched
    out.words.view(np.float32)[...] = np.arange(out.words.size).reshape(shape)
    return out


def test_what_was_written_comes_back() -> None:
    out = filled(3, 5)
    assert out.collect().tolist() == np.arange(15.0).reshape(3, 5).tolist()
    assert out.collect().dtype == np.float32
    assert not out.untouched


def test_the_pointer_leads_to_the_first_element() -> None:
    out = GuardedOutput("logits", 2, 2)
    pointer_ = out.arm()
    pointer_[0], pointer_[3] = 1.5, -2.0
    assert out.words.view(np.float32)[0, 0] == 1.5
    assert out.words.view(np.float32)[1, 1] == -2.0


def test_the_sentinel_is_a_signalling_nan() -> None:
    assert UNWRITTEN & 0x7F800000 == 0x7F800000
    assert UNWRITTEN & 0x007FFFFF
    assert not UNWRITTEN & 0x00400000  # arithmetic makes quiet ones


def test_an_unwritten_element_is_named() -> None:
    out = filled(3, 5)
    out.words[1, 3] = out.words[2, 0] = UNWRITTEN
    with pytest.raises(LibraryFailure, match=r"logits row 1 column 3 was not written \(2 of 15"):
        out.collect()


@pytest.mark.parametrize(
    ("word", "what"),
    [
        (0x7FC00000, "NaN, 0x7fc00000"),
        (0xFF800001, "NaN, 0xff800001"),
        (0x7F800000, "infinite, 0x7f800000"),
        (0xFF800000, "infinite, 0xff800000"),
    ],
)
def test_a_non_finite_element_is_named(word: int, what: str) -> None:
    out = filled(3, 5)
    out.words[2, 4] = word
    with pytest.raises(LibraryFailure, match=f"logits row 2 column 4 is {what} .1 of 15"):
        out.collect()


def test_finite_extremes_are_values() -> None:
    out = filled(4)
    out.words[...] = [0x80000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x00000001]
    assert out.collect().view(np.uint32).tolist() == out.words.tolist()


@pytest.mark.parametrize(
    ("index", "what"),
    [
        (GUARD_WORDS - 1, "1 words before"),
        (0, f"{GUARD_WORDS} words before"),
        (GUARD_WORDS + 15, "1 words past the end of"),
        (-1, f"{GUARD_WORDS} words past the end of"),
    ],
)
def test_a_write_outside_is_noticed(index: int, what: str) -> None:
    out = filled(3, 5)
    out.memory[index] = 0
    with pytest.raises(LibraryFailure, match=f"wrote {what} the logits buffer"):
        out.collect()


@pytest.mark.parametrize("index", [0, GUARD_WORDS, GUARD_WORDS + 14, -1])
def test_a_write_after_the_values_were_collected_is_noticed(index: int) -> None:
    out = filled(3, 5)
    out.collect()
    out.require_kept()
    out.memory[index] ^= 1
    with pytest.raises(LibraryFailure, match="wrote to the logits buffer after its call"):
        out.require_kept()
    with pytest.raises(LibraryFailure, match="wrote to the logits buffer after its call"):
        out.arm()


def test_arming_again_forgets_the_row_before() -> None:
    out = filled(3, 5)
    out.arm()
    with pytest.raises(LibraryFailure, match="15 of 15"):
        out.collect()


def test_a_pointer_takes_the_exact_array_only() -> None:
    tokens = np.array([3, 4], np.int32)
    assert pointer(tokens, np.int32, ctypes.c_int32)[1] == 4
    with pytest.raises(TypeError, match="array of int32, got int64"):
        pointer(tokens.astype(np.int64), np.int32, ctypes.c_int32)
    with pytest.raises(TypeError, match="C-contiguous"):
        pointer(np.arange(6, dtype=np.int32)[::2], np.int32, ctypes.c_int32)
    with pytest.raises(TypeError, match="aligned"):
        pointer(np.zeros(9, np.uint8)[1:].view(np.int32), np.int32, ctypes.c_int32)
