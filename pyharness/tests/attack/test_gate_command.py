"""A part of ``make attack`` in every run of the tests: whole commands on attacked archives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyharness import gate
from pyharness.archive import snapshot
from pyharness.errors import Exit
from pyharness.files import sha256_file
from pyharness.tests.archive.samples import Site, small, without_waiting_for_the_disk
from pyharness.tests.attack.gate_attacks import (
    attempt,
    harmless,
    loaded_is_verified,
    misplaced,
    races,
    read_files,
    survivors,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with without_waiting_for_the_disk():
        yield small(tmp_path_factory.mktemp("gate"))


@pytest.fixture(autouse=True)
def the_archive_is_whole_again(site: Site) -> Iterator[None]:
    yield
    ended, arms, folders = attempt(site)
    assert (ended.code, arms > 0, folders) == (Exit.SAME, True, 1), ended


def test_generated_attacks(site: Site) -> None:
    assert survivors(site, seed=11, count=60) == []


def test_something_else_in_the_place_of_a_file(site: Site) -> None:
    tried = dict(misplaced(site, read_files(site)[::5]))
    assert len(tried) >= 40 and not {k: v for k, v in tried.items() if v}


def test_the_same_bytes_do_no_harm(site: Site) -> None:
    tried = dict(harmless(site, read_files(site)[::8]))
    assert len(tried) >= 12 and not {k: v for k, v in tried.items() if v}


def test_changes_between_the_check_and_the_use(site: Site) -> None:
    tried = dict(races(site))
    assert len(tried) == 50 and not {k: v for k, v in tried.items() if v}


def test_what_is_loaded_is_what_was_verified(site: Site) -> None:
    tried = dict(loaded_is_verified(site))
    assert len(tried) == 4 and not {k: v for k, v in tried.items() if v}


def test_a_gate_that_does_not_look_is_noticed(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The check on the checker."""
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "_check_index", lambda *_: None)
        assert survivors(site, seed=11, count=120)
    with monkeypatch.context() as patch:
        digest = site.snapshot().entries[4].library
        patch.setattr(gate, "sha256_file", lambda fd: (digest, sha256_file(fd)[1]))
        assert any(said for _, said in loaded_is_verified(site))
