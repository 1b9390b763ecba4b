from __future__ import annotations

import ctypes

import numpy as np
import pytest

from pyharness.errors import InputError
from pyharness.host import abi
from pyharness.host.marshal import Description
from pyharness.inputs.layout import Model, ModelTensor, Synth, TensorType
from pyharness.inputs.synthetic import config_of

CONFIG = config_of("hybrid", "tiny")


def described(*tensors: ModelTensor) -> Description:
    return Description(Model(CONFIG, tensors), context=7)


def test_the_configuration_field_by_field() -> None:
    desc = described().desc
    made = desc.config.contents
    assert (desc.struct_size, desc.context, desc.tensor_count) == (ctypes.sizeof(desc), 7, 0)
    assert made.struct_size == ctypes.sizeof(abi.Config)
    for field in abi.Config._fields_[1:-2]:
        assert getattr(made, field[0]) == getattr(CONFIG, field[0]), field[0]
    assert made.rms_eps == np.float32(CONFIG.rms_eps)
    assert made.layer_kinds[: CONFIG.layers] == [int(k) for k in CONFIG.layer_kinds]


def test_tensors_keep_bytes_shape_and_name() -> None:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    nibbles = np.arange(64, dtype=np.uint8).reshape(2, 32)
    scales = np.ones((2, 2), np.float16)
    made = described(
        ModelTensor("a", TensorType.F32, (2, 3), floats),
        ModelTensor("b", TensorType.Q4, (2, 64), nibbles, scales),
        ModelTensor("c", TensorType.BF16, (5,), synth=Synth(11, 12, 0.5, 0.25)),
    )
    del floats, nibbles, scales  # the description holds them
    a, b, c = made.desc.tensors[:3]
    assert [t.name for t in (a, b, c)] == [b"a", b"b", b"c"]
    assert [list(t.shape) for t in (a, b, c)] == [[2, 3, 0, 0], [2, 64, 0, 0], [5, 0, 0, 0]]
    assert [(t.type, t.ndim, t.reserved) for t in (a, b, c)] == [(0, 2, 0), (3, 2, 0), (2, 1, 0)]
    assert all(t.struct_size == ctypes.sizeof(abi.Tensor) for t in (a, b, c))
    assert ctypes.string_at(a.data, 24) == np.arange(6, dtype="<f4").tobytes()
    assert ctypes.string_at(b.data, 64) == bytes(range(64))
    assert ctypes.string_at(b.scales, 8) == np.ones(4, "<f2").tobytes()
    assert c.data is None
    assert (c.synth.seed, c.synth.key, c.synth.offset, c.synth.scale) == (11, 12, 0.5, 0.25)


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (ModelTensor("w", TensorType.F32, (2, 3), np.zeros(5, np.float32)), "20 bytes of data"),
        (ModelTensor("w", TensorType.F16, (4,), np.zeros(4, np.float32)), "16 bytes of data"),
        (
            ModelTensor("w", TensorType.F32, (3, 2), np.zeros((2, 3), np.float32).T),
            "not in C order",
        ),
        (ModelTensor("w", TensorType.Q4, (1, 32), np.zeros(16, np.uint8)), "has no scales"),
        (
            ModelTensor(
                "w", TensorType.Q4, (1, 64), np.zeros(32, np.uint8), np.zeros(1, np.float16)
            ),
            "2 bytes of data",
        ),
        (ModelTensor("w", TensorType.F32, (4,)), "neither data nor a generator"),
    ],
)
def test_bytes_that_do_not_fit_never_reach_the_library(tensor: ModelTensor, what: str) -> None:
    with pytest.raises(InputError, match=f"tensor w.*{what}"):
        described(tensor)
