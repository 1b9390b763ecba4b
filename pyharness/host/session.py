"""One model on one library: checked arguments, and outputs checked before anyone sees them."""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pyharness.canonical import canonical_json
from pyharness.errors import LibraryFailure
from pyharness.host import abi
from pyharness.host.arrays import GuardedOutput, pointer
from pyharness.host.marshal import Description
from pyharness.host.script import MM_VARIABLE
from pyharness.inputs.layout import Model

_ERROR_TEXT_CHARS = 500
_BUILD_INFO_BYTES = 1 << 16


class CallFailed(LibraryFailure):
    """A call that returned another status than VCUDA_OK."""

    def __init__(self, function: str, status: int, text: str, *, wrote: bool = False) -> None:
        self.function, self.status, self.text, self.wrote = function, status, text, wrote
        known = status in abi.Status.__members__.values()
        name = f"VCUDA_{abi.Status(status).name}" if known else "unknown status"
        super().__init__(f"{function}: {name} ({status}): {text or 'the library gives no reason'}")


class MissingEntry(LibraryFailure):
    """An optional entry that this library lacks was called."""


@dataclass(frozen=True)
class Rows:
    """Outputs of one call, float32: h_out [M, H], logits [M, V]; valid until the next step."""

    h_out: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True)
class Info:
    hidden: int
    vocab: int
    layers: int
    context: int
    position: int
    mmax: int
    marked: int  # 1: a rollback is possible
    weight_bytes: int
    state_bytes: int


class Engine(Protocol):
    """What a script needs of an inference engine. ``Session`` is the one over the C ABI."""

    @property
    def native_ns(self) -> int:
        """Time spent inside the engine's own calls so far."""
        ...

    def reset(self) -> None: ...
    def step(self, token: int) -> Rows: ...
    def step_m(self, tokens: Sequence[int]) -> Rows: ...
    def mark(self) -> None: ...
    def rollback(self) -> None: ...
    def rollback_to(self, n: int) -> None: ...
    def poison(self, word: int) -> None: ...
    def state_read(self, layer: int, kind: abi.StateKind) -> np.ndarray: ...
    def info(self) -> Info: ...
    def close(self) -> None: ...


