"""The safetensors container: a reader that maps the file and trusts nothing in it, and a streaming,
atomic writer.

Format: length of the header (8 bytes, little-endian), a JSON object {name: {dtype, shape,
data_offsets}} with an optional ``__metadata__`` of strings, then the tensors' bytes in C order,
without gaps or overlaps.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pyharness.errors import InputError
from pyharness.files import TEMPORARY, open_regular, sync_directory

LARGEST_HEADER = 100_000_000
ALIGNMENT = 8  # of the first tensor's byte in files written here
METADATA = "__metadata__"
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # numpy has no bfloat16: the bits
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
Chunks = Iterable[Any]  # bytes, or arrays in C order
TensorSource = tuple[
    str, str, tuple[int, ...], Callable[[], Chunks]
]  # name, dtype, shape, producer of its bytes


@dataclass(frozen=True)
class TensorView:
    """A tensor in a mapped file. ``array`` is read-only and lives as long as anyone holds it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    array: np.ndarray


@dataclass(frozen=True)
class SafetensorsFile:
    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorView]  # in the order of their bytes


# ---- reading -------------------------------------------------------------------------------------


def read_safetensors(path: Path) -> SafetensorsFile:
    """Map a file. InputError, one line, for anything that the format does not allow."""
    mapped = _map(path)
    if len(mapped) < 8:
        raise InputError(f"{path}: {len(mapped)} bytes are too few for a safetensors file")
    length = int.from_bytes(mapped[:8], "little")
    if length > LARGEST_HEADER:
        raise InputError(
            f"{path}: a header of {length} bytes is over the limit of {LARGEST_HEADER}"
        )
    if length > len(mapped) - 8:
        raise InputError(
            f"{path}: truncated: the header has {length} bytes, the file {len(mapped)}"
        )
    header = parse_json_object(bytes(mapped[8 : 8 + length]), f"{path}: header")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InputError(f"{path}: {METADATA} is not an object of strings")
    tensors = _views(path, header, memoryview(mapped)[8 + length :])
    return SafetensorsFile(path, metadata, tensors)


def parse_json_object(data: bytes, source: str) -> dict[str, Any]:
    """A JSON object; a duplicate key or NaN is refused too."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"the key {twice!r} is there twice")
        return made

    def no_constant(text: str) -> Any:
        raise ValueError(f"{text} is not JSON")

    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_constant
        )
    except (ValueError, RecursionError) as e:
        raise InputError(f"{source} is not valid JSON: {e}") from None
    if not isinstance(value, dict):
        raise InputError(f"{source} is not a JSON object")
    return value


def _map(path: Path) -> mmap.mmap | bytes:
    fd = open_regular(path)
    try:
        if os.fstat(fd).st_size == 0:
            return b""
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as e:
        raise InputError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or e}") from None
    finally:
        os.close(fd)


def _views(path: Path, header: dict[str, Any], data: memoryview) -> dict[str, TensorView]:
    entries = sorted(
        (_entry(path, name, e) for name, e in header.items()), key=lambda e: (e[3], e[4])
    )
    views: dict[str, TensorView] = {}
    at = 0
    for name, dtype, shape, begin, end in entries:
        if begin != at:
            how = (
                "overlaps the tensor before it"
                if begin < at
                else f"leaves a gap of {begin - at} bytes before it"
            )
            raise InputError(f"{path}: tensor {name!r} {how}")
        if end > len(data):
            raise InputError(
                f"{path}: truncated: tensor {name!r} ends at {end}, the data has {len(data)} bytes"
            )
        array = np.frombuffer(data[begin:end], DTYPES[dtype]).reshape(shape)
        array.flags.writeable = False
        views[name] = TensorView(name, dtype, shape, array)
        at = end
    if at != len(data):
        raise InputError(f"{path}: {len(data) - at} bytes after the last tensor belong to none")
    return views


def _entry(path: Path, name: str, entry: Any) -> tuple[str, str, tuple[int, ...], int, int]:
    """name, dtype, shape, begin, end of one tensor. Its size is right, its place is not checked."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InputError(
            f"{path}: tensor {name!r} needs dtype, shape and data_offsets and nothing else"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}")
    if not _naturals(shape) or len(shape) > 32:
        raise InputError(f"{path}: tensor {name!r} has the invalid shape {shape!r}")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InputError(f"{path}: tensor {name!r} has the invalid data_offsets {offsets!r}")
    size = math.prod(shape) * DTYPES[dtype].itemsize
    begin, end = offsets
    if end - begin != size:
        raise InputError(
            f"{path}: tensor {name!r} of {dtype} {shape} has {end - begin} bytes, needs {size}"
        )
    return name, dtype, tuple(shape), begin, end


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


# ---- writing -------------------------------------------------------------------------------------


def array_source(name: str, dtype: str, array: np.ndarray) -> TensorSource:
    """A tensor that is in memory."""
    data = np.ascontiguousarray(array, DTYPES[dtype])
    return name, dtype, tuple(array.shape), lambda: [data.reshape(-1).view(np.uint8)]


def write_safetensors(
    path: Path,
    tensors: Iterable[TensorSource],
    metadata: Mapping[str, str] | None = None,
    *,
    on_bytes: Callable[[Any], object] = lambda data: None,
) -> int:
    """Write a file, in the order given, or nothing at all. Wider types first keep all aligned.
    ``on_bytes`` hears of each piece of it, in order. Returns its size in bytes.

    Producers are called one after the other, when their tensor's turn has come; what one yields is
    written at once.
    """
    sources = list(tensors)
    header = _header(sources, metadata or {})
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: exists and is no file that could be replaced")
    try:
        fd, temporary = tempfile.mkstemp(prefix=f"{TEMPORARY}{path.name}-", dir=path.parent)
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from None
    try:
        with open(fd, "wb") as file:
            head = len(header).to_bytes(8, "little") + header
            on_bytes(head)
            size = file.write(head)
            for source in sources:
                size += _write_tensor(file, source, on_bytes)
            file.flush()
            os.fchmod(fd, 0o644)
            os.fsync(fd)
        os.replace(temporary, path)
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_directory(path.parent)
    return size


def _write_tensor(file: BinaryIO, source: TensorSource, on_bytes: Callable[[Any], object]) -> int:
    name, dtype, shape, produce = source
    written = 0
    for chunk in produce():
        on_bytes(chunk)
        written += file.write(chunk)
    if written != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"{name}: {written} bytes were produced for {dtype} {shape}")
    return written


def _header(sources: list[TensorSource], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, dtype, shape, _ in sources:
        if name in entries or name == METADATA:
            raise ValueError(f"tensor name {name!r} is taken")
        end = at + math.prod(shape) * DTYPES[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % ALIGNMENT)
