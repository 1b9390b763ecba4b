"""A model of the harness as the structs of the ABI, which keep alive what they point at."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from pyharness.errors import InputError
from pyharness.host import abi
from pyharness.inputs.layout import GROUP, Model, ModelConfig, ModelTensor, TensorType

_ITEM_BYTES = {TensorType.F32: 4, TensorType.F16: 2, TensorType.BF16: 2}


class Description:
    """``desc`` is a vcuda_model_desc; this object owns all it refers to."""

    def __init__(self, model: Model, context: int) -> None:
        self._kept: list[Any] = []
        self._config = self._make_config(model.config)
        self._tensors = (abi.Tensor * len(model.tensors))(*map(self._make_tensor, model.tensors))
        self.desc = abi.ModelDesc(
            struct_size=ctypes.sizeof(abi.ModelDesc),
            context=context,
            config=ctypes.pointer(self._config),
            tensors=self._tensors,
            tensor_count=len(model.tensors),
        )

    def _make_config(self, config: ModelConfig) -> abi.Config:
        made = abi.Config(struct_size=ctypes.sizeof(abi.Config))
        for field in abi.Config._fields_[1:-1]:
            setattr(made, field[0], getattr(config, field[0]))
        made.layer_kinds = (ctypes.c_uint8 * config.layers)(*config.layer_kinds)
        return made

    def _make_tensor(self, tensor: ModelTensor) -> abi.Tensor:
        name = tensor.name.encode()
        self._kept.append(name)
        made = abi.Tensor(
            struct_size=ctypes.sizeof(abi.Tensor),
            type=tensor.type,
            name=name,
            shape=(ctypes.c_int64 * 4)(*tensor.shape),
            ndim=len(tensor.shape),
        )
        if tensor.data is None:
            if tensor.synth is None:
                raise InputError(f"tensor {tensor.name} has neither data nor a generator")
            s = tensor.synth
            made.synth = abi.Synth(seed=s.seed, key=s.key, offset=s.offset, scale=s.scale)
            return made
        elements = prod(tensor.shape)
        if tensor.type is TensorType.Q4:
            made.data = self._address(tensor.name, tensor.data, elements // 2)
            if tensor.scales is None:
                raise InputError(f"tensor {tensor.name} is Q4 and has no scales")
            made.scales = self._address(tensor.name, tensor.scales, elements // GROUP * 2)
        else:
            made.data = self._address(tensor.name, tensor.data, elements * _ITEM_BYTES[tensor.type])
        return made

    def _address(self, name: str, array: np.ndarray, size_bytes: int) -> int:
        if not array.flags.c_contiguous or array.nbytes != size_bytes:
            raise InputError(
                f"tensor {name}: {array.nbytes} bytes of data, its shape and type take {size_bytes}"
                if array.flags.c_contiguous
                else f"tensor {name}: its data is not in C order"
            )
        self._kept.append(array)
        return int(array.ctypes.data)
