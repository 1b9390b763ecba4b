"""Hostile variants of valid files, as hypothesis strategies: JSON that stays JSON but says
something else, and bytes that were flipped, cut, repeated or inserted.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st


class Raw(str):
    """Text that goes into the JSON as it is, valid or not."""


DEEP = 100_000
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 2**31, 2**32, 2**63, 2**64, -(2**63), 0.5, -0.0, 1e308,
    Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("1" + "0" * 400),
    Raw("1" + "0" * 4000), Raw("9" * 5000), Raw("-" + "7" * 4200),
    "", " ", "x" * 300, "y" * 70_000, "\0", "a\0b", "\n", "\x1b[2J", "\u202e", "é", "0", "1e5",
    "..", "../../x", "/", "/dev/zero", "/dev/null", "~nobody-of-this-name/x", "a/b", "=",
    Raw('"\\ud800"'), Raw('"\\udfff\\ud800"'), Raw('"\udcff\udcfe"'),
    "sha256:" + "0" * 64, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    [], {}, [[]], [None], {"": None}, {"a": {"a": {}}}, [1, "2", [3]], [0] * 5000,
    Raw("[" * 300 + "]" * 300), Raw("[" * 900 + "]" * 900), Raw("[" * 990 + "]" * 990),
    Raw('{"a":' * 480 + "1" + "}" * 480), Raw('{"a":' * 900 + "1" + "}" * 900),
    Raw("[" * DEEP + "]" * DEEP), Raw("[" * DEEP), Raw(""), Raw("}"), Raw("1,2"), Raw("// no"),
)  # fmt: skip
_CHANGES = ("replace", "delete", "twice", "rename", "exchange", "wrap", "grow")


def text_of(value: Any) -> str:
    """JSON, except where a ``Raw`` stands; a list of pairs tagged ``pairs`` may repeat a key."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, _Pairs):
        return "{" + ",".join(f"{_name(k)}:{text_of(v)}" for k, v in value.items) + "}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_name(k)}:{text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value)


class _Pairs:
    def __init__(self, items: list[tuple[Any, Any]]) -> None:
        self.items = items


def _name(key: Any) -> str:
    return str(key) if isinstance(key, Raw) else json.dumps(str(key))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value within."""
    found = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    for key, item in found:
        yield value, key
        yield from _places(item)


@st.composite
def json_bytes(draw: st.DrawFn, value: Any, *, canonical: bool = False) -> bytes:
    """One to three changes anywhere in the value; then perhaps one to its bytes."""
    root = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(root))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        _change(draw, draw(st.sampled_from(_CHANGES)), root, holder, key)
    if canonical and draw(st.booleans()):
        root = json.loads(json.dumps(root, default=str), parse_constant=str)
        text = json.dumps(root[0], sort_keys=True, separators=(",", ":")) if root else ""
    else:
        text = text_of(root[0]) if root else ""
    data = text.encode("utf-8", "surrogateescape")
    return draw(spoiled(data)) if draw(st.integers(0, 9)) == 0 else data


def _change(draw: st.DrawFn, kind: str, root: Any, holder: Any, key: Any) -> None:
    odd = copy.deepcopy(draw(st.sampled_from(ODD)))
    if kind == "delete" and holder is not root:
        del holder[key]
    elif kind == "twice" and isinstance(holder[key], dict):
        items = list(holder[key].items())
        holder[key] = _Pairs([*items, *((k, odd) for k, _ in items[:1])])
    elif kind == "rename" and isinstance(holder, dict):
        holder[Raw(odd) if isinstance(odd, Raw) and odd[:1] == '"' else str(odd)[:80]] = holder.pop(
            key
        )
    elif kind == "exchange":
        places = list(_places(root))
        other, name = places[draw(st.integers(0, len(places) - 1))]
        mine, theirs = copy.deepcopy(holder[key]), copy.deepcopy(other[name])
        holder[key] = theirs
        if other is not root and name in (other if isinstance(other, dict) else range(len(other))):
            other[name] = mine
    elif kind == "wrap":
        holder[key] = [holder[key]]
    elif kind == "grow" and isinstance(holder[key], (list, dict)):
        if isinstance(holder[key], list):
            holder[key] = [*holder[key], odd]
        else:
            holder[key] = {**holder[key], "further": odd}
    else:
        holder[key] = odd


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """A valid file with up to four changes to its bytes."""
    made = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(("flip", "set", "cut", "insert", "drop", "repeat", "word")))
        at = draw(st.integers(0, max(0, len(made) - 1)))
        more = draw(st.binary(max_size=9))
        if kind == "flip" and made:
            made[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set":
            made[at : at + 1] = more[:1]
        elif kind == "cut":
            del made[at:]
        elif kind == "insert":
            made[at:at] = more
        elif kind == "drop":
            del made[at : at + draw(st.integers(1, 64))]
        elif kind == "repeat":
            made[at:at] = made[at : at + draw(st.integers(1, 200))]
        else:  # a length or an offset
            word = draw(st.sampled_from((0, 1, 255, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
            size = draw(st.sampled_from((1, 2, 4, 8)))
            made[at : at + size] = (word % 256**size).to_bytes(size, "little")
    return bytes(made)


def anything() -> st.SearchStrategy[bytes]:
    """Files that were never of the kind."""
    return st.one_of(
        st.binary(max_size=64),
        st.sampled_from((b"", b"\0", b"\xff\xfe", b"{", b"null", b"[]", b"{}", b'"x"', b"\n" * 9)),
    )


def json_variants(data: bytes) -> st.SearchStrategy[bytes]:
    """Of a file of JSON."""
    value = json.loads(data)
    return st.one_of(json_bytes(value), json_bytes(value), spoiled(data), anything())
