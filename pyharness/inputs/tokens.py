"""Token ids from files: .npy, .txt, or text through the checkpoint's tokenizer. A synthetic model
reads text as bytes.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np

from pyharness.errors import InputError
from pyharness.files import read_regular
from pyharness.inputs.checkpoint import TOKENIZER
from pyharness.values import ModelSpec

MOST_TOKENS = 1 << 22  # one more is read of a longer file, which says enough
LONGEST_ID = 19  # digits
LARGEST_FILE = 1 << 26  # bytes


def read_tokens(path: Path, vocab: int) -> tuple[int, ...]:
    """Ids in 0 .. vocab - 1, from .npy (integers, 1-D) or .txt (separated by white space)."""
    if path.suffix == ".npy":
        return _checked(path, _npy(path), vocab)
    if path.suffix == ".txt":
        return _checked(path, _txt(path), vocab)
    raise InputError(f"{path}: token files end in .npy or .txt; text goes through --text")


def read_text(path: Path, spec: ModelSpec, vocab: int) -> tuple[int, ...]:
    """Ids of a UTF-8 text, without added special tokens."""
    if spec.kind == "pack":
        raise InputError(
            f"{spec.path}: a pack has no tokenizer; give --tokens, or the checkpoint as --model"
        )
    data = read_regular(path, limit=LARGEST_FILE)
    if spec.kind == "synthetic":
        return _checked(path, list(data[: MOST_TOKENS + 1]), vocab)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise InputError(
            f"{path}: not UTF-8 text: byte {data[e.start]:#04x} at offset {e.start}"
        ) from None
    return _checked(path, _encode(text, Path(spec.path) / TOKENIZER), vocab)


def _checked(path: Path, ids: list[int], vocab: int) -> tuple[int, ...]:
    if not ids:
        raise InputError(f"{path}: has no tokens")
    if len(ids) > MOST_TOKENS:
        raise InputError(f"{path}: has more than {MOST_TOKENS} tokens")
    for position, token in enumerate(ids):
        if not 0 <= token < vocab:
            raise InputError(
                f"{path}: token {token} at position {position} is outside the vocabulary, "
                f"0 to {vocab - 1}"
            )
    return tuple(ids)


def _npy(path: Path) -> list[int]:
    data = read_regular(path, limit=LARGEST_FILE)
    if not data.startswith(np.lib.format.MAGIC_PREFIX):
        raise InputError(f"{path}: not a .npy file")
    try:
        with warnings.catch_warnings(action="error"):  # numpy mends some headers and warns
            array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as e:  # a damaged header raises whatever numpy's parser comes upon
        reason = (str(e).splitlines() or [type(e).__name__])[0]
        raise InputError(f"{path}: not a .npy file of numbers: {reason}") from None
    if array.dtype.kind not in "iu":
        raise InputError(f"{path}: holds {array.dtype}, token ids are integers")
    if array.ndim != 1:
        raise InputError(f"{path}: has shape {list(array.shape)}, token ids are one row: [count]")
    ids: list[int] = array[: MOST_TOKENS + 1].tolist()
    return ids


def _txt(path: Path) -> list[int]:
    words = read_regular(path, limit=LARGEST_FILE).split(maxsplit=MOST_TOKENS + 1)[
        : MOST_TOKENS + 1
    ]
    for position, word in enumerate(words):
        digits = word[1:] if word[:1] in (b"-", b"+") else word
        if not digits.isdigit() or len(digits) > LONGEST_ID:
            shown = word[:40].decode("utf-8", "backslashreplace")
            raise InputError(f"{path}: {shown!r} at position {position} is not a token id")
    return [int(word) for word in words]


def _encode(text: str, tokenizer: Path) -> list[int]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError(
            "--text needs the tokenizers package: run pip install '.[tokenizers]' in this project"
        ) from None
    if not tokenizer.is_file():
        raise InputError(
            f"{tokenizer}: missing; --text needs the checkpoint's tokenizer, or give --tokens"
        )
    try:
        ids: list[int] = (
            Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids
        )
    except Exception as e:  # the package raises nothing narrower
        reason = (str(e).splitlines() or [type(e).__name__])[0]
        raise InputError(f"{tokenizer}: not a tokenizer: {reason}") from None
    return ids
