"""A model of the harness as the structs of the ABI. Everything the structs point at is kept until they are dropped."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from pyharness.errors import InputError
from pyharness.host import abi

Q4_GROUP = 32
_ITEM_BYTES = {abi.TensorType.F32: 4, abi.TensorType.F16: 2, abi.TensorType.BF16: 2}


class SynthLike(Protocol):
    """A tensor that the library makes itself; meanings as in ``vcuda_synth``."""

    @property
    def seed(self) -> int: ...
    @property
    def key(self) -> int: ...
    @property
    def offset(self) -> float: ...
    @property
    def scale(self) -> float: ...


class TensorLike(Protocol):
    """``data`` is an array of the tensor's bytes (Q4: uint8 nibbles, ``scales`` float16), or None with ``synth``."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> np.ndarray | None: ...
    @property
    def scales(self) -> np.ndarray | None: ...
    @property
    def synth(self) -> SynthLike | None: ...


class ModelLike(Protocol):
    """``config`` has the fields of ``vcuda_config`` by name; ``layer_kinds`` holds one LayerKind a layer."""

    @property
    def config(self) -> Any: ...
    @property
    def tensors(self) -> Sequence[TensorLike]: ...


class Description:
    """``desc`` is a vcuda_model_desc; this object owns all it refers to."""

    def __init__(self, model: ModelLike, context: int) -> None:
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

    def _make_config(self, config: Any) -> abi.Config:
        made = abi.Config(struct_size=ctypes.sizeof(abi.Config))
        for name, _ in abi.Config._fields_[1:-1]:
            setattr(made, name, getattr(config, name))
        kinds = [int(kind) for kind in config.layer_kinds]
        if len(kinds) != config.layers:
            raise InputError(f"{len(kinds)} layer kinds for {config.layers} layers")
        made.layer_kinds = (ctypes.c_uint8 * len(kinds))(*kinds)
        return made

    def _make_tensor(self, tensor: TensorLike) -> abi.Tensor:
        kind = abi.TensorType(tensor.type)
        made = abi.Tensor(
            struct_size=ctypes.sizeof(abi.Tensor),
            type=kind,
            name=tensor.name.encode(),
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
        if kind is abi.TensorType.Q4:
            made.data = self._address(tensor.name, tensor.data, elements // 2)
            if tensor.scales is None:
                raise InputError(f"tensor {tensor.name} is Q4 and has no scales")
            made.scales = self._address(tensor.name, tensor.scales, elements // Q4_GROUP * 2)
        else:
            made.data = self._address(tensor.name, tensor.data, elements * _ITEM_BYTES[kind])
        return made

    def _address(self, name: str, array: np.ndarray, size_bytes: int) -> int:
        if not array.flags.c_contiguous or array.nbytes != size_bytes:
            raise InputError(
                f"tensor {name}: {array.nbytes} bytes of data where its shape and type take {size_bytes}"
                if array.flags.c_contiguous
                else f"tensor {name}: its data is not in C order"
            )
        self._kept.append(array)
        return int(array.ctypes.data)
