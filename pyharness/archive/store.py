"""Adding a library to the archive and accepting one as the baseline.

Order of an add: blobs, tiles, checkpoint, index, and the pin last. Each step is durable before the
next begins and each file appears whole or not at all, so a process killed anywhere leaves an
archive that verifies: what the checkpoint does not reach yet is a leftover that the next add
clears, and an index or a pin one entry behind is brought up by it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pyharness.archive import checks, layout, tlog
from pyharness.archive.entry import LogEntry
from pyharness.archive.fsck import HOW_TO_ADD, baselines, check_blobs, restorable
from pyharness.archive.layout import Layer
from pyharness.archive.merkle import root_of
from pyharness.archive.snapshot import Snapshot, read_pin, read_snapshot
from pyharness.archive.tlog import Checkpoint
from pyharness.archive.tree import Tree, locked
from pyharness.errors import GateRefusal, InputError, NothingProved
from pyharness.files import (
    LARGEST_LIBRARY,
    TEMPORARY,
    make_directory,
    publish_once,
    read_regular,
    remove,
    sha256_bytes,
    write_atomically,
)
from pyharness.host.elf import require_self_contained
from pyharness.values import Digest, LibraryFacts

WHY_MAX_CHARACTERS = 1000


@dataclass(frozen=True)
class Appended:
    """What ``add`` or ``accept`` did."""

    added: bool  # False: the archive had it already and nothing was written twice
    index: int  # position of the entry in the log
    entry: LogEntry
    log_size: int
    root: str  # of the log, hexadecimal
    settled: tuple[str, ...] = ()  # what an interrupted add had left undone, one line each


@dataclass(frozen=True)
class _Statement:
    """What an entry says beside the library."""

    kind: Literal["added", "accepted"]
    label: str
    why: str
    record: bytes | None
    time: str


def add(
    archive: Path,
    pin: Path,
    library: Path,
    *,
    label: str,
    why: str,
    facts: LibraryFacts | None = None,
    record: bytes | None = None,
    compared: Digest | None = None,
    now: float | None = None,
) -> Appended:
    """Puts a library into the archive for good; makes the archive if there is none.

    ``facts``: what a worker saw of it. ``record``: the JSON of a run to keep with it.
    ``now``: seconds since 1970, in place of the clock.
    """
    layout.check_label(label)
    statement = _statement("added", label, why, record, now)
    data = read_regular(library, limit=LARGEST_LIBRARY)
    layout.require_shared_library(data[: layout.ELF_HEADER_BYTES], str(library))
    require_self_contained(data, str(library))
    try:
        layer = layout.library_layer(data, library.name, facts)
    except ValueError as e:  # a file name or build information that is no text
        raise InputError(f"{library}: cannot be described: {e}") from None
    if (promised := layout.promised_digest(library)) not in (None, layer.digest):
        raise GateRefusal(f"{library}: expected {promised}, its name, found {layer.digest}")
    if facts and facts.sha256 != layer.digest:
        raise GateRefusal(
            f"{library}: expected {facts.sha256}, the library that was loaded, found {layer.digest}"
        )
    make_directory(archive)
    with locked(archive, exclusive=True) as tree:
        snapshot, settled = _settle(tree, pin)
        _check_compared(snapshot, compared, layer.digest)
        if (present := snapshot.added(layer.digest)) is not None:
            return _appended(snapshot, present, settled, added=False)
        taken = {e.label: e.library for e in snapshot.entries if e.kind == "added"}
        if label in taken:
            raise InputError(f"label {label!r}: names {taken[label]} already, choose another")
        publish_once(tree.path / layout.blob_path(layer.digest), data)
        return _append(tree, pin, snapshot, layer, statement, settled)


def accept(
    archive: Path,
    pin: Path,
    library: Digest,
    *,
    record: bytes,
    why: str,
    compared: Digest | None = None,
    now: float | None = None,
) -> Appended:
    """Makes a library of the archive the baseline of its backend; ``record`` is the JSON of the run
    that it is accepted for. The library that was accepted last is not accepted once more.

    ``compared``: what that run compared it with, of this or another backend, which must still be
    that one's baseline.
    """
    statement = _statement("accepted", "", why, record, now)
    if library.hex not in record.decode("utf-8"):
        raise InputError(f"the record does not speak of {library}: it is of another run")
    if not archive.is_dir():
        raise InputError(f"{archive}: there is no archive; {HOW_TO_ADD}")
    with locked(archive, exclusive=True) as tree:
        snapshot, settled = _settle(tree, pin)
        added = snapshot.added(library)
        if added is None:
            raise InputError(f"{library} is not in the archive: {HOW_TO_ADD}")
        _check_compared(snapshot, compared, library)
        layer = snapshot.manifests[snapshot.entries.index(added)].library
        before = snapshot.accepted(layout.backend_of(layer))
        if before is not None and snapshot.entries[before].library == library:
            return _appended(snapshot, snapshot.entries[before], settled, added=False)
        statement = replace(statement, label=added.label)
        return _append(tree, pin, snapshot, layer, statement, settled)


def _check_compared(snapshot: Snapshot, compared: Digest | None, library: Digest) -> None:
    """A run against an older baseline says nothing of what the present one would say. Looked at
    under the lock: of two acceptances at once the second meets what the first one did.
    """
    current = baselines(snapshot)
    if compared is None or not current or {compared, library} & set(current.values()):
        return
    known = snapshot.added(compared)
    backend = snapshot.backend(snapshot.entries.index(known)) if known else next(iter(current))
    raise NothingProved(
        f"the run compared with {compared}, the baseline is {current[backend]} now: run again and "
        "accept that run"
    )


def _statement(
    kind: Literal["added", "accepted"],
    label: str,
    why: str,
    record: bytes | None,
    now: float | None,
) -> _Statement:
    """Checks what a person gave before anything is written."""
    if not why.strip() or len(why) > WHY_MAX_CHARACTERS or not why.isprintable():
        raise InputError(
            f"the reason must be one line of 1 to {WHY_MAX_CHARACTERS} printable characters, found "
            f"{why[:60]!r}"
        )
    if record is not None:
        try:
            is_object = isinstance(json.loads(record.decode("utf-8")), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise InputError("the record is not a JSON object in UTF-8")
    return _Statement(
        kind, label, why, record, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    )


def _settle(tree: Tree, pin: Path) -> tuple[Snapshot, tuple[str, ...]]:
    """The verified state, blobs included, after whatever an interrupted add left undone is done."""
    with restorable(tree.path, pin):
        snapshot = read_snapshot(tree, pin)
        check_blobs(tree, snapshot)  # nothing is built upon a wrong byte
    if snapshot.unpinned > 1:
        raise GateRefusal(
            f"{tree.path}/log: expected at most one entry beyond the pin's {snapshot.pin.size}, as "
            "an interrupted add "
            f"leaves it, found {snapshot.unpinned}: restore the archive or its pin from version "
            "control"
        )
    for leftover in snapshot.leftovers:
        remove(tree.path / leftover)
    for temporary in pin.parent.glob(f"{TEMPORARY}{pin.name}-*"):
        remove(temporary)
    _write_heads(tree, pin, snapshot)
    settled = [
        f"entry {i} of an interrupted add is pinned now: {e.kind} {e.label} {e.library}"
        for i, e in enumerate(snapshot.entries)
        if i >= snapshot.pin.size
    ]
    return replace(snapshot, pin=snapshot.checkpoint, leftovers=()), tuple(settled)


def _write_heads(tree: Tree, pin: Path, snapshot: Snapshot) -> None:
    """Brings index and pin up to the log; makes the files of an archive that has none.

    The pin of an empty log comes before the log, so that a log never exists without a pin.
    """
    started = (tree.path / checks.CHECKPOINT_FILE).exists()
    if not started:
        if read_pin(pin) is None:
            make_directory(pin.parent)
            write_atomically(pin, tlog.EMPTY.text.encode())
        make_directory(tree.path / layout.BLOBS)
        make_directory(tree.path / "log/tile")
        publish_once(tree.path / layout.LAYOUT_FILE, layout.LAYOUT_BYTES)
    index = snapshot.index_after(snapshot.checkpoint.size)
    _write_changed(tree.path / layout.INDEX_FILE, index, 0o444)
    if not started:
        write_atomically(tree.path / checks.CHECKPOINT_FILE, tlog.EMPTY.text.encode(), 0o444)
    _write_changed(pin, snapshot.checkpoint.text.encode(), 0o644)


def _write_changed(path: Path, data: bytes, mode: int) -> None:
    if not path.exists() or read_regular(path, follow=False) != data:
        write_atomically(path, data, mode)


def _append(
    tree: Tree,
    pin: Path,
    snapshot: Snapshot,
    library: Layer,
    said: _Statement,
    settled: tuple[str, ...],
) -> Appended:
    """Everything after the library's own blob. What was written is read back before index and pin
    name it.
    """
    _publish(tree, layout.EMPTY_CONFIG)
    record = layout.record_layer(said.record) if said.record is not None else None
    if said.record is not None:
        _publish(tree, said.record)
    manifest = layout.manifest_of(
        library, record, label=said.label, kind=said.kind, why=said.why, time=said.time
    )
    entry = LogEntry(
        kind=said.kind,
        time=said.time,
        manifest=_publish(tree, manifest.to_bytes()),
        library=library.digest,
        size_bytes=library.size_bytes,
        label=said.label,
        why=said.why,
        record=record.digest if record else None,
    )
    _extend_log(tree, snapshot, entry)
    grown = read_snapshot(tree, pin)
    checks.check_blob(tree, library.digest, library.size_bytes)
    try:
        _write_heads(tree, pin, grown)
    except InputError as e:
        raise InputError(
            f"{e}; the log has the entry already: repeat the command when that can be written, "
            "until then nothing of it is a baseline"
        ) from None
    return _appended(grown, entry, settled, added=True)


def _publish(tree: Tree, blob: bytes) -> Digest:
    digest = sha256_bytes(blob)
    publish_once(tree.path / layout.blob_path(digest), blob)
    return digest


def _extend_log(tree: Tree, snapshot: Snapshot, entry: LogEntry) -> None:
    """New tiles, then the checkpoint that reaches them."""
    entries = (*snapshot.raw_entries, entry.to_bytes())
    levels = tlog.hash_levels(entries)
    for tile in tlog.tiles_added(snapshot.checkpoint.size):
        path = tree.path / "log" / tile.path
        make_directory(path.parent)
        publish_once(path, tlog.tile_bytes(tile, entries, levels))
    checkpoint = Checkpoint(len(entries), root_of(levels[0]))
    write_atomically(tree.path / checks.CHECKPOINT_FILE, checkpoint.text.encode(), 0o444)


def _appended(
    snapshot: Snapshot, entry: LogEntry, settled: tuple[str, ...], *, added: bool
) -> Appended:
    checkpoint = snapshot.checkpoint
    index = snapshot.entries.index(entry)
    return Appended(added, index, entry, checkpoint.size, checkpoint.root.hex(), settled)
