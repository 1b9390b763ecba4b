"""A few of the kills that ``make attack`` does by the hundred; commands at the same time."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from pyharness.errors import Exit
from pyharness.tests.attack.command import call
from pyharness.tests.attack.kills import (
    Place,
    at_once,
    copies_while_adding,
    killed_runs,
    kills,
    prepared,
    probe,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return prepared(tmp_path_factory.mktemp("kills") / "place")


def test_accept_is_killed(place: Place, tmp_path: Path) -> None:
    """Killed between the two entries of an accept, it once could not be repeated."""
    done = list(kills(place, tmp_path, 5, random.Random(3), Place.accept_line))
    assert [said for _, said in done if said] == []


def test_a_run_is_killed(place: Place, tmp_path: Path) -> None:
    done = list(killed_runs(place.copy(tmp_path / "place"), 2, random.Random(4)))
    assert [said for _, said in done if said] == []


def test_only_the_standard_library_s_probe_may_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the probe's creation and its removal leaves it; nothing else is let pass."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile._os, "unlink", lambda _: None)  # type: ignore[attr-defined]
    tempfile.gettempdir()
    monkeypatch.undo()
    (left,) = tmp_path.iterdir()
    assert probe(left)
    left.write_bytes(b"blat and more")
    assert not probe(left)
    for name, content in (("tmpemjcf998", b""), ("emjcf99", b""), ("vllm-cuda", b"blat")):
        (tmp_path / name).write_bytes(content)
        assert not probe(tmp_path / name)


def test_two_accepts_at_once(place: Place, tmp_path: Path) -> None:
    here = place.copy(tmp_path / "place")
    assert at_once(here, here.accept_line(), here.accept_line()) == [Exit.SAME, Exit.SAME]
    ended = call(["archive", "verify", *here.archive])
    assert ended.code == Exit.SAME and "3 log entries (3 pinned), 2 libraries" in ended.out


def test_copies_made_during_adds(place: Place, tmp_path: Path) -> None:
    here = place.copy(tmp_path / "place")
    assert [said for said in copies_while_adding(here, tmp_path, 4) if said] == []
