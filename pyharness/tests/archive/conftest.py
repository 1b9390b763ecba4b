"""Durability is traced in one test; the others need not wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyharness.tests.archive.samples import Site, small, without_waiting_for_the_disk


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    with without_waiting_for_the_disk():
        yield


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small(tmp_path)
