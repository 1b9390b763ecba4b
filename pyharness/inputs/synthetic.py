"""Synthetic models: configurations, descriptions of tensors, a mirror of the library's generator.

The generator is counter-based: 64-bit words keyed by seed, tensor name and index, so every backend
and thread makes any element by itself. ``generate`` and native/arith/synth.h give the same bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pyharness.errors import InputError
from pyharness.inputs.layout import (
    GROUP,
    HEAD,
    Expected,
    LayerKind,
    Model,
    ModelConfig,
    ModelTensor,
    Synth,
    TensorType,
    expected_tensors,
    rope_tensor,
)
from pyharness.inputs.quantize import bf16_bits

FAMILIES = ("hybrid", "gdn", "attn")
SIZES = ("tiny", "mid", "27b")
NIBBLE_STD = math.sqrt((16 * 16 - 1) / 12)  # of a uniform integer in -8..7
NIBBLE_RMS = math.sqrt(NIBBLE_STD**2 + 0.25)  # about zero: the mean is -0.5
GOLDEN_RATIO = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
SCALE_STREAM = 1 << 40  # word that the first group's scale comes from


# ---- configurations ------------------------------------------------------------------------------


def config_of(family: str, size: str) -> ModelConfig:
    """InputError for a family or size that does not exist."""
    if family not in FAMILIES or size not in SIZES:
        raise InputError(
            f"no synthetic model {family!r} of size {size!r}: families are {', '.join(FAMILIES)}, "
            f"sizes {', '.join(SIZES)}"
        )
    layers = {"tiny": 8 if family == "hybrid" else 4, "mid": 16, "27b": 64}[size]
    kinds = {
        "hybrid": [LayerKind.ATTENTION if i % 4 == 3 else LayerKind.GDN for i in range(layers)],
        "gdn": [LayerKind.GDN] * layers,
        "attn": [LayerKind.ATTENTION] * layers,
    }[family]
    return ModelConfig(**_DIMENSIONS[size], **_COMMON, layer_kinds=tuple(kinds))


_COMMON: dict[str, Any] = {"conv_kernel": 4, "tied": False, "rms_eps": 1e-6, "rope_theta": 1e7}
_DIMENSIONS: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden": 160, "intermediate": 608, "vocab": 512,
        "q_heads": 4, "kv_heads": 2, "head_dim": 64, "rotary_dim": 16,
        "gdn_k_heads": 2, "gdn_v_heads": 4, "gdn_k_dim": 64, "gdn_v_dim": 64,
    },
    "mid": {
        "hidden": 2048, "intermediate": 6144, "vocab": 32768,
        "q_heads": 8, "kv_heads": 2, "head_dim": 256, "rotary_dim": 64,
        "gdn_k_heads": 16, "gdn_v_heads": 32, "gdn_k_dim": 128, "gdn_v_dim": 128,
    },
    "27b": {
        "hidden": 5120, "intermediate": 17408, "vocab": 248320,
        "q_heads": 24, "kv_heads": 4, "head_dim": 256, "rotary_dim": 64,
        "gdn_k_heads": 16, "gdn_v_heads": 48, "gdn_k_dim": 128, "gdn_v_dim": 128,
    },
}  # fmt: skip


# ---- descriptions --------------------------------------------------------------------------------

# Type, offset and scale of the float tensors: value = offset + scale * uniform[-1, 1).
_FLOATS = {
    "embed_tokens.weight": (TensorType.BF16, 0.0, 1.0),
    "input_layernorm.weight": (TensorType.BF16, 0.0, 0.25),
    "post_attention_layernorm.weight": (TensorType.BF16, 0.0, 0.25),
    "model.norm.weight": (TensorType.BF16, 0.0, 0.25),
    "linear_attn.norm.weight": (TensorType.F32, 1.0, 0.25),
    "q_norm.weight": (TensorType.BF16, 0.4, 0.25),
    "k_norm.weight": (TensorType.BF16, 0.4, 0.25),
    "conv1d.weight": (TensorType.BF16, 0.0, 0.8),
    "A_log": (TensorType.F32, math.log(6.0 * 0.05) / 2, math.log(6.0 / 0.05) / 2),  # A: 0.05 .. 6
    "dt_bias": (TensorType.F32, -1.5, 2.5),
}
_GAINS = {HEAD: 2.5, "in_proj_b.weight": 1.5, "o_proj.weight": 1.5}  # others 1


def synthetic_model(family: str, size: str, seed: int) -> Model:
    """InputError for an unknown family or size, or a seed of more than 64 bits."""
    if not 0 <= seed <= WORD:
        raise InputError(f"seed {seed} is outside 0 to 2^64 - 1")
    return described_model(config_of(family, size), seed)


def described_model(config: ModelConfig, seed: int) -> Model:
    """A synthetic model of any dimensions."""
    tensors = [_describe(e, seed) for e in expected_tensors(config)]
    return Model(config, tensors + rope_tensor(config))


def _describe(expected: Expected, seed: int) -> ModelTensor:
    key = fnv1a(expected.name)
    for ending, (kind, offset, scale) in _FLOATS.items():
        if expected.name.endswith(ending):
            synth = Synth(seed, key, _f32(offset), _f32(scale))
            return ModelTensor(expected.name, kind, expected.shape, synth=synth)
    gain = next((g for ending, g in _GAINS.items() if expected.name.endswith(ending)), 1.0)
    std = gain / math.sqrt(expected.shape[1])
    if expected.q4:
        return ModelTensor(
            expected.name,
            TensorType.Q4,
            expected.shape,
            synth=Synth(seed, key, 0.0, _f32(std / NIBBLE_RMS)),
        )
    synth = Synth(
        seed, key, 0.0, _f32(std * math.sqrt(3.0))
    )  # a uniform number's std is scale / sqrt(3)
    return ModelTensor(expected.name, TensorType.F32, expected.shape, synth=synth)


def _f32(value: float) -> float:
    return float(np.float32(value))


# ---- the generator -------------------------------------------------------------------------------


def fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & WORD
    return value


def mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def words(synth: Synth, first: int, count: int) -> np.ndarray:
    """h(first) .. h(first + count - 1) as uint64."""
    base = mix(np.array([(synth.seed + GOLDEN_RATIO * (synth.key | 1)) & WORD], np.uint64))
    index = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return mix(base + np.uint64(GOLDEN_RATIO) * index)


def generate(tensor: ModelTensor) -> ModelTensor:
    """The tensor with the bytes that its description stands for; unchanged when it has bytes."""
    if tensor.synth is None:
        return tensor
    count = math.prod(tensor.shape)
    if tensor.type == TensorType.Q4:
        return _generate_q4(tensor, tensor.synth, count)
    z = ((words(tensor.synth, 0, count) >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(
        np.float32
    )
    z *= np.float32(2.0**-23)
    values = (np.float32(tensor.synth.scale) * z + np.float32(tensor.synth.offset)).reshape(
        tensor.shape
    )
    if tensor.type == TensorType.F16:
        values = values.astype(np.float16)
    elif tensor.type == TensorType.BF16:
        values = bf16_bits(values)
    return ModelTensor(tensor.name, tensor.type, tensor.shape, values)


def _generate_q4(tensor: ModelTensor, synth: Synth, count: int) -> ModelTensor:
    rows, cols = tensor.shape
    nibbles = words(synth, 0, count // 16).astype("<u8").view(np.uint8).reshape(rows, cols // 2)
    scale_words = words(synth, SCALE_STREAM, count // GROUP)
    spread = (scale_words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-25)
    magnitudes = (np.float32(synth.scale) * (np.float32(0.75) + spread)).astype(np.float16)
    # Random signs: nibbles have the mean -0.5, and a shift common to all rows would grow by layer.
    scales = np.where(scale_words & np.uint64(1), -magnitudes, magnitudes)
    return ModelTensor(
        tensor.name, tensor.type, tensor.shape, nibbles, scales.reshape(rows, cols // GROUP)
    )
