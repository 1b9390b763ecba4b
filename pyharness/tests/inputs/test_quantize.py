"""The Q4 rule: against a plain scalar version, on the golden grid, at its edges."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyharness.errors import InputError
from pyharness.inputs import quantize as q4
from pyharness.inputs.layout import GROUP
from pyharness.inputs.safetensors import TensorView, read_safetensors
from pyharness.tests.goldens import NAMES, STORED, golden


def by_hand(w: np.ndarray) -> tuple[list[int], np.float16]:
    """One group, a weight at a time."""
    seven, eight = np.float32(7), np.float32(8)
    scale = np.float16(max(max(x / seven for x in w), max(-x / eight for x in w)))
    if scale == 0:
        return [0] * len(w), np.float16(0)
    return [int(np.clip(np.rint(x / np.float32(scale)), -8, 7)) for x in w], scale


def unpack(nibbles: np.ndarray) -> np.ndarray:
    return np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(len(nibbles), -1).astype(int) - 8


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.float32, (2, 64), elements=st.floats(-60000, 60000, width=32)))
def test_the_rule_a_weight_at_a_time(w: np.ndarray) -> None:
    nibbles, scales = q4.quantize_block(w, "w")
    for row in range(2):
        for group in range(2):
            cols = slice(group * GROUP, (group + 1) * GROUP)
            integers, scale = by_hand(w[row, cols])
            assert unpack(nibbles)[row, cols].tolist() == integers
            assert scales[row, group].tobytes() == scale.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_grid_is_found_again(name: str) -> None:
    stored = read_safetensors(golden(name) / "model.safetensors").tensors
    scales = read_safetensors(STORED / name / "scales.safetensors").tensors
    assert len(scales) > 20
    for tensor, expected in scales.items():
        nibbles, found = q4.quantize(stored[tensor], tensor)
        assert found.tobytes() == expected.array.tobytes(), tensor
        # equal as values: the sign of a zero is not on the grid
        assert np.array_equal(q4.dequantize(nibbles, found), stored[tensor].array), tensor


@pytest.mark.parametrize("divisor", [7, 8])
def test_other_rules_do_not_find_it(divisor: int) -> None:
    """The check above can fail: max|w| / 7 and max|w| / 8 give other scales."""
    w = read_safetensors(golden("tiny-gdn") / "model.safetensors").tensors["lm_head.weight"].array
    scales = read_safetensors(STORED / "tiny-gdn" / "scales.safetensors").tensors
    largest = np.abs(w.reshape(len(w), -1, GROUP)).max(axis=2)
    other = (largest / np.float32(divisor)).astype(np.float16)
    assert not np.array_equal(other, scales["lm_head.weight"].array)


def view(array: np.ndarray, dtype: str) -> TensorView:
    return TensorView("w", dtype, array.shape, array)


@pytest.mark.parametrize("block", [1, 100, 64 * 3, 1 << 20])
def test_blocks_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    w = np.random.default_rng(1).standard_normal((17, 64)).astype(np.float32)
    whole = q4.quantize_block(w, "w")
    monkeypatch.setattr(q4, "BLOCK_ELEMENTS", block)
    found = q4.quantize(view(w, "F32"), "w")
    assert [a.tobytes() for a in found] == [a.tobytes() for a in whole]


def test_stored_types_are_widened_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    finite = bits[(bits & 0x7F80) != 0x7F80]
    wide = q4.to_float32(finite, "BF16")
    assert np.array_equal(wide.view(np.uint32) >> 16, finite)
    assert np.array_equal(q4.bf16_bits(wide), finite)
    half = np.linspace(-4, 4, 64, dtype=np.float16)
    assert np.array_equal(q4.to_float32(half, "F16"), half.astype(np.float32))


def test_bfloat16_rounds_to_nearest_even() -> None:
    words = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF818000], np.uint32)
    rounded = q4.bf16_bits(words.view(np.float32))
    assert [hex(b) for b in rounded] == ["0x3f80", "0x3f82", "0x3f81", "0x3f80", "0xbf82"]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-9, -1e-9])
def test_a_group_of_zeros(value: float) -> None:
    nibbles, scales = q4.quantize_block(np.full((1, 32), value, np.float32), "w")
    assert set(nibbles.reshape(-1).tolist()) == {0x88}
    assert scales.tobytes() == b"\0\0"


def test_the_smallest_scale_of_float16_still_counts() -> None:
    w = np.zeros((1, 32), np.float32)
    w[0, 3] = 7 * 2.0**-24
    nibbles, scales = q4.quantize_block(w, "w")
    assert scales[0, 0] == np.float16(2.0**-24)
    assert unpack(nibbles)[0, 3] == 7


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    w = np.ones((3, 64), np.float32)
    w[2, 40] = value
    with pytest.raises(InputError, match=r"^layer\.w: a weight is NaN or infinite$"):
        q4.quantize(view(w, "F32"), "layer.w")


@pytest.mark.parametrize(("fits", "too_large"), [(458_000.0, 459_000.0), (-524_000.0, -525_000.0)])
def test_a_scale_beyond_float16_is_refused(fits: float, too_large: float) -> None:
    w = np.ones((1, 32), np.float32)
    w[0, 0] = fits
    assert np.isfinite(q4.quantize_block(w, "w")[1]).all()
    w[0, 0] = too_large
    message = f"^w: a weight of {abs(too_large):g} needs a scale that float16 cannot hold$"
    with pytest.raises(InputError, match=message):
        q4.quantize_block(w, "w")


def test_columns_that_are_no_groups_are_refused() -> None:
    with pytest.raises(InputError, match=r"^a\.b: input dimension 48 is not a multiple of 32"):
        q4.quantize(view(np.ones((2, 48), np.float32), "F32"), "a.b")


@pytest.mark.parametrize(
    ("bits", "message"),
    [(0x7E00, "NaN"), (0x7C00, "infinite"), (0x8000, "negative"), (0xBC00, "negative")],
)
def test_scales_of_others_are_checked(bits: int, message: str) -> None:
    scales = np.array([[1.0, 0.0]], np.float16)
    q4.check_scales("w", scales)
    scales.view(np.uint16)[0, 1] = bits
    with pytest.raises(InputError, match=message):
        q4.check_scales("w", scales)


def test_memory_is_bounded_by_the_block() -> None:
    """Quantizing touches a block at a time: no array of the whole matrix in float32 is made."""
    w = np.ones((2048, 2048), np.float16)
    blocks = q4.quantize_blocks(view(w, "F16"), "w")
    tracemalloc.start()
    rows = sum(len(nibbles) for nibbles, _ in blocks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 2048
    assert peak < 40 * q4.BLOCK_ELEMENTS