class Session:
    """Opens a device; ``load`` puts the model on it. Close it, or use it in a ``with``."""

    def __init__(
        self,
        bound: abi.Bound,
        model: Model,
        mmax: int = 0,
        threads: int = 0,
        device: int = 0,
        *,
        context: int = 4096,
        on_call: Callable[[str], None] = lambda call: None,
    ) -> None:
        """``on_call`` hears of each native call before it is made: a crash is blamed on it."""
        self._bound, self._model, self._mmax, self._context = bound, model, mmax, context
        self._on_call = on_call
        self._dev = ctypes.c_void_p()
        self._outputs: dict[int, tuple[GuardedOutput, GuardedOutput]] = {}
        self._last_read: GuardedOutput | None = None
        self.native_ns = 0
        options = abi.DevOptions(ctypes.sizeof(abi.DevOptions), device, threads)
        self._call("vcuda_dev_open", ctypes.byref(options), ctypes.byref(self._dev))
        if not self._dev.value:
            raise LibraryFailure("vcuda_dev_open reports success and gives no device")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        with nullcontext() if kind is None else suppress(LibraryFailure):  # the first error counts
            self.close()

    def load(self) -> Info:
        """Hand the model over. The library reads mmax from the environment: it is set here."""
        made = Description(self._model, self._context)
        with _environment(MM_VARIABLE, str(self._mmax) if self._mmax else None):
            self._call("vcuda_dev_model_load", self._dev, ctypes.byref(made.desc))
        info, config = self.info(), self._model.config
        for name in ("hidden", "vocab", "layers"):
            if getattr(info, name) != getattr(config, name):
                raise LibraryFailure(
                    f"vcuda_dev_model_info: {name} is {getattr(info, name)} after a model with "
                    f"{getattr(config, name)} was loaded"
                )
        return info

    def close(self) -> None:
        """LibraryFailure also where the library wrote outputs after the calls that gave them."""
        if self._dev.value:
            dev, self._dev = self._dev, ctypes.c_void_p()
            self._call("vcuda_dev_close", dev)
            for output in (o for pair in self._outputs.values() for o in pair):
                output.require_kept()
            if self._last_read:
                self._last_read.require_kept()

    def reset(self) -> None:
        self._call("vcuda_dev_model_reset", self._dev)

    def info(self) -> Info:
        raw = abi.ModelInfo(struct_size=ctypes.sizeof(abi.ModelInfo))
        self._call("vcuda_dev_model_info", self._dev, ctypes.byref(raw))
        return Info(*(int(getattr(raw, field[0])) for field in abi.ModelInfo._fields_[1:]))

    def step(self, token: int) -> Rows:
        return self._rows("vcuda_dev_model_step", 1, (_int32(token),), f"token {token}")

    def step_m(self, tokens: Sequence[int]) -> Rows:
        row = np.array([_int32(token) for token in tokens], np.int32)
        head = (len(row), pointer(row, np.int32, ctypes.c_int32))
        return self._rows("vcuda_dev_model_step_m", len(row), head, f"M = {len(row)}")

    def mark(self) -> None:
        self._call("vcuda_dev_model_mark", self._dev)

    def rollback(self) -> None:
        self._call("vcuda_dev_model_rollback", self._dev)

    def rollback_to(self, n: int) -> None:
        self._call("vcuda_dev_model_rollback_to", self._dev, n)

    def poison(self, word: int) -> None:
        """Fill all memory that no result may depend on with a 32-bit word."""
        self._call("vcuda_dev_poison", self._dev, word)

    def taps(self, on: bool) -> None:
        self._call("vcuda_dev_model_taps", self._dev, int(on))

    def tap_read(self, layer: int, kind: abi.TapKind) -> np.ndarray:
        """What one operation of the last step left, flat float32 [m * columns]; a copy."""
        return self._read("vcuda_dev_model_tap_read", layer, kind)

    def state_read(self, layer: int, kind: abi.StateKind) -> np.ndarray:
        """One part of one layer's state, flat float32; a copy."""
        return self._read("vcuda_dev_model_state_read", layer, kind)

    def _read(self, name: str, layer: int, kind: abi.StateKind | abi.TapKind) -> np.ndarray:
        needed = ctypes.c_uint64()
        what = f"layers.{layer}.{kind.part}"
        self._call(name, self._dev, layer, kind, None, 0, ctypes.byref(needed), detail=what)
        size = int(needed.value)
        if size % 4:
            raise LibraryFailure(f"{name}: {what} has {size} bytes, which is no number of float32")
        if self._last_read:
            self._last_read.require_kept()
        self._last_read = out = GuardedOutput(what, size // 4)
        if size:
            address, again = out.arm(), ctypes.c_uint64()
            self._call(
                name, self._dev, layer, kind, address, size, ctypes.byref(again), detail=what
            )
            if again.value != size:
                raise LibraryFailure(f"{name}: {what} had {size} bytes, then {again.value}")
            out.collect()
        return out.words.view(np.float32)

    def _rows(self, name: str, m: int, head: tuple[Any, ...], detail: str) -> Rows:
        if m not in self._outputs:
            config = self._model.config
            self._outputs[m] = (
                GuardedOutput("h_out", m, config.hidden),
                GuardedOutput("logits", m, config.vocab),
            )
        h_out, logits = self._outputs[m]
        try:
            self._call(name, self._dev, *head, h_out.arm(), logits.arm(), detail=detail)
        except CallFailed as e:
            if h_out.untouched and logits.untouched:
                raise
            text = f"{e.text} (and it wrote outputs all the same)"
            raise CallFailed(name, e.status, text, wrote=True) from e
        try:
            return Rows(h_out.collect(), logits.collect())
        except LibraryFailure as e:
            raise LibraryFailure(f"{name} ({detail}): {e}") from None

    def _call(self, name: str, *arguments: Any, detail: str = "") -> None:
        function = self._bound.functions[name]
        if function is None:
            raise MissingEntry(f"the library lacks {name}")
        self._on_call(f"{name} ({detail})" if detail else name)
        begin = time.perf_counter_ns()
        status = int(function(*arguments))
        self.native_ns += time.perf_counter_ns() - begin
        if status != abi.Status.OK:
            raise CallFailed(name, status, self._last_error())

    def _last_error(self) -> str:
        raw = self._bound.last_error() or b""
        return " ".join(raw.decode("utf-8", "replace").split())[:_ERROR_TEXT_CHARS]


def build_info(bound: abi.Bound) -> dict[str, Any]:
    """The JSON object in which a library describes itself."""
    raw = bound.build_info() or b""
    try:
        value = json.loads(raw)
        canonical_json(value, floats=True)  # a record must be able to hold it
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or len(raw) > _BUILD_INFO_BYTES:
        raise LibraryFailure(
            f"vcuda_build_info is no JSON object: {raw[:80].decode(errors='replace')!r}"
        )
    return value


def _int32(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise LibraryFailure(f"token {value} does not fit into 32 bits")
    return int(value)


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set or unset one variable (for this process's native code too), then put it back."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
