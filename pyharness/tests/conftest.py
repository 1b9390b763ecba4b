"""Tests say nothing to a CI server that they happen to run on."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_ci_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
