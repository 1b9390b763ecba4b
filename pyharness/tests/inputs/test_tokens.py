"""Token files and texts: what is read, and one line with the position for what is not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyharness.errors import InputError
from pyharness.inputs import tokens as tokens_module
from pyharness.inputs.tokens import read_text, read_tokens
from pyharness.tests.goldens import STORED
from pyharness.values import ModelSpec

SYNTHETIC = ModelSpec(kind="synthetic", family="gdn", size="tiny")


@pytest.mark.parametrize("dtype", ["<i4", ">i4", "<i8", "u1", "<u8", "i1"])
def test_npy(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "t.npy", np.array([0, 5, 100], dtype))
    assert read_tokens(tmp_path / "t.npy", 512) == (0, 5, 100)


def test_golden_tokens() -> None:
    found = read_tokens(STORED / "tiny-gdn" / "tokens.npy", 512)
    assert len(found) == 48
    assert all(type(t) is int for t in found)


@pytest.mark.parametrize("text", ["0 5 100", "0\n5\n100\n", "\t0\r\n 5  +100 "])
def test_txt(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.txt").write_text(text)
    assert read_tokens(tmp_path / "t.txt", 512) == (0, 5, 100)


def refused(path: Path, vocab: int = 512) -> str:
    with pytest.raises(InputError) as caught:
        read_tokens(path, vocab)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([1, 512, 3]), "token 512 at position 1 is outside the vocabulary, 0 to 511"),
        (np.array([1, 2, -1]), "token -1 at position 2 is outside"),
        (np.array([1 << 63], np.uint64), "token 9223372036854775808 at position 0"),
        (np.array([1.0, 2.0]), "holds float64, token ids are integers"),
        (np.array([True]), "holds bool"),
        (np.array(["1"]), "holds <U1"),
        (np.array([[1, 2]]), "has shape [1, 2]"),
        (np.array(5), "has shape []"),
        (np.array([], np.int32), "has no tokens"),
        (np.array([{}], object), "not a .npy file of numbers"),
    ],
)
def test_npy_that_is_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "t.npy", array)
    assert message in refused(tmp_path / "t.npy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no tokens"),
        (" \n", "has no tokens"),
        ("1 2 x", "'x' at position 2 is not a token id"),
        ("1 2.0", "'2.0' at position 1 is not a token id"),
        ("1, 2", "'1,' at position 0"),
        ("-3", "token -3 at position 0 is outside"),
        ("7 512", "token 512 at position 1"),
        ("1_0", "'1_0' at position 0"),
        ("9" * 5000, "at position 0 is not a token id"),
        ("\u0663", "at position 0 is not a token id"),
    ],
)
def test_txt_that_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.txt").write_text(text)
    assert message in refused(tmp_path / "t.txt")


def test_files_that_are_no_token_files(tmp_path: Path) -> None:
    for ending in ("npy", "txt"):
        assert "No such file" in refused(tmp_path / f"none.{ending}")
        (tmp_path / f"d.{ending}").mkdir()
        assert "not a regular file" in refused(tmp_path / f"d.{ending}")
        os.mkfifo(tmp_path / f"pipe.{ending}")  # nobody writes: whoever reads it waits for ever
        assert "not a regular file" in refused(tmp_path / f"pipe.{ending}")
    assert "end in .npy or .txt" in refused(tmp_path / "t.json")
    np.savez(tmp_path / "z", a=np.arange(3))
    (tmp_path / "z.npz").rename(tmp_path / "z.npy")
    assert "not a .npy file" in refused(tmp_path / "z.npy")
    (tmp_path / "pickle.npy").write_bytes(b"\x80\x04K\x01.")
    assert "not a .npy file" in refused(tmp_path / "pickle.npy")


def test_more_tokens_than_anyone_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "MOST_TOKENS", 3)
    np.save(tmp_path / "t.npy", np.zeros(4, np.int32))
    (tmp_path / "t.txt").write_text("0 0 0 0")
    for name in ("t.npy", "t.txt"):
        assert "has more than 3 tokens" in refused(tmp_path / name)


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 40))
def test_a_damaged_npy_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "t.npy"
    np.save(path, np.arange(4, dtype=np.int32))
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(data[: len(data) - cut])
    try:
        assert len(read_tokens(path, 1 << 31)) > 0
    except InputError as e:
        assert "\n" not in str(e)


# ---- text ---------------------------------------------------------------------------------------


def test_a_synthetic_model_reads_bytes(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes("aé\n".encode())
    assert read_text(tmp_path / "t", SYNTHETIC, 512) == (97, 0xC3, 0xA9, 10)


@pytest.fixture
def checkpoint(tmp_path: Path) -> ModelSpec:
    """A folder with a word-level tokenizer of four words."""
    words = {"[UNK]": 0, "one": 1, "two": 2, "three": 3}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return ModelSpec(kind="checkpoint", path=str(tmp_path))


def text_refused(path: Path, spec: ModelSpec, vocab: int = 512) -> str:
    with pytest.raises(InputError) as caught:
        read_text(path, spec, vocab)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_checkpoint_reads_through_its_tokenizer(tmp_path: Path, checkpoint: ModelSpec) -> None:
    text = tmp_path / "t"
    text.write_text("two one\nthree four")
    assert read_text(text, checkpoint, 4) == (2, 1, 3, 0)
    assert "token 3 at position 2 is outside the vocabulary" in text_refused(text, checkpoint, 3)
    text.write_text("")
    assert "has no tokens" in text_refused(text, checkpoint)
    text.write_bytes(b"one \xff")
    assert "not UTF-8 text: byte 0xff at offset 4" in text_refused(text, checkpoint)
    assert "No such file" in text_refused(tmp_path / "none", checkpoint)


def test_tokenizers_that_are_missing_or_malformed(tmp_path: Path, checkpoint: ModelSpec) -> None:
    (tmp_path / "t").write_text("one")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: not a tokenizer" in text_refused(tmp_path / "t", checkpoint)
    (tmp_path / "tokenizer.json").unlink()
    assert "tokenizer.json: missing" in text_refused(tmp_path / "t", checkpoint)


def test_a_missing_package_is_one_line(
    tmp_path: Path, checkpoint: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "t").write_text("one")
    assert "pip install '.[tokenizers]'" in text_refused(tmp_path / "t", checkpoint)


def test_a_pack_has_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("one")
    spec = ModelSpec(kind="pack", path=str(tmp_path / "pack"))
    assert "a pack has no tokenizer; give --tokens" in text_refused(tmp_path / "t", spec)
