"""Canonical JSON: one value has one sequence of bytes, so that its digest names it.

Keys sorted by code point, no white space, UTF-8, no escapes that are not needed. Floats are refused
unless asked for: two writers may print one float in two ways.
"""

from __future__ import annotations

import json
from typing import Any


def canonical_json(value: Any, *, floats: bool = False) -> bytes:
    """The canonical bytes of dicts, lists, strings, integers, booleans and None; else ValueError.

    ``floats`` admits finite floats, written as the shortest decimal that reads back the same. NaN
    is never admitted.
    """
    try:
        _check(value, floats, "value")
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return text.encode("utf-8")


def parse_canonical(data: bytes, *, floats: bool = False) -> Any:
    """The value of canonical bytes. ValueError for any other spelling, doubled keys included."""
    try:
        value = json.loads(data.decode("utf-8"))
        canonical = canonical_json(value, floats=floats)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if canonical != data:
        raise ValueError("not canonical JSON")
    return value


def _check(value: Any, floats: bool, where: str) -> None:
    if value is None or isinstance(value, (bool, int, str)):
        return
    if isinstance(value, float):
        if not floats:
            raise ValueError(f"{where}: a float ({value!r}) has no canonical spelling")
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: the key {key!r} is not a string")
            _check(item, floats, f"{where}.{key}")
        return
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check(item, floats, f"{where}[{i}]")
        return
    raise ValueError(f"{where}: {type(value).__name__} is not a JSON value")
