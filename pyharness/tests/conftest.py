"""Tests say nothing to a CI server that they happen to run on, and every document that a run in
them makes fits the published schema. Signals that the caller ignores (a job in the background
ignores Ctrl-C) are heard by the commands under test all the same.
"""

from __future__ import annotations

import functools
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from pyharness import record
from pyharness.report.document import SCHEMA_FILE

for _number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def schema() -> Any:
    import jsonschema  # type: ignore[import-untyped]

    return jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text()))


@pytest.fixture(autouse=True)
def no_ci_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def documents_fit_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = record.finish

    def checked(folder: Path, files: dict[str, bytes], text: dict[str, Any]) -> None:
        schema().validate(json.loads(json.dumps(text)))
        finish(folder, files, text)

    monkeypatch.setattr(record, "finish", checked)
