"""The generator against integers of Python, its statistics, the health of the models it makes."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest

from pyharness.errors import InputError
from pyharness.inputs import synthetic
from pyharness.inputs.layout import (
    HEAD,
    ROPE,
    LayerKind,
    Model,
    ModelTensor,
    Synth,
    TensorType,
    expected_tensors,
)
from pyharness.inputs.quantize import dequantize, to_float32
from pyharness.inputs.synthetic import (
    FAMILIES,
    SIZES,
    config_of,
    fnv1a,
    generate,
    synthetic_model,
    words,
)
from pyharness.tests.reference import Reference

MASK = (1 << 64) - 1


def mix_by_hand(z: int) -> int:
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def word_by_hand(seed: int, key: int, i: int) -> int:
    base = mix_by_hand((seed + 0x9E3779B97F4A7C15 * (key | 1)) & MASK)
    return mix_by_hand((base + 0x9E3779B97F4A7C15 * (i + 1)) & MASK)


def f32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def find(model: Model, name: str) -> ModelTensor:
    return next(t for t in model.tensors if t.name == name)


def data_of(tensor: ModelTensor) -> np.ndarray:
    assert tensor.data is not None
    return tensor.data


# ---- the generator ------------------------------------------------------------------------------


def test_names_become_keys() -> None:
    """Published FNV-1a (64 bit) values."""
    assert fnv1a("") == 0xCBF29CE484222325
    assert fnv1a("a") == 0xAF63DC4C8601EC8C
    assert fnv1a("foobar") == 0x85944171F73967E8


@pytest.mark.parametrize("seed", [0, 1, 20260101, MASK])
@pytest.mark.parametrize("first", [0, 5, 1 << 40, (1 << 40) + 12345])
def test_words(seed: int, first: int) -> None:
    synth = Synth(seed, fnv1a("model.norm.weight"), 0.0, 1.0)
    expected = [word_by_hand(seed, synth.key, first + i) for i in range(20)]
    assert words(synth, first, 20).tolist() == expected


@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.F16, TensorType.BF16])
def test_a_float_element(kind: TensorType) -> None:
    synth = Synth(7, fnv1a("x"), f32(0.4), f32(0.3))
    made = data_of(generate(ModelTensor("x", kind, (5, 3), synth=synth)))
    values = to_float32(made, kind.name).reshape(-1)
    for i in range(15):
        z = ((word_by_hand(7, synth.key, i) >> 40) - (1 << 23)) * 2.0**-23
        value = f32(f32(synth.scale * z) + synth.offset)  # a product and a sum: two roundings
        if kind == TensorType.F32:
            assert values[i] == value
        else:
            bits = 11 if kind == TensorType.F16 else 8
            assert abs(values[i] - value) <= abs(value) * 2.0**-bits


def test_a_q4_tensor() -> None:
    synth = Synth(3, fnv1a("w"), 0.0, f32(0.01))
    made = generate(ModelTensor("w", TensorType.Q4, (3, 64), synth=synth))
    integers = np.stack([data_of(made) & 15, data_of(made) >> 4], axis=-1).reshape(-1)
    for j in range(12):
        word = word_by_hand(3, synth.key, j)
        assert integers[16 * j : 16 * j + 16].tolist() == [word >> 4 * k & 15 for k in range(16)]
    assert made.scales is not None
    for g, scale in enumerate(made.scales.reshape(-1)):
        word = word_by_hand(3, synth.key, (1 << 40) + g)
        magnitude = f32(synth.scale * f32(0.75 + (word >> 40) * 2.0**-25))
        assert scale == (-1) ** (word & 1) * np.float16(magnitude)


RECORDED = ["895ab70b", "f0286528", "e5bdd2bbbd3d"]


def test_recorded_bits() -> None:
    """Whoever changes the generator changes every synthetic model and every record of one."""
    model = synthetic_model("hybrid", "tiny", 20260101)
    head, norm = generate(find(model, HEAD)), generate(find(model, "model.norm.weight"))
    assert head.scales is not None
    found = [data_of(head)[1, :4].tobytes().hex(), head.scales[1, :2].tobytes().hex()]
    assert [*found, data_of(norm)[:3].tobytes().hex()] == RECORDED


def test_statistics() -> None:
    synth = Synth(11, fnv1a("s"), 2.0, 0.5)
    made = data_of(generate(ModelTensor("s", TensorType.F32, (1 << 16,), synth=synth)))
    assert 1.5 <= made.min() < 1.501
    assert 2.499 < made.max() <= 2.5
    assert abs(made.mean() - 2.0) < 0.005
    q4 = generate(ModelTensor("s", TensorType.Q4, (256, 512), synth=synth))
    assert q4.scales is not None
    magnitude = np.abs(q4.scales.astype(float))
    assert 0.375 <= magnitude.min() < 0.376
    assert 0.624 < magnitude.max() <= 0.625
    counts = np.bincount(np.concatenate([data_of(q4) & 15, data_of(q4) >> 4]).reshape(-1))
    assert len(counts) == 16
    assert np.abs(counts / counts.mean() - 1).max() < 0.06
    weights = dequantize(data_of(q4), q4.scales)
    assert abs(weights.mean()) < 0.01 * weights.std()


# ---- descriptions -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_is_described(family: str, size: str) -> None:
    model = synthetic_model(family, size, 4)
    expected = {e.name: e for e in expected_tensors(model.config)}
    tensors = {t.name: t for t in model.tensors if t.name != ROPE}
    assert list(tensors) == list(expected)
    assert len({t.synth.key for t in tensors.values() if t.synth}) == len(tensors)
    for name, tensor in tensors.items():
        assert tensor.shape == expected[name].shape
        assert (tensor.type == TensorType.Q4) == expected[name].q4
        assert tensor.synth is not None
        assert tensor.synth.scale == f32(tensor.synth.scale) > 0
        if tensor.type == TensorType.Q4:
            assert tensor.shape[1] % 32 == 0
    attention = LayerKind.ATTENTION in model.config.layer_kinds
    assert (model.tensors[-1].name == ROPE) == attention == (family != "gdn")


def test_the_27b_shapes() -> None:
    config = config_of("hybrid", "27b")
    kinds = list(config.layer_kinds)
    assert (len(kinds), kinds.count(LayerKind.ATTENTION)) == (64, 16)
    assert all((k == LayerKind.ATTENTION) == (i % 4 == 3) for i, k in enumerate(kinds))
    assert (config.conv_dim, config.value_dim, config.rotary_dim) == (10240, 6144, 64)
    expected = expected_tensors(config)
    assert len(expected) == 851
    assert sum(math.prod(e.shape) for e in expected) == 26_895_998_464


def test_seeds_and_names_make_different_weights() -> None:
    a, b = (synthetic_model("gdn", "tiny", seed) for seed in (0, 1))
    assert data_of(generate(find(a, HEAD))).tobytes() != data_of(generate(find(b, HEAD))).tobytes()
    layers = [f"model.layers.{i}.mlp.up_proj.weight" for i in (0, 1)]
    first, second = (data_of(generate(find(a, name))).tobytes() for name in layers)
    assert first != second


@pytest.mark.parametrize(
    ("family", "size", "seed", "message"),
    [
        ("dense", "tiny", 0, "no synthetic model 'dense' of size 'tiny': families are hybrid, gdn"),
        ("gdn", "large", 0, "sizes tiny, mid, 27b"),
        ("gdn", "tiny", -1, "seed -1 is outside"),
        ("gdn", "tiny", 1 << 64, "seed 18446744073709551616 is outside"),
    ],
)
def test_models_that_do_not_exist(family: str, size: str, seed: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        synthetic_model(family, size, seed)


# ---- health -------------------------------------------------------------------------------------


def tokens(count: int) -> list[int]:
    return np.random.default_rng(3).integers(0, 512, count).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_alive(family: str) -> None:
    """300 tokens: finite, of a sensible size, not the same for every token, steady over time."""
    model = synthetic_model(family, "tiny", 0)
    reference = Reference(model)
    hidden, logits = reference.run(tokens(300))
    assert np.isfinite(hidden).all()
    assert np.isfinite(logits).all()
    for part in (logits[:100], logits[200:]):
        assert 0.5 < part.std() < 20
        assert len(set(part.argmax(axis=1).tolist())) > 40
    alike = np.corrcoef(logits[100:])
    assert abs(alike[np.triu_indices(200, 1)].mean()) < 0.2
    for state in reference.states:
        for part in state.values():
            assert np.isfinite(part).all()
            assert 1e-3 < part.std() < 100


@pytest.mark.parametrize("family", FAMILIES)
def test_the_past_matters(family: str) -> None:
    """Another first token changes the logits 20 tokens later by far more than rounding would."""
    model = synthetic_model(family, "tiny", 1)
    ids = tokens(20)
    _, a = Reference(model).run(ids)
    _, b = Reference(model).run([(ids[0] + 1) % 512, *ids[1:]])
    assert np.abs(a[-1] - b[-1]).max() > 1e-3


def test_decays_reach_from_slow_to_fast() -> None:
    """exp(g) a token, over all heads, with a at zero: some heads remember, some forget at once."""
    model = synthetic_model("hybrid", "mid", 0)
    decays: list[np.ndarray] = []
    for i, kind in enumerate(model.config.layer_kinds):
        if kind == LayerKind.GDN:
            p = f"model.layers.{i}.linear_attn."
            a_log, dt = (data_of(generate(find(model, p + n))) for n in ("A_log", "dt_bias"))
            decays.append(np.exp(-np.exp(a_log) * np.logaddexp(0.0, dt)))
    every = np.concatenate(decays)
    assert every.min() < 0.05
    assert every.max() > 0.99


def test_one_common_shift_would_drown_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: with scales of one sign the logits hardly depend on the token."""

    def one_sign(tensor: ModelTensor, synth: Synth, count: int) -> ModelTensor:
        made = original(tensor, synth, count)
        assert made.scales is not None
        return ModelTensor(made.name, made.type, made.shape, made.data, np.abs(made.scales))

    original: Any = synthetic._generate_q4
    monkeypatch.setattr(synthetic, "_generate_q4", one_sign)
    _, logits = Reference(synthetic_model("hybrid", "tiny", 0)).run(tokens(60))
    assert np.corrcoef(logits[30:])[np.triu_indices(30, 1)].mean() > 0.5
