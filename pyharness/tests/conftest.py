"""Tests say nothing to a CI server that they happen to run on, and every document that a run in
them makes fits the published schema. Signals that the caller ignores (a job in the background
ignores Ctrl-C) are heard by the commands under test all the same.
"""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyharness import record
from pyharness.report.document import SCHEMA_FILE
from pyharness.tests.command_line import Bench

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
for _number in SIGNALS:
    if signal.getsignal(_number) is signal.SIG_IGN:
        interrupt = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if interrupt else signal.SIG_DFL)


@functools.cache
def schema() -> Any:
    import jsonschema  # type: ignore[import-untyped]

    return jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text()))


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A command that a test runs in this process leaves signals ignored when it was interrupted."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


SOURCES = record.sources_digest()


@pytest.fixture(autouse=True)
def the_harness_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who edits it while its tests run is no fault of a run in them."""
    monkeypatch.setattr(record, "sources_digest", lambda: SOURCES)


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


@pytest.fixture
def bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Bench:
    return Bench(tmp_path, capsys, monkeypatch)
