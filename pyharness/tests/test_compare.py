"""The byte comparison: flipped bits in each file, every kind of unlike file, bounded blocks."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyharness import compare
from pyharness.compare import FILES, compare_and_hash, compare_dumps, differing_rows, len_and_layout
from pyharness.errors import InputError
from pyharness.report.text import difference_line

H_OUT, LOGITS, STATE = FILES


def safetensors(tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, array in tensors.items():
        raw = array.tobytes()
        kind = {"<f4": "F32", "<i8": "I64", "<u2": "BF16"}[array.dtype.str]
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def state() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "layers.0.S": rng.normal(size=(2, 3, 4)).astype("<f4"),
        "layers.1.keys": rng.normal(size=(2, 5, 4)).astype("<f4"),
        "position": np.array([5], "<i8"),
    }


def write_dump(folder: Path, rows: int = 6) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(1)
    np.save(folder / H_OUT, rng.normal(size=(rows, 8)).astype("<f4"))
    np.save(folder / LOGITS, rng.normal(size=(rows, 16)).astype("<f4"))
    (folder / STATE).write_bytes(safetensors(state()))
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_dump(tmp_path / "baseline"), write_dump(tmp_path / "candidate")


def flip(path: Path, offset: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def test_equal_dumps(pair: tuple[Path, Path]) -> None:
    comparison, ours, theirs = compare_and_hash(*pair)
    assert comparison.equal and not comparison.differences
    assert comparison.bytes_compared == sum((pair[0] / n).stat().st_size for n in FILES) > 0
    assert ours == theirs
    for fact in ours:
        data = (pair[0] / fact.name).read_bytes()
        assert (fact.sha256.hex, fact.size_bytes) == (hashlib.sha256(data).hexdigest(), len(data))


@pytest.mark.parametrize("bit", range(32))
def test_any_bit_of_an_element_is_seen(pair: tuple[Path, Path], bit: int) -> None:
    start = len_and_layout(pair[1] / LOGITS)[1][0].start
    flip(pair[1] / LOGITS, start + 4 * (16 * 2 + 9) + bit // 8, 1 << bit % 8)
    comparison = compare_dumps(*pair)
    (d,) = comparison.differences
    assert not comparison.equal
    assert (d.file, d.tensor, d.index, d.different, d.total) == (LOGITS, "", (2, 9), 1, 96)
    assert int(d.baseline_bits, 16) ^ int(d.candidate_bits, 16) == 1 << bit
    expected = np.load(pair[0] / LOGITS)[2, 9]
    assert np.float32(d.baseline_value) == expected
    assert int(d.baseline_bits, 16) == int(expected.view("<u4"))


@pytest.mark.parametrize("name", FILES)
def test_last_bit_of_each_file_is_seen(pair: tuple[Path, Path], name: str) -> None:
    path = pair[1] / name
    flip(path, path.stat().st_size - 1, 0x80)
    comparison = compare_dumps(*pair)
    assert [d.file for d in comparison.differences] == [name]
    assert comparison.differences[0].different == 1


def test_all_three_files_are_told(pair: tuple[Path, Path]) -> None:
    for name in FILES:
        flip(pair[1] / name, (pair[1] / name).stat().st_size - 2)
    assert [d.file for d in compare_dumps(*pair).differences] == list(FILES)


@pytest.mark.parametrize(
    ("a", "b", "values"),
    [
        (0x00000000, 0x80000000, ("0.0", "-0.0")),
        (0x7FC00000, 0x7FC00001, ("nan", "nan")),
        (0x7FC00000, 0xFFC00000, ("nan", "nan")),
    ],
)
def test_sign_of_zero_and_nan_payload_differ(
    pair: tuple[Path, Path], a: int, b: int, values: tuple[str, str]
) -> None:
    for folder, word in zip(pair, (a, b), strict=True):
        array = np.load(folder / H_OUT)
        array.view("<u4")[5, 7] = word
        np.save(folder / H_OUT, array)
    (d,) = compare_dumps(*pair).differences
    assert (d.baseline_bits, d.candidate_bits) == (f"0x{a:08x}", f"0x{b:08x}")
    assert (d.baseline_value, d.candidate_value) == values and d.index == (5, 7)


def test_equal_nans_are_equal(pair: tuple[Path, Path]) -> None:
    for folder in pair:
        array = np.load(folder / H_OUT)
        array[0, 0] = np.nan
        np.save(folder / H_OUT, array)
    assert compare_dumps(*pair).equal


def test_state_names_the_tensor_and_counts_over_all(pair: tuple[Path, Path]) -> None:
    tensors = state()
    tensors["layers.1.keys"][1, 4, 2] += 1
    tensors["layers.1.keys"][0, 3, 1] += 1
    tensors["position"][0] = 6
    (pair[1] / STATE).write_bytes(safetensors(tensors))
    (d,) = compare_dumps(*pair).differences
    assert (d.tensor, d.index, d.different) == ("layers.1.keys", (0, 3, 1), 3)
    assert d.total == 24 + 40 + 1


def test_integer_and_bfloat16_values(tmp_path: Path) -> None:
    for name, position, half in (("a", 5, 0x3F80), ("b", 7, 0x3F81)):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(
            safetensors({"position": np.array([position], "<i8"), "w": np.array([half], "<u2")})
        )
    d = compare.first_difference(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert (d.baseline_value, d.candidate_value, d.different) == ("5", "7", 2)
    tensor = len_and_layout(tmp_path / "a.safetensors")[1][1]
    d = compare._in_tensor(tmp_path / "a.safetensors", tmp_path / "b.safetensors", tensor, tensor)  # type: ignore[assignment]
    assert (d.baseline_value, d.candidate_value) == ("1.0", "1.0078125")


def test_other_shape_is_a_difference_with_a_note(pair: tuple[Path, Path], tmp_path: Path) -> None:
    np.save(pair[1] / LOGITS, np.zeros((4, 16), "<f4"))
    (d,) = compare_dumps(*pair).differences
    assert "[6, 16]" in d.note and "[4, 16]" in d.note and d.index == () and d.different == 96


def test_other_tensors_are_a_difference_with_a_note(pair: tuple[Path, Path]) -> None:
    tensors = state()
    del tensors["layers.0.S"]
    tensors["extra"] = np.zeros(3, "<f4")
    (pair[1] / STATE).write_bytes(safetensors(tensors))
    (d,) = compare_dumps(*pair).differences
    assert d.tensor == "layers.0.S" and "no such tensor" in d.note and d.different == 24 + 3


def test_equal_elements_and_other_headers(pair: tuple[Path, Path]) -> None:
    (pair[1] / STATE).write_bytes(safetensors(state(), {"made": "otherwise"}))
    (d,) = compare_dumps(*pair).differences
    assert d.different == 0 and "headers" in d.note


def test_dumps_of_different_models(tmp_path: Path) -> None:
    """A shape comes before any element, and no more elements differ than there are."""
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for path, rows, name in ((a, 3, "layers.1.conv"), (b, 5, "layers.1.keys")):
        arrays: dict[str, np.ndarray] = {
            "position": np.array([rows], np.int64),
            "layers.0.S": np.full((rows, 2), rows, np.float32),
            name: np.zeros((4, 4), np.float32),
        }
        path.write_bytes(safetensors(arrays))
    d = compare.first_difference(a, b)
    assert (d.tensor, d.index) == ("layers.0.S", ())
    assert d.note == "shapes differ: baseline F32 [3, 2], candidate F32 [5, 2]"
    assert d.different == d.total == 1 + 10 + 16 + 16
    assert f"a.safetensors layers.0.S: {d.note}; 43 of 43" in difference_line(d)


def test_blocks_do_not_hide_a_difference(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "BLOCK", 64)
    for offset in (0, 63, 64, 65, 127, 383):
        before = (pair[1] / LOGITS).read_bytes()
        start = len_and_layout(pair[1] / LOGITS)[1][0].start
        flip(pair[1] / LOGITS, start + offset)
        comparison, ours, theirs = compare_and_hash(*pair)
        assert comparison.differences[0].index == divmod(offset // 4, 16)
        assert ours[1].sha256 != theirs[1].sha256
        assert theirs[1].sha256.hex == hashlib.sha256((pair[1] / LOGITS).read_bytes()).hexdigest()
        assert differing_rows(pair[0] / LOGITS, pair[1] / LOGITS) == (offset // 64,)
        (pair[1] / LOGITS).write_bytes(before)


@pytest.mark.parametrize("block", [8, 24, 40, 1 << 20])
def test_differing_rows(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(compare, "BLOCK", block)
    array = np.load(pair[1] / H_OUT)
    array[[1, 4], [0, 7]] += 1
    np.save(pair[1] / H_OUT, array)
    assert differing_rows(pair[0] / H_OUT, pair[1] / H_OUT) == (1, 4)
    assert differing_rows(pair[0] / H_OUT, pair[0] / H_OUT) == ()
    np.save(pair[1] / H_OUT, array[:3])
    with pytest.raises(InputError, match="rows do not match"):
        differing_rows(pair[0] / H_OUT, pair[1] / H_OUT)


@pytest.mark.parametrize("length", [0, 8, 23])
def test_the_beginning_of_a_file_is_not_the_file(tmp_path: Path, length: int) -> None:
    """Whatever the layouts say: the shorter length never decides."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.write_bytes(bytes(range(24)))
    part.write_bytes(bytes(range(length)))
    assert not compare.same_file(whole, part) and not compare.same_file(part, whole)
    assert compare.same_file(whole, whole)


