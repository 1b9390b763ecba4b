"""Adding, accepting, the history and the report of a check."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyharness.archive import Appended, accept, add, entries, layout, verify
from pyharness.archive.entry import LogEntry
from pyharness.archive.layout import Manifest
from pyharness.archive.tlog import Checkpoint
from pyharness.errors import GateRefusal, InputError, NothingProved
from pyharness.files import sha256_bytes
from pyharness.tests.archive.samples import (
    Site,
    elf,
    index_of,
    library,
    log_files,
    long,
    record_of,
    small,
    write,
)
from pyharness.values import Digest, LibraryFacts, to_json


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small(tmp_path)


def put(
    site: Site,
    seed: int,
    label: str = "",
    facts: LibraryFacts | None = None,
    record: bytes | None = None,
) -> Appended:
    return add(
        site.archive,
        site.pin,
        library(site, seed),
        label=label or f"v{seed}",
        why="because",
        facts=facts,
        record=record,
    )


def contents(site: Site) -> dict[Path, bytes]:
    files = [*site.archive.rglob("*"), site.pin]
    return {p: p.read_bytes() for p in files if p.is_file()}


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


def test_nothing_is_added_to_a_damaged_archive(site: Site) -> None:
    write(site.archive / "log/tile/0/000.p/2", bytes(64))
    before = contents(site)
    with pytest.raises(GateRefusal, match=r"000.p/2: expected sha256:.*, found sha256:"):
        put(site, 8)
    assert contents(site) == before


def test_only_one_unpinned_entry_can_be_of_an_interrupted_add(site: Site) -> None:
    write(site.pin, Checkpoint.parse(log_text(site, 3)).text.encode())
    assert verify(site.archive, site.pin).unpinned == 2
    with pytest.raises(GateRefusal, match=r"at most one entry beyond the pin's 3.*found 2"):
        put(site, 8)
    write(site.pin, log_text(site, 4))
    said = put(site, 8)
    assert said.settled and "entry 4 of an interrupted add is pinned now" in said.settled[0]
    assert verify(site.archive, site.pin).pinned == 6


def log_text(site: Site, size: int) -> bytes:
    """The checkpoint when the log had this many entries."""
    return log_files(site.snapshot().raw_entries[:size])["log/checkpoint"]


def test_an_older_pin_still_vouches_for_its_part(site: Site) -> None:
    for size in range(1, 6):
        write(site.pin, log_text(site, size))
        report = verify(site.archive, site.pin)
        assert (report.pinned, report.unpinned) == (size, 5 - size)


def test_orphans_and_leftovers_are_reported_and_leftovers_cleared(site: Site) -> None:
    orphan = f"blobs/sha256/{sha256_bytes(b'orphan').hex}"
    write(site.archive / orphan, b"orphan")
    leftovers = ("blobs/sha256/.tmp-x", "log/tile/0/000.p/6", "log/tile/entries/000.p/6")
    for path in leftovers:
        write(site.archive / path, b"half")
    write(site.pin.parent / f".tmp-{site.pin.name}-x", b"half")
    report = verify(site.archive, site.pin)
    assert (report.orphans, report.leftovers) == ((orphan,), leftovers)
    put(site, 8)
    report = verify(site.archive, site.pin)
    assert (report.orphans, report.leftovers) == ((orphan,), ())
    assert [p.name for p in site.pin.parent.iterdir()] == [site.pin.name]
    write(site.archive / orphan, b"other")
    with pytest.raises(GateRefusal, match="found sha256:"):
        verify(site.archive, site.pin)


def test_a_fifo_is_refused_and_nobody_waits_for_it(site: Site) -> None:
    (site.archive / "oci-layout").unlink()
    os.mkfifo(site.archive / "oci-layout")
    with pytest.raises(GateRefusal, match="a special file has no place"):
        verify(site.archive, site.pin)


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "caf\udce9", "x"])
def test_the_name_of_a_foreign_file_is_shown_in_one_plain_line(site: Site, name: str) -> None:
    path = site.archive / "blobs" / name
    for make in (Path.touch, lambda path: path.symlink_to("x")):
        make(path)
        with pytest.raises(GateRefusal, match="has no place in an archive") as refusal:
            verify(site.archive, site.pin)
        assert str(refusal.value).isprintable()
        path.unlink()


def test_no_archive(tmp_path: Path) -> None:
    site = small(tmp_path / "a")
    with pytest.raises(InputError, match="there is no archive; add a library with `run-ab"):
        verify(tmp_path / "none", tmp_path / "none.pin")
    with pytest.raises(GateRefusal, match=r"expected a log of 5 entries .*, found no archive"):
        verify(tmp_path / "none", site.pin)
    shutil.rmtree(site.archive)
    site.archive.mkdir()
    with pytest.raises(GateRefusal, match="shorter than its pin: expected at least 5 entries"):
        verify(site.archive, site.pin)
    site.pin.unlink()
    assert verify(site.archive, site.pin).entries == 0
    site.archive.rmdir()
    site.archive.write_bytes(b"")
    with pytest.raises(GateRefusal, match="Not a directory"):
        verify(site.archive, site.pin)


def test_a_lost_pin_is_not_made_up_for(site: Site) -> None:
    site.pin.unlink()
    for action in (lambda: verify(site.archive, site.pin), lambda: put(site, 8)):
        with pytest.raises(GateRefusal, match=r"is missing, and .* holds 5 log entries: restore"):
            action()
    assert not site.pin.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e, m: replace(e, kind="added"), "a second time"),
        (lambda e, m: replace(e, label="v9"), "was never added"),
        (lambda e, m: replace(e, record=None), "without the record"),
        (lambda e, m: replace(e, size_bytes=7), "the manifest sha256:"),
        (lambda e, m: replace(e, why="other"), "annotations are not those of log entry 4"),
        (lambda e, m: replace(e, time="yesterday"), "not a time"),
        (lambda e, m: replace(e, why="\x1b[2Jsame"), r"not one line of text: '\\x1b"),
        (lambda e, m: replace(e, version=2), "version 2"),
        (lambda e, m: replace(e, manifest=m), "is missing|No such file"),
    ],
)
def test_entries_that_say_what_is_not_so(
    site: Site, change: Callable[[LogEntry, Digest], LogEntry], message: str
) -> None:
    """Also where log, checkpoint and pin agree: an archive written by something else."""
    old = list(site.snapshot().entries)
    made = change(old[4], Digest("ab" * 32))
    for path, data in log_files([e.to_bytes() for e in [*old[:4], made]]).items():
        write(site.archive / path, data)
    write(site.pin, (site.archive / "log/checkpoint").read_bytes())
    if (site.archive / layout.blob_path(made.manifest)).exists():
        write(site.archive / "index.json", index_of(site, [*old[:4], made]))
    with pytest.raises(GateRefusal, match=message):
        verify(site.archive, site.pin)


@pytest.mark.parametrize(
    "spelling",
    [
        lambda d: d.replace(b'"why"', b' "why"'),
        lambda d: d[:-1] + b',"zebra":1}',
        lambda d: d.replace(b'"version":1', b'"version":1.0'),
        lambda d: d.replace(b'"version":1', b'"version":1,"version":1'),
        lambda d: d.replace(b"sha256:", b"", 1),
        lambda d: b"[]",
        lambda d: b"\xff",
    ],
)
def test_one_entry_has_one_spelling(site: Site, spelling: Callable[[bytes], bytes]) -> None:
    data = site.snapshot().entries[0].to_bytes()
    assert LogEntry.parse(data).to_bytes() == data
    assert spelling(data) != data
    with pytest.raises(ValueError):
        LogEntry.parse(spelling(data))


@pytest.mark.parametrize(
    "spelling",
    [
        lambda d: d.replace(b'"schemaVersion":2', b'"schemaVersion":3'),
        lambda d: d.replace(b"library.elf.v1", b"library.elf.v2"),
        lambda d: d.replace(b'"layers":[', b'"layers":[{},'),
        lambda d: d.replace(b'"layers"', b'"liars"'),
        lambda d: d[:-1] + b',"subject":{}}',
        lambda d: b"[]",
        lambda d: b"{}",
        lambda d: b'{"layers":null}',
    ],
)
def test_manifests_that_are_none(site: Site, spelling: Callable[[bytes], bytes]) -> None:
    data = site.snapshot().manifests[3].to_bytes()
    assert Manifest.parse(data).to_bytes() == data
    with pytest.raises(ValueError):
        Manifest.parse(spelling(data))


def test_the_archive_cannot_be_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    before = contents(site)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        put(site, 8)
    monkeypatch.undo()
    assert contents(site) == before and verify(site.archive, site.pin).leftovers == ()
