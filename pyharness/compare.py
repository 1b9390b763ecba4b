"""memcmp of two arms' dumps, and, where they differ, the first differing element.

Bytes decide: a differing NaN payload or sign of zero is a difference. Files are read in blocks of
16 MB into buffers that are used again, so memory does not grow with the files, and an element is
only looked at once its block is known to differ.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from pyharness.errors import InputError, UsageError
from pyharness.files import open_regular
from pyharness.values import Comparison, Difference, Digest, FileFact

FILES = ("h_out.npy", "logits.npy", "state.safetensors")
BLOCK = 16 << 20  # bytes; a multiple of every element size
MAX_HEADER = 100 << 20

# safetensors type -> (bytes of an element, how to read it as a number or None)
_DTYPES = {
    "F64": (8, "<f8"), "F32": (4, "<f4"), "F16": (2, "<f2"), "BF16": (2, None),
    "I64": (8, "<i8"), "I32": (4, "<i4"), "I16": (2, "<i2"), "I8": (1, "i1"),
    "U64": (8, "<u8"), "U32": (4, "<u4"), "U16": (2, "<u2"), "U8": (1, "u1"), "BOOL": (1, "u1"),
}  # fmt: skip
_NPY_DTYPES = {"<f4": "F32", "<f8": "F64", "<f2": "F16", "<i8": "I64", "<i4": "I32", "|u1": "U8"}


@dataclass(frozen=True)
class Tensor:
    """Where one array lies in a file."""

    name: str  # "" for the array of a .npy file
    dtype: str  # safetensors name, e.g. F32
    shape: tuple[int, ...]
    start: int  # offset in the file, bytes

    @property
    def itemsize(self) -> int:
        return _DTYPES[self.dtype][0]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.itemsize


# ---- the three files -----------------------------------------------------------------------------


def compare_dumps(baseline: Path, candidate: Path) -> Comparison:
    """memcmp of the three files of two folders."""
    return compare_and_hash(baseline, candidate, hashed=False)[0]


def compare_and_hash(
    baseline: Path, candidate: Path, *, hashed: bool = True
) -> tuple[Comparison, tuple[FileFact, ...], tuple[FileFact, ...]]:
    """The comparison and the digests of both sides in one reading, hashed by two threads."""
    differences, total = [], 0
    facts: tuple[list[FileFact], list[FileFact]] = ([], [])
    for name in FILES:
        paths = baseline / name, candidate / name
        sizes = [len_and_layout(p)[0] for p in paths]
        same, digests = _same_bytes(paths[0], paths[1], hashed)
        for side, size, digest in zip(facts, sizes, digests, strict=hashed):
            side.append(FileFact(name, digest, size))
        total += min(sizes)
        if not same:
            differences.append(first_difference(paths[0], paths[1]))
    comparison = Comparison(not differences, total, tuple(differences))
    return comparison, tuple(facts[0]), tuple(facts[1])


def same_file(a: Path, b: Path) -> bool:
    """memcmp of two files."""
    return _same_bytes(a, b, hashed=False)[0]


def _same_bytes(a: Path, b: Path, hashed: bool) -> tuple[bool, tuple[Digest, ...]]:
    """memcmp of two files, and their digests where asked for."""
    hashes = [hashlib.sha256(), hashlib.sha256()]
    with ThreadPoolExecutor(2) as pool, _open(a) as fa, _open(b) as fb:  # threads start lazily
        sizes = [os.fstat(f.fileno()).st_size for f in (fa, fb)]
        same = sizes[0] == sizes[1]
        if not same and not hashed:
            return False, ()
        for blocks in _blocks(fa, fb, max(sizes)):
            pairs = zip(hashes, blocks, strict=True) if hashed else ()
            work = [pool.submit(h.update, block) for h, block in pairs]
            same = same and _equal(*blocks)
            for w in work:
                w.result()
            if not same and not hashed:
                break
    return same, tuple(Digest(h.hexdigest()) for h in hashes) if hashed else ()


def _blocks(a: IO[bytes], b: IO[bytes], size: int) -> Iterator[tuple[memoryview, memoryview]]:
    """Reads of both files, ``size`` bytes together; a read is shorter where its file ends."""
    block = min(BLOCK, size)
    buffers = memoryview(bytearray(block)), memoryview(bytearray(block))
    for start in range(0, size, max(1, block)):
        want = min(block, size - start)
        got = _fill(a, buffers[0][:want]), _fill(b, buffers[1][:want])
        yield buffers[0][: got[0]], buffers[1][: got[1]]


def _fill(file: IO[bytes], buffer: memoryview) -> int:
    """Read until the buffer is full or the file ends; one read may return less than it could."""
    done = 0
    while done < len(buffer) and (n := file.readinto(buffer[done:])):  # type: ignore[attr-defined]
        done += n
    return done


def _equal(a: memoryview, b: memoryview) -> bool:
    """Equality of bytes, eight at a time: memoryviews of bytes compare element by element."""
    if len(a) != len(b):
        return False
    whole = len(a) & ~7
    x, y = np.frombuffer(a[:whole], "<u8"), np.frombuffer(b[:whole], "<u8")
    return bool(np.array_equal(x, y)) and bytes(a[whole:]) == bytes(b[whole:])


def _open(path: Path) -> IO[bytes]:
    try:
        return open(open_regular(path), "rb", buffering=0)
    except InputError as e:
        raise InputError(f"{e}; a dump has {', '.join(FILES)}") from None


def require_two(baseline: Path, candidate: Path) -> None:
    """UsageError where a file would be compared with itself, under whatever name."""
    for a, b in ((baseline / name, candidate / name) for name in FILES):
        if a.exists() and b.exists() and a.samefile(b):
            raise UsageError(f"{a} and {b} are one file, which can only equal itself")


def has_rows(folder: Path) -> bool:
    """Whether anything is recorded in a dump beside the state."""
    return all(t.elements for name in FILES[:2] for t in len_and_layout(folder / name)[1])


# ---- layouts -------------------------------------------------------------------------------------


def len_and_layout(path: Path) -> tuple[int, tuple[Tensor, ...]]:
    """Size of the file and its arrays in file order. InputError where it is not a whole file."""
    read = _npy_layout if path.suffix == ".npy" else _safetensors_layout
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return size, read(file, size)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            what = f"not a whole {path.suffix[1:]} file: {_one_line(e)}"
            raise InputError(f"{path}: {what}") from None


def _npy_layout(file: IO[bytes], size: int) -> tuple[Tensor, ...]:
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"version {version} of the format")
    try:
        with warnings.catch_warnings(action="error"):  # numpy mends some headers and warns
            shape, fortran, dtype = readers[version](file)
    except Exception as e:  # a damaged header raises whatever numpy's parser comes upon
        raise ValueError(f"its header cannot be read: {e or type(e).__name__}") from None
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {shape}")
    if fortran or dtype.str not in _NPY_DTYPES:
        raise ValueError(f"dtype {dtype.str}, order {'F' if fortran else 'C'}")
    tensor = Tensor("", _NPY_DTYPES[dtype.str], tuple(int(n) for n in shape), file.tell())
    if tensor.start + tensor.size_bytes != size:
        raise ValueError(f"{size} bytes, the header says {tensor.start + tensor.size_bytes}")
    return (tensor,)


def _safetensors_layout(file: IO[bytes], size: int) -> tuple[Tensor, ...]:
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(MAX_HEADER, size - 8):
        raise ValueError("the header is cut off or its length is wrong")
    header = json.loads(file.read(length))
    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        name.encode()  # a ValueError for a name that no report can hold
        begin, end = entry["data_offsets"]
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"tensor {name}: dtype {entry['dtype']}")
        tensor = Tensor(name, entry["dtype"], tuple(entry["shape"]), 8 + length + begin)
        if any(type(n) is not int or n < 0 for n in (begin, end, *tensor.shape)):
            raise ValueError(f"tensor {name}: a shape or offset is not a natural number")
        if end - begin != tensor.size_bytes:
            raise ValueError(f"tensor {name}: {end - begin} bytes for shape {list(tensor.shape)}")
        tensors.append(tensor)
    tensors.sort(key=lambda t: (t.start, t.size_bytes))
    at = 8 + length
    for tensor in tensors:
        if tensor.start != at:
            raise ValueError(f"tensor {tensor.name}: overlaps or leaves a hole")
        at += tensor.size_bytes
    if at != size:
        raise ValueError(f"{size} bytes, the header says {at}")
    return tuple(tensors)


def _one_line(e: Exception) -> str:
    return " ".join(str(e).split()) or type(e).__name__


# ---- the first difference ------------------------------------------------------------------------


def first_difference(a: Path, b: Path) -> Difference:
    """Where two files that are not the same bytes differ first, and in how many elements. Arrays of
    unlike shapes come first: beside them no element has a counterpart for certain.
    """
    tensors_a, tensors_b = len_and_layout(a)[1], len_and_layout(b)[1]
    others = {t.name: t for t in tensors_b}
    first: Difference | None = None
    different = 0
    for tensor in tensors_a:
        other = others.pop(tensor.name, None)
        found = _in_tensor(a, b, tensor, other) if other else _unlike(a.name, tensor, None)
        if found:
            different += found.different
            first = found if first is None or (found.note and not first.note) else first
    for extra in others.values():
        found = _unlike(a.name, None, extra)
        different += found.different
        first = first if first and first.note else found
    sizes = {t.name: t.elements for t in tensors_a}
    sizes |= {t.name: max(t.elements, sizes.get(t.name, 0)) for t in tensors_b}
    total = sum(sizes.values())
    if first is None:
        note = "every element is equal, the files' headers are not"
        return Difference(a.name, "", (), "", "", "", "", 0, total, note)
    return Difference(
        a.name, first.tensor, first.index, first.baseline_bits, first.candidate_bits,
        first.baseline_value, first.candidate_value, different, total, first.note,
    )  # fmt: skip


def _in_tensor(a: Path, b: Path, tensor: Tensor, other: Tensor) -> Difference | None:
    if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
        return _unlike(a.name, tensor, other)
    word = f"<u{tensor.itemsize}"
    first, bits, different, done = -1, (b"", b""), 0, 0
    for x, y in _tensor_blocks(a, b, tensor, other):
        if not _equal(x, y):
            unequal = np.frombuffer(x, word) != np.frombuffer(y, word)
            if first < 0:
                at = int(unequal.argmax())
                first = done + at
                span = slice(at * tensor.itemsize, (at + 1) * tensor.itemsize)
                bits = bytes(x[span]), bytes(y[span])
            different += int(np.count_nonzero(unequal))
        done += len(x) // tensor.itemsize
    if first < 0:
        return None
    index = tuple(int(i) for i in np.unravel_index(first, tensor.shape)) if tensor.shape else ()
    return Difference(
        a.name, tensor.name, index,
        pattern_of(bits[0]), pattern_of(bits[1]),
        number_of(bits[0], tensor.dtype), number_of(bits[1], tensor.dtype),
        different, tensor.elements,
    )  # fmt: skip


def _tensor_blocks(
    a: Path, b: Path, tensor: Tensor, other: Tensor
) -> Iterator[tuple[memoryview, memoryview]]:
    with _open(a) as fa, _open(b) as fb:
        fa.seek(tensor.start)
        fb.seek(other.start)
        yield from _blocks(fa, fb, tensor.size_bytes)


def _unlike(file: str, a: Tensor | None, b: Tensor | None) -> Difference:
    """Arrays that cannot be compared element by element: every element counts as different."""
    known = a or b
    assert known is not None
    count = max(t.elements for t in (a, b) if t)
    note = f"shapes differ: baseline {_describe(a)}, candidate {_describe(b)}"
    return Difference(file, known.name, (), "", "", "", "", count, count, note)


def _describe(tensor: Tensor | None) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}" if tensor else "has no such tensor"


def pattern_of(raw: bytes) -> str:
    """An element's bits, the most significant first."""
    return f"0x{raw[::-1].hex()}"


