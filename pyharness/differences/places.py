"""Which head or part of an operation an element belongs to, in the layouts of the C header."""

from __future__ import annotations

from collections.abc import Iterator

from pyharness.inputs.layout import LayerKind, ModelConfig

TAPS = (
    "input_norm",
    "in_proj",
    "mixer",
    "mixer_residual",
    "post_norm",
    "gate_up",
    "swiglu",
    "residual",
)
OUTPUTS = ("h_out", "logits")  # behind the layers
STATE_PARTS = {LayerKind.GDN: ("S", "conv"), LayerKind.ATTENTION: ("keys", "values")}
KIND_NAMES = {LayerKind.GDN: "GDN", LayerKind.ATTENTION: "attention"}


def tap_part(config: ModelConfig, layer: int, tap: str, column: int) -> str:
    """The head or part of a column, "" where the operation has none."""
    c, kind = config, config.layer_kinds[layer]
    if tap == "in_proj":
        return _named(_in_proj(c, kind), column)
    if tap == "mixer":
        return f"head {column // (c.gdn_v_dim if kind is LayerKind.GDN else c.head_dim)}"
    if tap == "gate_up":
        return "gate" if column < c.intermediate else "up"
    return ""


def state_part(config: ModelConfig, part: str, index: tuple[int, ...]) -> str:
    """Of an element of S [Hv, dk, dv], conv [conv_dim, K-1], keys or values [Hkv, position, D]."""
    if part == "S":
        return f"head {index[0]}"
    if part == "conv":
        return _named(_qkv(config), index[0])
    return f"KV head {index[0]}, position {index[1]}"


def state_shape(config: ModelConfig, part: str, position: int) -> tuple[int, ...]:
    c = config
    if part == "S":
        return c.gdn_v_heads, c.gdn_k_dim, c.gdn_v_dim
    if part == "conv":
        return c.conv_dim, c.conv_kernel - 1
    return c.kv_heads, position, c.head_dim


def _qkv(c: ModelConfig) -> Iterator[tuple[str, int]]:
    """(name, columns) of each stretch of a GDN layer's q | k | v."""
    yield from ((f"q head {i}", c.gdn_k_dim) for i in range(c.gdn_k_heads))
    yield from ((f"k head {i}", c.gdn_k_dim) for i in range(c.gdn_k_heads))
    yield from ((f"v head {i}", c.gdn_v_dim) for i in range(c.gdn_v_heads))


def _in_proj(c: ModelConfig, kind: LayerKind) -> Iterator[tuple[str, int]]:
    """GDN: q | k | v | z | b | a. Attention: query and gate of each head | keys | values."""
    if kind is LayerKind.GDN:
        yield from _qkv(c)
        yield from ((f"z head {i}", c.gdn_v_dim) for i in range(c.gdn_v_heads))
        yield from ((f"b of head {i}", 1) for i in range(c.gdn_v_heads))
        yield from ((f"a of head {i}", 1) for i in range(c.gdn_v_heads))
        return
    for i in range(c.q_heads):
        yield from ((f"{name} of head {i}", c.head_dim) for name in ("query", "gate"))
    for name in ("keys", "values"):
        yield from ((f"{name} of KV head {i}", c.head_dim) for i in range(c.kv_heads))


def _named(stretches: Iterator[tuple[str, int]], column: int) -> str:
    begin = 0
    for name, width in stretches:
        if column < begin + width:
            return name
        begin += width
    return ""
