"""What a check of the archive reports, and what is never built upon."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyharness.archive import layout, verify
from pyharness.archive.entry import LogEntry
from pyharness.archive.layout import Manifest
from pyharness.archive.tlog import Checkpoint
from pyharness.errors import GateRefusal, InputError
from pyharness.files import sha256_bytes
from pyharness.tests.archive.samples import (
    Site,
    contents,
    index_of,
    log_files,
    put,
    small,
    write,
)
from pyharness.values import Digest


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