def number_of(raw: bytes, dtype: str) -> str:
    """The number that the bits mean, with as many digits as tell it from its neighbours."""
    if dtype == "BF16":
        raw, dtype = b"\0\0" + raw, "F32"
    kind = _DTYPES[dtype][1]
    assert kind is not None
    return str(np.frombuffer(raw, kind)[0])


# ---- rows, for the controls ----------------------------------------------------------------------


def differing_rows(a: Path, b: Path) -> tuple[int, ...]:
    """Which rows (first axis) of two .npy files differ; InputError where the shapes do."""
    (ta,), (tb,) = len_and_layout(a)[1], len_and_layout(b)[1]
    if (ta.dtype, ta.shape) != (tb.dtype, tb.shape) or not ta.shape:
        raise InputError(f"{a} is {_describe(ta)}, {b} is {_describe(tb)}: rows do not match")
    width = ta.size_bytes // max(1, ta.shape[0])
    rows, done = set[int](), 0
    if width:
        for x, y in _tensor_blocks(a, b, ta, tb):
            if not _equal(x, y):
                rows.update(done // width + r for r in _unequal_rows(x, y, done % width, width))
            done += len(x)
    return tuple(sorted(rows))


def _unequal_rows(x: memoryview, y: memoryview, offset: int, width: int) -> Iterator[int]:
    """Rows of two blocks that begin ``offset`` bytes into a row, counted from that row."""
    for row, begin in enumerate(range(-offset, len(x), width)):
        span = slice(max(0, begin), begin + width)
        if not _equal(x[span], y[span]):
            yield row