def test_hashing_goes_on_after_a_difference(pair: tuple[Path, Path]) -> None:
    (pair[1] / STATE).write_bytes(safetensors({**state(), "more": np.zeros(9, "<f4")}))
    _, ours, theirs = compare_and_hash(*pair)
    for folder, facts in zip(pair, (ours, theirs), strict=True):
        data = (folder / STATE).read_bytes()
        assert facts[2].sha256.hex == hashlib.sha256(data).hexdigest()
        assert facts[2].size_bytes == len(data)


def broken_files() -> list[tuple[str, str, bytes]]:
    good = safetensors(state())
    length = struct.unpack("<Q", good[:8])[0]
    header, body = json.loads(good[8 : 8 + length]), good[8 + length :]

    def made(**changes: Any) -> bytes:
        entry = {**header["layers.0.S"], **changes}
        text = json.dumps({**header, "layers.0.S": entry}).encode()
        return struct.pack("<Q", len(text)) + text + body

    return [
        (STATE, "empty", b""),
        (STATE, "cut in the length", good[:5]),
        (STATE, "cut in the header", good[:40]),
        (STATE, "cut in the data", good[:-1]),
        (STATE, "a byte too many", good + b"\0"),
        (STATE, "length beyond the file", struct.pack("<Q", 1 << 60) + good[8:]),
        (STATE, "not JSON", struct.pack("<Q", 4) + b"{{{{" + body),
        (STATE, "not an object", struct.pack("<Q", 2) + b"[]"),
        (STATE, "unknown type", made(dtype="F8")),
        (STATE, "shape and size at odds", made(shape=[2, 3, 5])),
        (STATE, "negative shape", made(shape=[-2, -3, 4])),
        (STATE, "overlap", made(data_offsets=[8, 104])),
        (STATE, "offsets are text", made(data_offsets=["0", "96"])),
        (STATE, "no offsets", made(data_offsets=None)),
        (H_OUT, "empty", b""),
        (H_OUT, "not a .npy", b"something else entirely"),
        (H_OUT, "cut header", b"\x93NUMPY\x01\x00\x76\x00{'descr'"),
    ]


