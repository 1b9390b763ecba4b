"""The JSON document of a run: what ``--json`` prints and ``verdict.json`` holds. JUnit, the step
summary, the page and the attestation are made from it and from nothing else.

``verdict.schema.json`` beside this module is its published form.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyharness.errors import InputError
from pyharness.values import from_json, to_json
from pyharness.verdict import JobVerdict, Verdict

SCHEMA = "ab-verdict/1"
SCHEMA_FILE = Path(__file__).with_name("verdict.schema.json")
_JOB = [f.name for f in dataclasses.fields(JobVerdict)]


def document(
    verdict: Verdict,
    run: str,
    libraries: dict[str, Any],
    notes: tuple[str, ...],
    *,
    jobs: Mapping[str, Mapping[str, Any]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One object. ``libraries``: what is known of each arm's library. ``jobs``: by id, what is
    known of a job beside its verdict. ``facts``: further members of the whole.
    """
    told = to_json(verdict)
    return {
        "schema": SCHEMA,
        "run": run,
        "exit_code": told["exit_code"],
        "summary": told["summary"],
        **(facts or {}),
        "notes": list(notes),
        "libraries": libraries,
        "jobs": [{**job, **(jobs or {}).get(job["id"], {})} for job in told["jobs"]],
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
        return verdict_of(whole), whole
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(f"{name}: not a verdict: {' '.join(str(e).split())}") from None


def verdict_of(whole: Mapping[str, Any]) -> Verdict:
    """The verdict in a document: its jobs without what is told of them beside it."""
    jobs = [{name: job[name] for name in _JOB if name in job} for job in whole["jobs"]]
    fields = {"exit_code": whole["exit_code"], "summary": whole["summary"], "jobs": jobs}
    verdict: Verdict = from_json(Verdict, fields)
    return verdict
