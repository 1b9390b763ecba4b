"""Q4 quantization: groups of 32 input columns, a float16 scale each, integers -8..7.

Per row and group, in float32: s = float16(max(max(w) / 7, max(-w) / 8)) and
q = clamp(rint(w / s), -8, 7), both to nearest even. It finds a grid again that was made with it.
A group whose scale rounds to zero is all zero: scale 0, nibbles 8. Blockwise: memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyharness.errors import InputError
from pyharness.inputs.layout import GROUP
from pyharness.inputs.safetensors import TensorView

BLOCK_ELEMENTS = 1 << 18  # weights quantized at a time: what a core's cache holds
ZERO = 8  # the nibble of a zero weight


def to_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    """Exact. ``dtype`` is the tag of the file: F32, F16 or BF16 (bits as uint16)."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(array, np.float32)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 bits (uint16), to nearest, ties to even; for finite values."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (
        (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    ).astype(np.uint16)


def check_groups(name: str, shape: tuple[int, ...]) -> None:
    """InputError unless it is a matrix whose rows are whole groups."""
    if len(shape) != 2 or shape[1] % GROUP:
        raise InputError(
            f"{name}: input dimension {shape[-1]} is not a multiple of {GROUP}, as Q4 needs"
        )


def quantize_block(w: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 [rows, cols] -> nibbles uint8 [rows, cols / 2], scales float16 [rows, cols / 32]."""
    groups = w.reshape(w.shape[0], -1, GROUP)
    high, low = groups.max(axis=2), groups.min(axis=2)
    if not (np.isfinite(high).all() and np.isfinite(low).all()):
        raise InputError(f"{name}: a weight is NaN or infinite")
    with np.errstate(over="ignore", under="ignore"):
        scales = np.maximum(high / np.float32(7), -low / np.float32(8)).astype(np.float16)
    if not np.isfinite(scales).all():
        largest = max(high.max(), -low.min())
        raise InputError(f"{name}: a weight of {largest:g} needs a scale that float16 cannot hold")
    divisor = scales.astype(np.float32)
    divisor[divisor == 0] = np.inf  # a group of scale 0 becomes zeros
    q = groups / divisor[:, :, None]
    np.clip(np.rint(q, out=q), -8, 7, out=q)
    q += np.float32(ZERO)
    pairs = q.astype(np.uint8).reshape(w.shape).view("<u2")  # even column in the low byte
    nibbles = (pairs | (pairs >> np.uint16(4))).astype(np.uint8)
    return nibbles, scales + np.float16(0)  # -0 becomes +0


def quantize_blocks(view: TensorView, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Nibbles and scales of consecutive blocks of rows."""
    check_groups(name, view.shape)
    rows, cols = view.shape
    step = max(1, BLOCK_ELEMENTS // cols)
    for row in range(0, rows, step):
        yield quantize_block(to_float32(view.array[row : row + step], view.dtype), name)


def quantize(view: TensorView, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Nibbles uint8 [rows, cols / 2] and scales float16 [rows, cols / 32] of a whole tensor."""
    check_groups(name, view.shape)
    rows, cols = view.shape
    nibbles = np.empty((rows, cols // 2), np.uint8)
    scales = np.empty((rows, cols // GROUP), np.float16)
    row = 0
    for block, block_scales in quantize_blocks(view, name):
        nibbles[row : row + len(block)] = block
        scales[row : row + len(block)] = block_scales
        row += len(block)
    return nibbles, scales


def dequantize(nibbles: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32 [rows, cols], exact: a product of 4 and 11 significant bits."""
    rows, half = nibbles.shape
    q = np.empty((rows, 2 * half), np.float32)
    q[:, 0::2] = nibbles & np.uint8(15)
    q[:, 1::2] = nibbles >> np.uint8(4)
    q -= np.float32(ZERO)
    return (q.reshape(rows, -1, GROUP) * scales.astype(np.float32)[:, :, None]).reshape(
        rows, 2 * half
    )


def check_scales(name: str, scales: np.ndarray) -> None:
    """Scales that somebody else computed: each finite and not negative."""
    if not np.isfinite(scales).all():
        raise InputError(f"{name}: a scale is NaN or infinite")
    if np.signbit(scales).any():
        raise InputError(f"{name}: a scale is negative")
