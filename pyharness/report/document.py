"""The JSON document of a run's verdict: what ``--json`` prints, ``verdict.json`` holds and ``show``
reads.
"""

from __future__ import annotations

import json
from typing import Any

from pyharness.errors import InputError
from pyharness.values import from_json, to_json
from pyharness.verdict import Verdict

SCHEMA = "ab-verdict/1"


def document(
    verdict: Verdict, run: str, libraries: dict[str, Any], notes: tuple[str, ...]
) -> dict[str, Any]:
    """One object; ``libraries`` says for each arm which digest it was, and from where."""
    return {
        "schema": SCHEMA,
        "run": run,
        "libraries": libraries,
        "notes": list(notes),
        **to_json(verdict),
    }


def dumps(data: dict[str, Any]) -> bytes:
    """Readable JSON, one line feed at its end. NaN has no place in it."""
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read(data: bytes, name: str) -> tuple[Verdict, dict[str, Any]]:
    """The verdict of a document, and the whole document. InputError where it is not one."""
    try:
        whole = json.loads(data)
        if not isinstance(whole, dict) or whole.get("schema") != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        fields = {k: whole[k] for k in ("exit_code", "summary", "jobs")}
        return from_json(Verdict, fields), whole
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise InputError(f"{name}: not a verdict: {' '.join(str(e).split())}") from None