@pytest.mark.parametrize(
    ("name", "what", "data"), broken_files(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_malformed_files_are_one_line(
    pair: tuple[Path, Path], name: str, what: str, data: bytes
) -> None:
    for folder in pair:  # in both: equal garbage is not a pass
        (folder / name).write_bytes(data)
    with pytest.raises(InputError, match=name) as e:
        compare_dumps(*pair)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2), "<c8"), np.zeros((2, 3), "<f4", order="F"), np.array([{}])]
)
def test_arrays_of_other_kinds_are_refused(pair: tuple[Path, Path], array: np.ndarray) -> None:
    np.save(pair[1] / H_OUT, array, allow_pickle=True)
    with pytest.raises(InputError, match=H_OUT):
        compare_dumps(*pair)


def test_truncated_array(pair: tuple[Path, Path]) -> None:
    data = (pair[1] / LOGITS).read_bytes()
    (pair[1] / LOGITS).write_bytes(data[:-4])
    with pytest.raises(InputError, match="the header says"):
        compare_dumps(*pair)


def test_missing_file(pair: tuple[Path, Path]) -> None:
    (pair[0] / STATE).unlink()
    with pytest.raises(InputError, match="No such file"):
        compare_dumps(*pair)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 9),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=4),
)
def test_count_and_place_agree_with_numpy(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    columns: int,
    flips: list[tuple[int, int]],
) -> None:
    folder = tmp_path_factory.mktemp("flips")
    a = np.random.default_rng(rows).integers(0, 2**32, (rows, columns), "<u4").view("<f4")
    b = a.copy()
    raw = b.view("u1").reshape(-1)
    for at, mask in flips:
        raw[at % raw.size] ^= mask
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    unequal = a.view("<u4") != b.view("<u4")
    assert compare.same_file(folder / "a.npy", folder / "b.npy") == (not unequal.any())
    if unequal.any():
        d = compare.first_difference(folder / "a.npy", folder / "b.npy")
        assert d.index == tuple(int(i) for i in np.argwhere(unequal)[0])
        assert d.different == int(unequal.sum())
    rows_found = differing_rows(folder / "a.npy", folder / "b.npy")
    assert rows_found == tuple(int(r) for r in np.flatnonzero(unequal.any(axis=1)))
