"""An obvious float64 Qwen3.5 decoder, one token at a time: the oracle of the tests.

``Reference(model).step(token)`` gives the hidden state after the final norm and the logits;
``states`` holds what the library's state_read gives. H hidden, V vocabulary, Hq / Hkv query / KV
heads of D, Hk / Hv key / value heads of dk / dv, K convolution taps, R rotary dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from pyharness.inputs.layout import (
    EMBEDDING,
    HEAD,
    ROPE,
    LayerKind,
    Model,
    ModelConfig,
    ModelTensor,
    TensorType,
)
from pyharness.inputs.quantize import dequantize, to_float32
from pyharness.inputs.synthetic import generate

L2_EPS = 1e-6  # a constant of the model, not rms_norm_eps


def weight(tensor: ModelTensor) -> np.ndarray:
    """A tensor's exact value as float64."""
    tensor = generate(tensor)
    assert tensor.data is not None
    if tensor.type == TensorType.Q4:
        assert tensor.scales is not None
        return dequantize(tensor.data, tensor.scales).astype(np.float64)
    return to_float32(tensor.data, tensor.type.name).astype(np.float64)


def weights(model: Model) -> dict[str, np.ndarray]:
    return {t.name: weight(t) for t in model.tensors}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def unit(x: np.ndarray) -> np.ndarray:
    """Every row to length one."""
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS)


class Gdn:
    """A Gated DeltaNet layer. S [Hv, dk, dv]; history [conv_dim, K - 1], oldest first."""

    def __init__(self, config: ModelConfig, w: Mapping[str, np.ndarray]) -> None:
        self.c, self.w = config, w
        self.S = np.zeros((config.gdn_v_heads, config.gdn_k_dim, config.gdn_v_dim))
        self.history = np.zeros((config.conv_dim, config.conv_kernel - 1))

    def __call__(self, h: np.ndarray) -> np.ndarray:
        c, w = self.c, self.w
        window = np.column_stack([self.history, w["in_proj_qkv.weight"] @ h])
        self.history = window[:, 1:]
        y = silu(np.sum(window * w["conv1d.weight"][:, 0, :], axis=1))

        keys = c.gdn_k_heads * c.gdn_k_dim
        q = unit(y[:keys].reshape(c.gdn_k_heads, -1)) / np.sqrt(c.gdn_k_dim)
        k = unit(y[keys : 2 * keys].reshape(c.gdn_k_heads, -1))
        v = y[2 * keys :].reshape(c.gdn_v_heads, -1)
        shared = c.gdn_v_heads // c.gdn_k_heads  # consecutive value heads share a key head
        q, k = q.repeat(shared, axis=0), k.repeat(shared, axis=0)

        beta = sigmoid(w["in_proj_b.weight"] @ h)
        g = -np.exp(w["A_log"]) * np.logaddexp(0.0, w["in_proj_a.weight"] @ h + w["dt_bias"])
        self.S = np.exp(g)[:, None, None] * self.S
        delta = beta[:, None] * (v - np.einsum("hkv,hk->hv", self.S, k))
        self.S = self.S + k[:, :, None] * delta[:, None, :]
        o = np.einsum("hkv,hk->hv", self.S, q)

        z = (w["in_proj_z.weight"] @ h).reshape(o.shape)
        t = (
            o
            / np.sqrt(np.mean(o * o, axis=1, keepdims=True) + c.rms_eps)
            * w["norm.weight"]
            * silu(z)
        )
        return w["out_proj.weight"] @ t.reshape(-1)

    def states(self) -> dict[str, np.ndarray]:
        return {"S": self.S, "conv": self.history}


