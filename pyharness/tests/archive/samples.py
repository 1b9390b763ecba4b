"""Archives to test with: libraries that only look like ELF files, and logs of any length without
waiting for them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyharness.archive import Appended, accept, add, layout, tlog
from pyharness.archive.entry import LogEntry
from pyharness.archive.merkle import root_of
from pyharness.archive.snapshot import Snapshot, read_snapshot
from pyharness.archive.tlog import Checkpoint
from pyharness.archive.tree import locked
from pyharness.files import sha256_bytes
from pyharness.values import Digest, LibraryFacts

NOON = 1_790_000_000.0  # a fixed time: the same archive each time


@dataclass(frozen=True)
class Site:
    """An archive and its pin in a directory of their own."""

    root: Path

    @property
    def archive(self) -> Path:
        return self.root / "archive"

    @property
    def pin(self) -> Path:
        return self.root / "ci" / "archive.pin"

    def snapshot(self) -> Snapshot:
        with locked(self.archive, exclusive=False) as tree:
            return read_snapshot(tree, self.pin)


@contextlib.contextmanager
def without_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def elf(seed: int, size: int = 300) -> bytes:
    """Bytes with the header of a 64-bit little-endian shared object."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00\x01\x00\x00\x00" + bytes(40)
    return header + bytes((seed * 7 + i * i) % 256 for i in range(size - len(header)))


def library(site: Site, seed: int) -> Path:
    path = site.root / f"lib{seed}.so"
    path.write_bytes(elf(seed, 300 + 10 * seed))
    return path


def record_of(digest: Digest, note: str = "") -> bytes:
    return json.dumps({"candidate": str(digest), "verdict": "same", "note": note}).encode()


def small(root: Path) -> Site:
    """Three libraries; the first and then the second were accepted: the second is the baseline."""
    site = Site(root)
    root.mkdir(parents=True, exist_ok=True)
    digests = []
    for seed in range(3):
        path = library(site, seed)
        said = add(site.archive, site.pin, path, label=f"v{seed}", why=f"step {seed}", now=NOON)
        digests.append(said.entry.library)
    for digest in digests[:2]:
        accept(site.archive, site.pin, digest, record=record_of(digest), why="same", now=NOON)
    return site


def long(root: Path, size: int) -> Site:
    """``small`` with accepted entries up to ``size``, written at once instead of one after the
    other.
    """
    site = small(root)
    snapshot = site.snapshot()
    entries = list(snapshot.entries)
    first, layer = entries[0], snapshot.manifests[0].library
    while len(entries) < size:
        record = record_of(first.library, f"run {len(entries)}")
        time = "2027-01-01T00:00:00Z"
        manifest = layout.manifest_of(
            layer,
            layout.record_layer(record),
            kind="accepted",
            label=first.label,
            why="again",
            time=time,
        ).to_bytes()
        for blob in (record, manifest):
            write(site.archive / layout.blob_path(sha256_bytes(blob)), blob)
        entries.append(
            LogEntry(
                kind="accepted",
                time=time,
                manifest=sha256_bytes(manifest),
                library=first.library,
                size_bytes=first.size_bytes,
                label=first.label,
                why="again",
                record=sha256_bytes(record),
            )
        )
    for path, data in log_files([e.to_bytes() for e in entries]).items():
        write(site.archive / path, data)
    write(site.archive / "index.json", index_of(site, entries))
    write(site.pin, (site.archive / "log/checkpoint").read_bytes())
    return site


def log_files(entries: Sequence[bytes]) -> dict[str, bytes]:
    """Every file of the log with these entries, its checkpoint included, by path in the archive."""
    levels = tlog.hash_levels(entries)
    files = {
        f"log/{tile.path}": tlog.tile_bytes(tile, entries, levels)
        for tile in tlog.tiles_of(len(entries))
    }
    checkpoint = Checkpoint(len(entries), root_of(levels[0])).text.encode()
    return files | {"log/checkpoint": checkpoint}


def index_of(site: Site, entries: Sequence[LogEntry]) -> bytes:
    """The index of a log with these entries."""
    last = max((i for i, e in enumerate(entries) if e.kind == "accepted"), default=-1)
    listed = []
    for i, e in enumerate(entries):
        tag = "accepted" if i == last else e.label if e.kind == "added" else ""
        size = (site.archive / layout.blob_path(e.manifest)).stat().st_size
        listed.append((e.manifest, size, tag))
    return layout.index_bytes(listed)


def write(path: Path, data: bytes) -> None:
    """Over whatever is there, read-only or not, as somebody would who means harm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(0o444)


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
