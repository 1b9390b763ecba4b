"""The container against the format's own package, and every way a file can be wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from pyharness.errors import InputError
from pyharness.inputs.safetensors import (
    DTYPES,
    LARGEST_HEADER,
    array_source,
    read_safetensors,
    write_safetensors,
)
from pyharness.tests.inputs.samples import raw_safetensors

NUMPY_TAGS = [tag for tag in DTYPES if tag != "BF16"]  # the package has no bfloat16 for numpy


def random_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    raw = np.random.default_rng(len(shape)).integers(0, 2, (*shape, 8), np.uint8)
    return np.ascontiguousarray(raw[..., : DTYPES[dtype].itemsize]).view(DTYPES[dtype])[..., 0]


@pytest.mark.parametrize("shape", [(3, 5), (7,), (), (0,), (2, 0, 3)])
def test_reads_what_the_package_writes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {tag: random_array(tag, shape) for tag in NUMPY_TAGS}
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors", {"who": "package"})
    file = read_safetensors(tmp_path / "a.safetensors")
    assert file.metadata == {"who": "package"}
    assert set(file.tensors) == set(arrays)
    for tag, array in arrays.items():
        view = file.tensors[tag]
        assert (view.dtype, view.shape, view.array.tobytes()) == (tag, shape, array.tobytes())
        assert not view.array.flags.writeable


def test_the_package_reads_what_is_written_here(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {tag: random_array(tag, (4, 6)) for tag in DTYPES}
    write_safetensors(path, [array_source(t, t, a) for t, a in arrays.items()], {"k": "v"})
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"k": "v"}
        assert set(file.keys()) == set(arrays)
        for tag in NUMPY_TAGS:
            assert file.get_tensor(tag).tobytes() == arrays[tag].tobytes()
    assert read_safetensors(path).tensors["BF16"].array.tobytes() == arrays["BF16"].tobytes()
    assert path.stat().st_mode & 0o777 == 0o644


ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
OTHER = {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": ENTRY | changes}


MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too few"),
    "seven bytes": (b"1234567", "too few"),
    "header longer than the file": (raw_safetensors({}, length=50), "truncated"),
    "giant header": (raw_safetensors({}, length=LARGEST_HEADER + 1), "over the limit"),
    "largest length": (b"\xff" * 8 + b"{}", "over the limit"),
    "not JSON": (raw_safetensors(b"{nonsense"), "not valid JSON"),
    "not UTF-8": (raw_safetensors(b'{"\xff": 1}'), "not valid JSON"),
    "not an object": (raw_safetensors([1]), "not a JSON object"),
    "deeply nested": (raw_safetensors(b'{"a":' + b"[" * 200_000), "not valid JSON"),
    "NaN in the header": (raw_safetensors(b'{"a": NaN}'), "NaN is not JSON"),
    "duplicate names": (raw_safetensors(b'{"a":{},"a":{}}'), "'a' is there twice"),
    "entry is not an object": (raw_safetensors({"a": 1}), "needs dtype, shape"),
    "missing key": (raw_safetensors({"a": {"dtype": "U8", "shape": [4]}}), "needs dtype, shape"),
    "unknown dtype": (raw_safetensors(entry(dtype="F8"), b"1234"), "unknown dtype 'F8'"),
    "dtype is a list": (raw_safetensors(entry(dtype=[]), b"1234"), "unknown dtype []"),
    "negative shape": (raw_safetensors(entry(shape=[-4]), b"1234"), "invalid shape [-4]"),
    "shape of booleans": (raw_safetensors(entry(shape=[True]), b"1"), "invalid shape"),
    "huge shape": (raw_safetensors(entry(shape=[1 << 62, 8]), b"1234"), "needs 368934881474191"),
    "size is not shape x dtype": (raw_safetensors(entry(dtype="F32"), b"1234"), "needs 16"),
    "reversed offsets": (raw_safetensors(entry(data_offsets=[4, 0]), b"1234"), "invalid data_off"),
    "float offsets": (raw_safetensors(entry(data_offsets=[0, 4.0]), b"1234"), "invalid data_off"),
    "three offsets": (raw_safetensors(entry(data_offsets=[0, 2, 4]), b"1234"), "invalid data_off"),
    "truncated data": (raw_safetensors(entry(), b"123"), "truncated: tensor 'a' ends at 4"),
    "out of bounds": (raw_safetensors({"a": ENTRY, "b": OTHER}, b"1234"), "tensor 'b' ends at 8"),
    "overlap": (raw_safetensors({"a": ENTRY, "b": ENTRY}, b"1234"), "'b' overlaps"),
    "gap before": (raw_safetensors({"b": OTHER}, b"12345678"), "gap of 4 bytes"),
    "bytes after": (raw_safetensors(entry(), b"12345"), "1 bytes after the last tensor"),
    "metadata of numbers": (raw_safetensors({"__metadata__": {"a": 1}}), "not an object of str"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_in_one_line(tmp_path: Path, case: str) -> None:
    data, message = MALFORMED[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_safetensors(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", [c for c in MALFORMED if c not in ("duplicate names",)])
def test_the_package_refuses_them_too(tmp_path: Path, case: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(MALFORMED[case][0])
    with pytest.raises(Exception, match=r".+"), safetensors.safe_open(path, "numpy") as file:
        for name in file.keys():  # noqa: SIM118 - not a dictionary
            file.get_tensor(name)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=r"No such file|not a regular file"):
            read_safetensors(path)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 200), byte=st.integers(0, 255), cut=st.integers(0, 60))
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: int
) -> None:
    """Any changed byte, any length: a result or an InputError, nothing else."""
    path = tmp_path_factory.mktemp("damaged") / "a.safetensors"
    data = bytearray(
        raw_safetensors({"a": ENTRY, "b": OTHER, "__metadata__": {"k": "v"}}, b"x" * 8)
    )
    data[at % len(data)] = byte
    path.write_bytes(data[: len(data) - cut])
    try:
        file = read_safetensors(path)
    except InputError as e:
        assert "\n" not in str(e)
    else:
        assert sum(v.array.nbytes for v in file.tensors.values()) == 8


def test_producers_are_called_in_turn_and_nothing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    order: list[str] = []

    def produce(name: str) -> Iterator[bytes]:
        for i in range(3):
            order.append(f"{name}{i}")
            yield bytes([i] * 4)

    sources = [(n, "U8", (3, 4), lambda n=n: produce(n)) for n in "ab"]
    heard = bytearray()
    size = write_safetensors(path, sources, on_bytes=heard.extend)
    assert path.read_bytes() == heard and len(heard) == size
    assert order == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert read_safetensors(path).tensors["b"].array.tolist() == [[0] * 4, [1] * 4, [2] * 4]


def failing() -> Iterator[bytes]:
    yield b"12"
    raise InputError("a producer fails")


@pytest.mark.parametrize(
    ("produce", "error"),
    [(failing, InputError), (lambda: [b"123"], ValueError), (lambda: [b"12345"], ValueError)],
)
def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, produce: Any, error: type[Exception]
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(error):
        write_safetensors(path, [("a", "U8", (4,), produce)])
    assert os.listdir(tmp_path) == ["a.safetensors"]
    assert path.read_bytes() == b"before"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        write_safetensors(tmp_path / "none" / "a.safetensors", [])


def test_a_name_is_written_once(tmp_path: Path) -> None:
    source = array_source("a", "U8", np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="'a' is taken"):
        write_safetensors(tmp_path / "a", [source, source])
