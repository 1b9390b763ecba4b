"""Adding, accepting, the history."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from pyharness.archive import accept, add, entries, layout, verify
from pyharness.archive.layout import Manifest
from pyharness.errors import GateRefusal, InputError, NothingProved
from pyharness.files import sha256_bytes
from pyharness.tests.archive.samples import (
    Site,
    contents,
    elf,
    library,
    log_files,
    long,
    put,
    record_of,
    small,
    write,
)
from pyharness.values import LibraryFacts, to_json


def test_the_first_add_makes_the_archive(tmp_path: Path) -> None:
    site = Site(tmp_path)
    said = put(site, 0)
    assert (said.added, said.index, said.log_size, said.settled) == (True, 0, 1, ())
    names = {str(p.relative_to(site.archive)) for p in site.archive.rglob("*") if p.is_file()}
    blobs = {n for n in names if n.startswith("blobs/")}
    assert names - blobs == {
        "oci-layout",
        "index.json",
        "log/checkpoint",
        "log/tile/0/000.p/1",
        "log/tile/entries/000.p/1",
    }
    assert len(blobs) == 3  # library, manifest, the empty configuration
    assert site.pin.read_bytes() == (site.archive / "log/checkpoint").read_bytes()
    assert (site.archive / f"blobs/sha256/{said.entry.library.hex}").read_bytes() == elf(0, 300)
    report = verify(site.archive, site.pin)
    assert report.baselines == {"cpu": said.entry.library} and report.root == said.root
    assert report.bytes_hashed == sum((site.archive / b).stat().st_size for b in blobs)


def test_the_same_adds_give_the_same_archive(tmp_path: Path) -> None:
    made = [contents(small(tmp_path / name)) for name in ("a", "b")]
    assert list(made[0].values()) == list(made[1].values())


def test_files_are_read_only_and_a_checkout_is_reported(site: Site) -> None:
    for path in site.archive.rglob("*"):
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o444, path
    assert verify(site.archive, site.pin).writable == ()
    (site.archive / "index.json").chmod(0o644)
    assert verify(site.archive, site.pin).writable == ("index.json",)


def test_adding_a_library_again_writes_nothing(site: Site) -> None:
    before = contents(site)
    said = put(site, 1, "other-label")
    assert (said.added, said.index, said.entry.label, said.log_size) == (False, 1, "v1", 5)
    assert contents(site) == before


def test_adding_a_library_again_whose_blob_was_changed_is_refused(site: Site) -> None:
    write(site.archive / layout.blob_path(sha256_bytes(elf(1, 310))), elf(9, 310))
    with pytest.raises(GateRefusal, match=f"expected {sha256_bytes(elf(1, 310))}"):
        put(site, 1)


def test_a_label_names_one_library(site: Site) -> None:
    before = contents(site)
    with pytest.raises(InputError, match="label 'v1': names sha256:"):
        put(site, 7, "v1")
    assert contents(site) == before


@pytest.mark.parametrize(
    "label", ["", "a b", "-a", "a/b", "a:b", "accepted", "ab" * 32, "é", "a\n"]
)
def test_labels_that_are_no_tags(site: Site, label: str) -> None:
    with pytest.raises(InputError, match="label"):
        add(site.archive, site.pin, library(site, 8), label=label, why="x")


@pytest.mark.parametrize("why", ["", "  ", "two\nlines", "x" * 1001, "bell \a"])
def test_reasons_are_one_line(site: Site, why: str) -> None:
    with pytest.raises(InputError, match="the reason must be one line"):
        add(site.archive, site.pin, library(site, 8), label="v8", why=why)


def test_the_longest_reason_fits_an_entry(site: Site) -> None:
    add(site.archive, site.pin, library(site, 8), label="v8", why="\U0001f600" * 1000)
    assert verify(site.archive, site.pin).entries == 6


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"#!/bin/sh\n" * 20, "not a shared library"),
        (b"\x7fELF\x02\x01\x01", "not a shared library"),
        (elf(0)[:16] + b"\x02\0" + elf(0)[18:], "an ELF file, but not a shared library"),
    ],
)
def test_only_shared_libraries_are_added(site: Site, data: bytes, message: str) -> None:
    path = site.root / "file"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        add(site.archive, site.pin, path, label="v8", why="x")


def test_what_a_worker_saw_becomes_annotations(tmp_path: Path) -> None:
    site = Site(tmp_path)
    info = {"backend": "cpu", "bits_version": 1, "revision": "abc", "flags": "-O2", "dirty": False}
    digest = sha256_bytes(elf(0, 300))
    facts = LibraryFacts(digest, 300, 1, info, ("vcuda_dev_open", "vcuda_dev_close"), ())
    said = put(site, 0, facts=facts, record=record_of(digest))
    data = (site.archive / layout.blob_path(said.entry.manifest)).read_bytes()
    manifest = Manifest.parse(data)
    assert json.loads(data)["artifactType"] == "application/vnd.vllm-cuda.library.v1"
    assert manifest.library.annotation(layout.TITLE) == "lib0.so"
    assert manifest.library.annotation(layout.SIZE) == "300"
    assert json.loads(manifest.library.annotation(layout.BUILD_INFO)) == info
    assert manifest.record and manifest.record.digest == said.entry.record
    (line,) = entries(site.archive, site.pin)
    assert (line.abi_version, line.backend, line.bits_version, line.revision) == (
        "1", "cpu", "1", "abc",
    )  # fmt: skip
    assert line.symbols == ("vcuda_dev_open", "vcuda_dev_close")


def test_facts_of_another_library_are_refused(site: Site) -> None:
    facts = LibraryFacts(sha256_bytes(b"other"), 5, 1, {}, (), ())
    with pytest.raises(GateRefusal, match=f"expected {facts.sha256}.*found sha256:"):
        put(site, 8, facts=facts)


def test_build_information_that_is_no_json_is_refused(site: Site) -> None:
    facts = LibraryFacts(sha256_bytes(elf(8, 380)), 380, 1, {"x": float("nan")}, (), ())
    with pytest.raises(InputError, match="cannot be described"):
        put(site, 8, facts=facts)


def test_the_history_tells_sizes_and_changes(site: Site) -> None:
    lines = entries(site.archive, site.pin)
    assert [(x.label, x.size_bytes, x.change_bytes) for x in lines] == [
        ("v0", 300, None),
        ("v1", 310, 10),
        ("v2", 320, 10),
    ]
    assert [x.baseline for x in lines] == [False, True, False]
    assert [len(x.accepted) for x in lines] == [1, 1, 0]
    assert lines[2].why == "step 2" and lines[2].time == "2026-09-21T14:13:20Z"
    json.dumps(to_json(lines))  # a value like all others


def test_accepting_keeps_the_record_and_moves_the_tag(site: Site) -> None:
    digest = sha256_bytes(elf(2, 320))
    record = record_of(digest, "third")
    said = accept(site.archive, site.pin, digest, record=record, why="faster")
    assert (said.added, said.entry.kind, said.entry.label) == (True, "accepted", "v2")
    assert said.entry.record == sha256_bytes(record)
    assert (site.archive / layout.blob_path(said.entry.record)).read_bytes() == record
    index = json.loads((site.archive / "index.json").read_bytes())
    tags = {
        m["annotations"][layout.REF_NAME]: m["digest"]
        for m in index["manifests"]
        if "annotations" in m
    }
    assert tags["accepted"] == str(said.entry.manifest)
    assert sorted(tags) == ["accepted", "v0", "v1", "v2"]
    assert len(index["manifests"]) == 6  # earlier acceptances stay referenced, without a tag
    assert verify(site.archive, site.pin).baselines == {"cpu": digest}
    again = accept(site.archive, site.pin, digest, record=record, why="faster")
    assert not again.added and again.log_size == 6
    later = accept(site.archive, site.pin, digest, record=record_of(digest, "later"), why="more")
    assert not later.added and later.index == again.index and later.log_size == 6


@pytest.mark.parametrize("kind", ["library", "record"])
def test_nothing_is_built_upon_a_wrong_byte(site: Site, kind: str) -> None:
    """Neither the library that is added nor the baseline has to be the damaged one."""
    first = site.snapshot().manifests[3]
    layer = first.library if kind == "library" else first.record
    assert layer is not None
    blob = site.archive / layout.blob_path(layer.digest)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    write(blob, bytes(data))
    before, digest = contents(site), sha256_bytes(elf(2, 320))
    refused = f"expected {layer.digest}.*restore it: git checkout"
    with pytest.raises(GateRefusal, match=refused):
        put(site, 7)
    with pytest.raises(GateRefusal, match=refused):
        accept(site.archive, site.pin, digest, record=record_of(digest), why="x")
    assert contents(site) == before


def test_two_green_runs_against_one_baseline_are_not_both_accepted(site: Site) -> None:
    """The second was compared with what is no baseline any more; the check once came before the
    lock.
    """
    old, first, second = (site.snapshot().entries[i].library for i in (1, 0, 2))
    accept(site.archive, site.pin, first, record=record_of(first), why="x", compared=old)
    with pytest.raises(NothingProved, match=f"compared with {old}, the baseline is {first} now"):
        accept(site.archive, site.pin, second, record=record_of(second), why="x", compared=old)
    accept(site.archive, site.pin, first, record=record_of(first), why="again", compared=old)


def test_accepting_an_older_library_again_goes_back(site: Site) -> None:
    digest = sha256_bytes(elf(0, 300))
    assert accept(site.archive, site.pin, digest, record=record_of(digest), why="back").added
    assert verify(site.archive, site.pin).baselines == {"cpu": digest}


def test_accepting_asks_for_a_record_of_this_library(site: Site) -> None:
    digest, before = sha256_bytes(elf(2, 320)), contents(site)
    for record, message in [
        (record_of(sha256_bytes(b"other")), "does not speak of"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
    ]:
        with pytest.raises(InputError, match=message):
            accept(site.archive, site.pin, digest, record=record, why="x")
    unknown = sha256_bytes(b"other")
    with pytest.raises(InputError, match="is not in the archive: add a library with"):
        accept(site.archive, site.pin, unknown, record=record_of(unknown), why="x")
    with pytest.raises(InputError, match="there is no archive; add a library with"):
        accept(site.root / "none", site.pin, digest, record=record_of(digest), why="x")
    assert contents(site) == before


def test_the_log_goes_over_the_width_of_a_tile(tmp_path: Path) -> None:
    site = long(tmp_path, 254)
    for seed in range(10, 14):
        put(site, seed)
        with_all = log_files(site.snapshot().raw_entries)
        assert {p: (site.archive / p).read_bytes() for p in with_all} == with_all
    assert (site.archive / "log/tile/0/000").stat().st_size == 256 * 32
    assert (site.archive / "log/tile/1/000.p/1").stat().st_size == 32
    assert verify(site.archive, site.pin).pinned == 258


def test_the_archive_cannot_be_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    before = contents(site)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        put(site, 8)
    monkeypatch.undo()
    assert contents(site) == before and verify(site.archive, site.pin).leftovers == ()
