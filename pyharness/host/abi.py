"""The C ABI of ``native/include/vllm_cuda.h`` as one table; a test holds it against the header.

Types are set once, here. A function is bound by address: ``dlsym`` may rightly return 0 (an
absolute symbol, or an IFUNC that resolves to nothing), which ``CDLL.__getattr__`` does not survive
on every Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pyharness.errors import LibraryFailure
from pyharness.inputs.layout import LayerKind, TensorType

ABI_VERSION = 1
PREFIX = "vcuda_"


class Status(IntEnum):
    OK = 0
    E_ARGUMENT = 1
    E_MODEL = 2
    E_UNSUPPORTED = 3
    E_CONTEXT_FULL = 4
    E_NO_MARK = 5
    E_NONFINITE = 6
    E_MEMORY = 7
    E_DEVICE = 8
    E_INTERNAL = 9


class StateKind(IntEnum):
    S = 0
    CONV = 1
    KEYS = 2
    VALUES = 3

    @property
    def part(self) -> str:
        """Its name in state.safetensors, after ``layers.N.``."""
        return self.name if self is StateKind.S else self.name.lower()


class TapKind(IntEnum):
    """Operations of a layer, in the order of the forward pass."""

    INPUT_NORM = 0
    IN_PROJ = 1
    MIXER = 2
    MIXER_RESIDUAL = 3
    POST_NORM = 4
    GATE_UP = 5
    SWIGLU = 6
    RESIDUAL = 7

    @property
    def part(self) -> str:
        return self.name.lower()


class DevOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("device", c_int32), ("threads", c_int32)]


class Synth(ctypes.Structure):
    _fields_ = [("seed", c_uint64), ("key", c_uint64), ("offset", c_float), ("scale", c_float)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("type", c_int32),
        ("name", c_char_p),
        ("shape", c_int64 * 4),
        ("ndim", c_int32),
        ("reserved", c_int32),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("synth", Synth),
    ]


class Config(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("hidden", c_int32),
        ("intermediate", c_int32),
        ("vocab", c_int32),
        ("layers", c_int32),
        ("q_heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("gdn_k_heads", c_int32),
        ("gdn_v_heads", c_int32),
        ("gdn_k_dim", c_int32),
        ("gdn_v_dim", c_int32),
        ("conv_kernel", c_int32),
        ("tied", c_int32),
        ("rms_eps", c_float),
        ("layer_kinds", POINTER(c_uint8)),
    ]


class ModelDesc(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("context", c_int32),
        ("config", POINTER(Config)),
        ("tensors", POINTER(Tensor)),
        ("tensor_count", c_uint64),
    ]


class ModelInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("hidden", c_int32),
        ("vocab", c_int32),
        ("layers", c_int32),
        ("context", c_int32),
        ("position", c_int32),
        ("mmax", c_int32),
        ("marked", c_int32),
        ("weight_bytes", c_uint64),
        ("state_bytes", c_uint64),
    ]


# C name -> Python type. vcuda_dev is opaque: a pointer to it is a c_void_p.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "vcuda_dev_options": DevOptions,
    "vcuda_synth": Synth,
    "vcuda_tensor": Tensor,
    "vcuda_config": Config,
    "vcuda_model_desc": ModelDesc,
    "vcuda_model_info": ModelInfo,
}
# C name -> Python type and what the header puts before its members' names.
ENUMS: dict[str, tuple[type[IntEnum], str]] = {
    "vcuda_status": (Status, "VCUDA_"),
    "vcuda_type": (TensorType, "VCUDA_"),
    "vcuda_layer_kind": (LayerKind, "VCUDA_LAYER_"),
    "vcuda_state_kind": (StateKind, "VCUDA_STATE_"),
    "vcuda_tap_kind": (TapKind, "VCUDA_TAP_"),
}
OPAQUE = ("vcuda_dev",)


@dataclass(frozen=True)
class Function:
    """One exported entry. ``restype`` c_int32 stands for int32_t and for vcuda_status alike."""

    name: str
    restype: Any
    argtypes: tuple[Any, ...]
    required: bool = True


_DEV = c_void_p
_FLOATS = POINTER(c_float)

FUNCTIONS: tuple[Function, ...] = (
    Function("vcuda_abi_version", c_int32, ()),
    Function("vcuda_build_info", c_char_p, ()),
    Function("vcuda_last_error", c_char_p, ()),
    Function("vcuda_dev_open", c_int32, (POINTER(DevOptions), POINTER(_DEV))),
    Function("vcuda_dev_close", c_int32, (_DEV,)),
    Function("vcuda_dev_model_load", c_int32, (_DEV, POINTER(ModelDesc))),
    Function("vcuda_dev_model_reset", c_int32, (_DEV,)),
    Function("vcuda_dev_model_info", c_int32, (_DEV, POINTER(ModelInfo))),
    Function("vcuda_dev_model_step", c_int32, (_DEV, c_int32, _FLOATS, _FLOATS)),
    Function(
        "vcuda_dev_model_step_m",
        c_int32,
        (_DEV, c_int32, POINTER(c_int32), _FLOATS, _FLOATS),
        required=False,
    ),
    Function("vcuda_dev_model_mark", c_int32, (_DEV,), required=False),
    Function("vcuda_dev_model_rollback", c_int32, (_DEV,), required=False),
    Function(
        "vcuda_dev_model_state_read",
        c_int32,
        (_DEV, c_int32, c_int32, c_void_p, c_uint64, POINTER(c_uint64)),
        required=False,
    ),
    Function("vcuda_dev_model_rollback_to", c_int32, (_DEV, c_int32), required=False),
    Function("vcuda_dev_poison", c_int32, (_DEV, c_uint32), required=False),
    Function("vcuda_dev_model_taps", c_int32, (_DEV, c_int32), required=False),
    Function(
        "vcuda_dev_model_tap_read",
        c_int32,
        (_DEV, c_int32, c_int32, c_void_p, c_uint64, POINTER(c_uint64)),
        required=False,
    ),
)
REQUIRED = tuple(f.name for f in FUNCTIONS if f.required)
OPTIONAL = tuple(f.name for f in FUNCTIONS if not f.required)


@dataclass(frozen=True)
class Bound:
    """The entries of one loaded library: ``functions[name]`` is None where one is missing."""

    functions: dict[str, Callable[..., Any] | None]
    abi_version: int

    def __getattr__(self, name: str) -> Any:
        """``bound.step_m`` is ``vcuda_dev_model_step_m``; short names are those of ``SHORT``."""
        try:
            return self.functions[SHORT[name]]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(name for name, f in self.functions.items() if f is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, f in self.functions.items() if f is None)

    def lacks(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if self.functions[name] is None)


def _short(name: str) -> str:
    return name.removeprefix(PREFIX).removeprefix("dev_").removeprefix("model_")


SHORT: dict[str, str] = {_short(f.name): f.name for f in FUNCTIONS}


def bind(library: ctypes.CDLL) -> Bound:
    """Every entry with its types; LibraryFailure where a required one or the version is wrong."""
    found = {f.name: _function(f, _address(library, f.name)) for f in FUNCTIONS}
    if lacking := [name for name in REQUIRED if found[name] is None]:
        raise LibraryFailure(f"the library lacks required entries: {', '.join(lacking)}")
    version = found["vcuda_abi_version"]
    assert version is not None
    if (number := int(version())) != ABI_VERSION:
        raise LibraryFailure(
            f"the library has ABI version {number}, this harness speaks version {ABI_VERSION}"
        )
    return Bound(found, number)


def _function(row: Function, address: int) -> Callable[..., Any] | None:
    # CFUNCTYPE, like CDLL, gives up the interpreter lock during the call.
    return ctypes.CFUNCTYPE(row.restype, *row.argtypes)(address) if address else None


def _address(library: ctypes.CDLL, name: str) -> int:
    """The symbol's address in this library, 0 when it is absent or resolves to nothing."""
    dlsym = ctypes.CDLL(None).dlsym
    dlsym.restype, dlsym.argtypes = c_void_p, (c_void_p, c_char_p)
    return int(dlsym(library._handle, name.encode()) or 0)
