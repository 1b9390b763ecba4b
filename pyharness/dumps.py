"""The three files of an arm: written as a whole or not at all, read back through memory maps.

``h_out.npy`` [rows, H] and ``logits.npy`` [rows, V], float32, one row a recorded token.
``state.safetensors`` holds ``position`` I64 [1], the tokens in the state, then layer by layer
``layers.N.S`` [Hv, dk, dv] and ``layers.N.conv`` [conv_dim, K-1], or ``layers.N.keys`` and
``layers.N.values`` [Hkv, position, D], all F32.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pyharness.compare import FILES, len_and_layout
from pyharness.errors import InputError
from pyharness.files import sha256_file, sync_directory
from pyharness.inputs.safetensors import TensorSource, write_safetensors
from pyharness.values import Digest, FileFact

H_OUT, LOGITS, STATE = FILES
POSITION = "position"
Floats = npt.NDArray[np.float32]


def partial_folder(out: Path, owner: int) -> Path:
    """Where a dump lies until it is whole; process ``owner`` removes it when the writer dies."""
    return out.parent / f".{out.name}.partial-{owner}"


class DumpWriter:
    """Rows, the state, then ``commit``. Leaving the block without one leaves nothing behind."""

    def __init__(self, out: Path, rows: int, hidden: int, vocab: int, owner: int = 0) -> None:
        self._out, self._partial = out, partial_folder(out, owner or os.getpid())
        self._state: FileFact | None = None
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} exists already; a dump is never overwritten")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self._partial, ignore_errors=True)  # of an owner that was killed
            self._partial.mkdir()
            self._files = (
                _NpyWriter(self._partial / H_OUT, rows, hidden),
                _NpyWriter(self._partial / LOGITS, rows, vocab),
            )
        except OSError as e:
            raise _unwritable(out, e) from None

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # the disk is full: that was said already
                file.file.close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def append(self, h_out: Floats, logits: Floats) -> None:
        """Recorded rows: h_out [M, H], logits [M, V]."""
        try:
            self._files[0].append(h_out)
            self._files[1].append(logits)
        except OSError as e:
            raise _unwritable(self._out, e) from None

    def state(self, tensors: Iterable[TensorSource]) -> None:
        """The position and the parts of the state, in the order in which they are written."""
        state = hashlib.sha256()  # while it is written: later another file may lie in its place
        try:
            size = write_safetensors(self._partial / STATE, tensors, on_bytes=state.update)
        except OSError as e:
            raise _unwritable(self._out, e) from None
        self._state = FileFact(STATE, Digest(state.hexdigest()), size)

    def commit(self) -> tuple[FileFact, ...]:
        """Makes the dump durable and puts it in its place."""
        if self._state is None:
            raise ValueError(f"{STATE}: the state was not written")
        try:
            facts = (*(f.finish() for f in self._files), self._state)
            sync_directory(self._partial)
            os.rename(self._partial, self._out)
            sync_directory(self._out.parent)
        except OSError as e:
            raise _unwritable(self._out, e) from None
        return facts


class _NpyWriter:
    """A float32 .npy of a shape known in advance, hashed while it is written."""

    def __init__(self, path: Path, rows: int, columns: int) -> None:
        self.path, self.rows, self.columns, self.left = path, rows, columns, rows
        self.file: BinaryIO = path.open("xb")
        self.sha256 = hashlib.sha256()
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)}
        np.lib.format.write_array_header_1_0(self, header)

    def write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.sha256.update(data)

    def append(self, rows: Floats) -> None:
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != self.columns:
            raise ValueError(f"{self.path.name}: {rows.dtype} {rows.shape}, {self.columns} columns")
        self.left -= len(rows)
        self.write(np.ascontiguousarray(rows, "<f4").data.cast("B"))

    def finish(self) -> FileFact:
        if self.left:
            raise ValueError(f"{self.path.name}: {self.rows - self.left} rows of {self.rows}")
        self.file.flush()
        os.fsync(self.file.fileno())
        size = self.file.tell()
        self.file.close()
        return FileFact(self.path.name, Digest(self.sha256.hexdigest()), size)


def _unwritable(out: Path, e: OSError) -> InputError:
    return InputError(f"{out}: cannot be written: {e.strerror or e}")


# ---- reading back --------------------------------------------------------------------------------


def file_facts(folder: Path) -> tuple[FileFact, ...]:
    """Digest and size of each of the three files."""
    facts = []
    for name in FILES:
        digest, size = sha256_file(folder / name)
        facts.append(FileFact(name, digest, size))
    return tuple(facts)


@dataclass(frozen=True)
class Dump:
    """The three files of an arm, memory-mapped and read-only."""

    folder: Path
    h_out: Floats = field(repr=False)  # [rows, H]
    logits: Floats = field(repr=False)  # [rows, V]
    state: Mapping[str, npt.NDArray[Any]] = field(repr=False)  # in file order
    position: int

    @property
    def rows(self) -> int:
        return len(self.h_out)

    @classmethod
    def open(cls, folder: Path) -> Dump:
        """InputError names the file that is missing or malformed, or does not fit the others."""
        arrays = {name: _arrays(folder / name) for name in FILES}
        h_out, logits = arrays[H_OUT][""], arrays[LOGITS][""]
        for name, array in ((H_OUT, h_out), (LOGITS, logits)):
            if array.dtype != np.dtype("<f4") or array.ndim != 2:
                kind = f"{array.dtype} {array.shape}"
                raise InputError(f"{folder / name}: {kind}, not float32 [rows, n]")
        if len(h_out) != len(logits):
            raise InputError(f"{folder}: {H_OUT} has {len(h_out)} rows, {LOGITS} has {len(logits)}")
        state = arrays[STATE]
        position = state.pop(POSITION, None)
        if position is None or position.dtype != np.dtype("<i8") or position.shape != (1,):
            raise InputError(f"{folder / STATE}: no {POSITION!r} of type I64 and shape [1]")
        for name, array in state.items():
            if array.dtype != np.dtype("<f4"):
                raise InputError(f"{folder / STATE}: {name} is {array.dtype}, not F32")
        return cls(folder, h_out, logits, state, int(position[0]))


_DTYPES = {"F32": "<f4", "I64": "<i8"}


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of one file as maps of it."""
    _, layout = len_and_layout(path)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for tensor in layout:
        if tensor.dtype not in _DTYPES:
            raise InputError(f"{path}: {tensor.name or 'array'} has type {tensor.dtype}")
        dtype = np.dtype(_DTYPES[tensor.dtype])
        arrays[tensor.name] = (
            np.memmap(path, dtype, "r", tensor.start, tensor.shape)
            if tensor.size_bytes
            else np.empty(tensor.shape, dtype)  # an empty map is not allowed
        )
    return arrays
