"""Whatever is changed in an archive is refused, by the deep check and by the gate."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import pytest

from pyharness import gate
from pyharness.archive import checks, snapshot, verify
from pyharness.gate import open_baseline
from pyharness.tests.archive.attacks import (
    applied,
    attacks,
    file_classes,
    refused_by_gate,
    refused_by_verify,
    survivors,
)
from pyharness.tests.archive.samples import Site, long, small


@pytest.fixture(scope="module")
def short_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return small(tmp_path_factory.mktemp("short"))


@pytest.fixture(scope="module")
def long_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return long(tmp_path_factory.mktemp("long"), 258)


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_class_of_file_is_attacked(long_site: Site) -> None:
    assert set(file_classes(long_site, long_site.snapshot())) == {
        "oci-layout",
        "index",
        "checkpoint",
        "pin",
        "baseline",
        "manifest",
        "other blob",
        "full bundle",
        "partial bundle",
        "full tile of level 0",
        "partial tile of level 0",
        "partial tile of level 1",
    }


def test_attacks_on_a_short_log(short_site: Site) -> None:
    before = contents(short_site.root)
    assert survivors(short_site, seed=1, count=300) == []
    assert contents(short_site.root) == before, "an attack was not undone"
    assert verify(short_site.archive, short_site.pin).entries == 5


def test_attacks_on_a_log_with_two_levels_of_tiles(long_site: Site) -> None:
    assert survivors(long_site, seed=2, count=45) == []
    assert verify(long_site.archive, long_site.pin).entries == 258


def test_a_refusal_names_the_file_and_both_digests(short_site: Site) -> None:
    found = 0
    for attack in itertools.islice(attacks(short_site, 3), 80):
        if not attack.name.startswith("flip") or len(attack.changes) != 1:
            continue
        path = attack.changes[0][0]
        with applied(attack):
            said = refused_by_verify(short_site)
        if path.parent.name == "sha256":
            assert f"{path}: expected sha256:{path.name}" in said and "found sha256:" in said
            found += 1
        else:
            assert "expected" in said or "not a" in said or "no place" in said or "missing" in said
        assert "\n" not in said
    assert found >= 3


def test_a_continuation_of_the_log_is_no_baseline_before_it_is_pinned(short_site: Site) -> None:
    attack = next(a for a in attacks(short_site, 4) if a.name.startswith("continue"))
    with applied(attack):
        assert verify(short_site.archive, short_site.pin).unpinned == 1
        assert "is entry 5, the pin covers 5" in refused_by_gate(short_site)
        with open_baseline(short_site.archive, short_site.pin, "v0") as library:
            assert library.label == "v0"  # pinned before
    assert refused_by_gate(short_site) == ""


@pytest.mark.parametrize(
    ("module", "check"),
    [
        (checks, "check_tiles"),
        (checks, "check_consistency"),
        (checks, "check_blob"),
        (snapshot, "_check_index"),
        (gate, "_check_pinned"),
    ],
)
def test_without_a_check_attacks_get_through(
    short_site: Site, monkeypatch: pytest.MonkeyPatch, module: ModuleType, check: str
) -> None:
    """Each of these checks is needed, and the attacks would notice its loss."""
    monkeypatch.setattr(module, check, lambda *_: None)
    assert survivors(short_site, seed=6, count=120) != []


def test_an_attack_that_changes_nothing_would_be_noticed(short_site: Site) -> None:
    """The check on the checker: a change that undoes itself counts as let through."""
    pin = short_site.pin.read_bytes()
    attack = type(next(attacks(short_site, 0)))("write the same pin", ((short_site.pin, pin),))
    with applied(attack):
        assert refused_by_verify(short_site) == "" and refused_by_gate(short_site) == ""
