"""What a text model consists of: configuration, tensors, and the names and shapes they have."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from pyharness.errors import InputError

GROUP = 32  # columns of a Q4 matrix that share a scale
ROPE = "rope.inv_freq"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
LARGEST_DIMENSION = 1 << 20


class TensorType(IntEnum):
    """vcuda_type."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4 = 3


class LayerKind(IntEnum):
    """vcuda_layer_kind."""

    GDN = 0
    ATTENTION = 1


@dataclass(frozen=True)
class ModelConfig:
    """vcuda_config, and the rotary base, which ``rope.inv_freq`` is computed from."""

    hidden: int
    intermediate: int
    vocab: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    gdn_k_heads: int
    gdn_v_heads: int
    gdn_k_dim: int
    gdn_v_dim: int
    conv_kernel: int
    tied: bool
    rms_eps: float
    rope_theta: float
    layer_kinds: tuple[LayerKind, ...]

    @property
    def layers(self) -> int:
        return len(self.layer_kinds)

    @property
    def conv_dim(self) -> int:
        return 2 * self.gdn_k_heads * self.gdn_k_dim + self.value_dim

    @property
    def value_dim(self) -> int:
        return self.gdn_v_heads * self.gdn_v_dim


@dataclass(frozen=True)
class Synth:
    """vcuda_synth: a tensor the library generates; ``synthetic.generate`` makes the same bytes."""

    seed: int
    key: int  # FNV-1a (64 bit) of the tensor's name
    offset: float
    scale: float


@dataclass(frozen=True)
class ModelTensor:
    """vcuda_tensor. Arrays are C-contiguous and aligned; either ``data`` or ``synth`` is there."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: np.ndarray | None = (
        None  # float32, float16, bfloat16 as uint16; Q4: uint8 [rows, cols / 2]
    )
    scales: np.ndarray | None = None  # Q4: float16 [rows, cols / 32]
    synth: Synth | None = None


@dataclass(frozen=True)
class Model:
    config: ModelConfig
    tensors: Sequence[ModelTensor]


@dataclass(frozen=True)
class Expected:
    """A tensor that a configuration asks for. ``q4``: the library gets it quantized."""

    name: str
    shape: tuple[int, ...]
    q4: bool = False


def check_config(config: ModelConfig, source: str) -> None:
    """InputError when the dimensions do not go together."""
    fields = dataclasses.fields(config)
    for field in [f.name for f in fields if f.type == "int"] + ["layers"]:
        value = getattr(config, field)
        if not 1 <= value <= LARGEST_DIMENSION:
            raise InputError(f"{source}: {field} is {value}, must be 1 to {LARGEST_DIMENSION}")
    rules = (
        (config.q_heads % config.kv_heads == 0, "q_heads must be a multiple of kv_heads"),
        (
            config.gdn_v_heads % config.gdn_k_heads == 0,
            "gdn_v_heads must be a multiple of gdn_k_heads",
        ),
        (0 < config.rotary_dim <= config.head_dim, "the rotary dimensions must be 1 to head_dim"),
        (config.rotary_dim % 2 == 0, "the rotary dimensions must be even"),
        (0 < config.rms_eps < 1, "rms_norm_eps must lie between 0 and 1"),
        (1 < config.rope_theta < 1e12, "rope_theta must lie between 1 and 1e12"),
    )
    for fits, rule in rules:
        if not fits:
            raise InputError(f"{source}: {rule}: {config}")


def expected_tensors(config: ModelConfig) -> list[Expected]:
    """Every tensor of a text-only checkpoint, in the order of the forward pass. The head is among
    them, tied or not.
    """
    hidden = config.hidden
    found = [Expected(EMBEDDING, (config.vocab, hidden))]
    for index, kind in enumerate(config.layer_kinds):
        prefix = f"model.layers.{index}."
        mixer = _gdn(config) if kind == LayerKind.GDN else _attention(config)
        rest = [
            Expected("input_layernorm.weight", (hidden,)),
            *mixer,
            Expected("post_attention_layernorm.weight", (hidden,)),
            Expected("mlp.gate_proj.weight", (config.intermediate, hidden), q4=True),
            Expected("mlp.up_proj.weight", (config.intermediate, hidden), q4=True),
            Expected("mlp.down_proj.weight", (hidden, config.intermediate), q4=True),
        ]
        found += [Expected(prefix + e.name, e.shape, e.q4) for e in rest]
    found.append(Expected("model.norm.weight", (hidden,)))
    found.append(Expected(HEAD, (config.vocab, hidden), q4=True))
    return found


def _gdn(c: ModelConfig) -> list[Expected]:
    return [
        Expected("linear_attn.in_proj_qkv.weight", (c.conv_dim, c.hidden), q4=True),
        Expected("linear_attn.in_proj_z.weight", (c.value_dim, c.hidden), q4=True),
        Expected("linear_attn.in_proj_b.weight", (c.gdn_v_heads, c.hidden)),
        Expected("linear_attn.in_proj_a.weight", (c.gdn_v_heads, c.hidden)),
        Expected("linear_attn.conv1d.weight", (c.conv_dim, 1, c.conv_kernel)),
        Expected("linear_attn.A_log", (c.gdn_v_heads,)),
        Expected("linear_attn.dt_bias", (c.gdn_v_heads,)),
        Expected("linear_attn.norm.weight", (c.gdn_v_dim,)),
        Expected("linear_attn.out_proj.weight", (c.hidden, c.value_dim), q4=True),
    ]


def _attention(c: ModelConfig) -> list[Expected]:
    return [
        Expected("self_attn.q_proj.weight", (2 * c.q_heads * c.head_dim, c.hidden), q4=True),
        Expected("self_attn.k_proj.weight", (c.kv_heads * c.head_dim, c.hidden), q4=True),
        Expected("self_attn.v_proj.weight", (c.kv_heads * c.head_dim, c.hidden), q4=True),
        Expected("self_attn.q_norm.weight", (c.head_dim,)),
        Expected("self_attn.k_norm.weight", (c.head_dim,)),
        Expected("self_attn.o_proj.weight", (c.hidden, c.q_heads * c.head_dim), q4=True),
    ]


def rope_tensor(config: ModelConfig) -> list[ModelTensor]:
    """``rope.inv_freq`` [R/2], from float64, rounded once; none without an attention layer."""
    if LayerKind.ATTENTION not in config.layer_kinds:
        return []
    r = config.rotary_dim
    data = np.array([config.rope_theta ** (-2.0 * i / r) for i in range(r // 2)], np.float32)
    return [ModelTensor(ROPE, TensorType.F32, (r // 2,), data)]