class Attention:
    """A full-attention layer. keys (after norm and rotary) and values: [Hkv, position, D]."""

    def __init__(
        self, config: ModelConfig, w: Mapping[str, np.ndarray], inv_freq: np.ndarray
    ) -> None:
        self.c, self.w, self.inv_freq = config, w, inv_freq
        self.keys = np.zeros((config.kv_heads, 0, config.head_dim))
        self.values = np.zeros((config.kv_heads, 0, config.head_dim))

    def __call__(self, h: np.ndarray) -> np.ndarray:
        c, w = self.c, self.w
        q, gate = np.moveaxis((w["q_proj.weight"] @ h).reshape(c.q_heads, 2, c.head_dim), 1, 0)
        k = (w["k_proj.weight"] @ h).reshape(c.kv_heads, c.head_dim)
        v = (w["v_proj.weight"] @ h).reshape(c.kv_heads, c.head_dim)
        position = self.keys.shape[1]
        q = self.rotary(rms(q, w["q_norm.weight"], c.rms_eps), position)
        k = self.rotary(rms(k, w["k_norm.weight"], c.rms_eps), position)
        self.keys = np.concatenate([self.keys, k[:, None, :]], axis=1)
        self.values = np.concatenate([self.values, v[:, None, :]], axis=1)

        shared = c.q_heads // c.kv_heads  # consecutive query heads share a KV head
        scores = np.einsum("htd,hd->ht", self.keys.repeat(shared, axis=0), q) / np.sqrt(c.head_dim)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        o = np.einsum("ht,htd->hd", p, self.values.repeat(shared, axis=0)) * sigmoid(gate)
        return w["o_proj.weight"] @ o.reshape(-1)

    def rotary(self, x: np.ndarray, position: int) -> np.ndarray:
        """Rotates the pairs (i, i + R/2) of the first R dimensions of every head."""
        half = len(self.inv_freq)
        angle = position * self.inv_freq
        cos, sin = np.cos(angle), np.sin(angle)
        first, second, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        return np.concatenate(
            [first * cos - second * sin, second * cos + first * sin, rest], axis=1
        )

    def states(self) -> dict[str, np.ndarray]:
        return {"keys": self.keys, "values": self.values}


def rms(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * (1.0 + w)


class Reference:
    """``exact_rotary``: frequencies in float64, as the golden data has them, not the model's."""

    def __init__(self, model: Model, exact_rotary: bool = False) -> None:
        self.c, self.w = model.config, weights(model)
        r = self.c.rotary_dim
        exact = self.c.rope_theta ** (-2.0 * np.arange(r // 2) / r)
        inv_freq = exact if exact_rotary else self.w.get(ROPE, exact)
        self.mixers: list[Gdn | Attention] = []
        self.residual: list[
            np.ndarray
        ] = []  # of the last token: the embedding, then after each layer
        for i, kind in enumerate(self.c.layer_kinds):
            if kind == LayerKind.GDN:
                self.mixers.append(Gdn(self.c, self._part(f"model.layers.{i}.linear_attn.")))
            else:
                self.mixers.append(
                    Attention(self.c, self._part(f"model.layers.{i}.self_attn."), inv_freq)
                )

    def step(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """h_out [H] and logits [V] of the next position."""
        w, eps = self.w, self.c.rms_eps
        x = w[EMBEDDING][token]
        self.residual = [x]
        for i, mixer in enumerate(self.mixers):
            p = f"model.layers.{i}."
            x = x + mixer(rms(x, w[p + "input_layernorm.weight"], eps))
            h = rms(x, w[p + "post_attention_layernorm.weight"], eps)
            x = x + w[p + "mlp.down_proj.weight"] @ (
                silu(w[p + "mlp.gate_proj.weight"] @ h) * (w[p + "mlp.up_proj.weight"] @ h)
            )
            self.residual.append(x)
        h_out = rms(x, w["model.norm.weight"], eps)
        return h_out, w[HEAD] @ h_out

    def run(self, tokens: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """h_out [T, H] and logits [T, V]."""
        rows = [self.step(int(t)) for t in tokens]
        return np.stack([h for h, _ in rows]), np.stack([logits for _, logits in rows])

    @property
    def states(self) -> list[dict[str, np.ndarray]]:
        """Per layer: S and conv, or keys and values."""
        return [mixer.states() for mixer in self.mixers]

    def _part(self, prefix: str) -> dict[str, np.ndarray]:
        return {
            name.removeprefix(prefix): v for name, v in self.w.items() if name.startswith(prefix)
        }
