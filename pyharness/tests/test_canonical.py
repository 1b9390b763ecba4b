"""One value, one spelling."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.canonical import canonical_json, parse_canonical

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@given(values)
def test_values_come_back(value: Any) -> None:
    data = canonical_json(value)
    assert parse_canonical(data) == value == json.loads(data)
    assert canonical_json(parse_canonical(data)) == data


def test_the_spelling() -> None:
    value = {"b": [1, True, None], "a": "é\n", "Z": {}}
    assert canonical_json(value) == '{"Z":{},"a":"é\\n","b":[1,true,null]}'.encode()
    assert canonical_json((1, 2)) == b"[1,2]"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "value: a float"),
        ({"a": [0, 2.0]}, r"value.a\[1\]: a float"),
        ({1: 2}, "the key 1 is not a string"),
        ({"a": b"x"}, "value.a: bytes is not a JSON value"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_values_without_a_canonical_spelling(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        canonical_json(value)


def test_floats_when_asked_for() -> None:
    assert canonical_json({"x": 0.1}, floats=True) == b'{"x":0.1}'
    assert parse_canonical(b'{"x":0.1}', floats=True) == {"x": 0.1}
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError):
            canonical_json(value, floats=True)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1}',
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a":1}\n',
        b'"\\u0041"',
        b"1.0",
        b"NaN",
        b"",
        b"\xff",
        b"\xef\xbb\xbf1",
        b"[" * 100_000,
        b"-0",
        b"1" * 5000,
    ],
)
def test_other_spellings_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_canonical(data)
