"""Reading and checking the archive: the whole of it, its history, and what a refusal says."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyharness.archive import checks, layout
from pyharness.archive.snapshot import Snapshot, read_pin, read_snapshot
from pyharness.archive.tree import Tree, locked
from pyharness.errors import GateRefusal, InputError
from pyharness.values import BACKENDS, Digest

# Of an archive with more entries than its pin covers.
HOW_TO_FINISH = (
    "repeat the add or accept that was interrupted, or restore the archive from version control"
)
HOW_TO_ADD = "add a library with `run-ab archive add LIBRARY --label NAME --why TEXT`"


@dataclass(frozen=True)
class ArchiveReport:
    """A verified archive. Only faults that do no harm are listed; all others are refused."""

    deep: bool  # every blob was read and hashed
    entries: int
    libraries: int
    blobs: int
    bytes_hashed: int
    root: str  # of the log, hexadecimal
    pinned: int  # entries that the pin covers
    unpinned: int  # entries beyond it: no baseline until the interrupted add is repeated
    baselines: dict[str, Digest]  # of each backend that the archive holds
    orphans: tuple[str, ...]  # blobs that nothing refers to
    leftovers: tuple[str, ...]  # of an interrupted add; the next one clears them
    writable: tuple[str, ...]  # files with a write permission, as after a checkout


@dataclass(frozen=True)
class HistoryLine:
    """One library of the archive, for ``run-ab archive log``."""

    index: int  # of the log entry that added it
    label: str
    digest: Digest
    size_bytes: int
    # from the library of that backend added before; None for the first
    change_bytes: int | None
    time: str
    why: str
    abi_version: str  # this and the next five: "", () or None where nobody loaded it before
    backend: str
    bits_version: str
    revision: str
    dirty: bool | None  # its sources had changes that the revision does not hold
    symbols: tuple[str, ...]
    accepted: tuple[str, ...]  # times at which it became the baseline
    baseline: bool  # it is the baseline of its backend now


@contextlib.contextmanager
def open_archive(archive: Path, pin: Path) -> Iterator[tuple[Tree, Snapshot]]:
    """The archive, locked for reading, and its verified state."""
    if not os.path.lexists(archive):
        pinned = read_pin(pin)
        if pinned and pinned.size:
            raise GateRefusal(
                f"{archive}: expected a log of {pinned.size} entries ({pin}), found no archive"
            )
        raise InputError(f"{archive}: there is no archive; {HOW_TO_ADD}")
    with locked(archive, exclusive=False) as tree:
        with restorable(archive, pin):
            snapshot = read_snapshot(tree, pin)
        yield tree, snapshot


@contextlib.contextmanager
def restorable(archive: Path, pin: Path) -> Iterator[None]:
    """A refusal in here is of a damaged archive: it says how to get the archive back."""
    try:
        yield
    except GateRefusal as e:
        if "restore" in str(e):
            raise
        here = Path.cwd()
        paths = (p.relative_to(here) if p.is_relative_to(here) else p for p in (archive, pin))
        raise GateRefusal(f"{e}; restore it: git checkout {shlex.join(map(str, paths))}") from None


def check_blobs(tree: Tree, snapshot: Snapshot) -> int:
    """Reads and hashes every blob, also those that nothing refers to. How many bytes that was."""
    hashed = 0
    for digest, size in snapshot.blobs.items():
        checks.check_blob(tree, digest, size)
        hashed += size
    for orphan in snapshot.orphans:
        found, size = tree.sha256(orphan)
        if found.hex != orphan.rpartition("/")[2]:
            raise GateRefusal(f"{tree.path / orphan}: found {found}")
        hashed += size
    return hashed


def verify(archive: Path, pin: Path, *, deep: bool = True) -> ArchiveReport:
    """Checks the whole archive against its pin; ``deep`` reads every blob. GateRefusal at the first
    fault.
    """
    with open_archive(archive, pin) as (tree, snapshot):
        with restorable(archive, pin):
            hashed = check_blobs(tree, snapshot) if deep else 0
        return ArchiveReport(
            deep=deep,
            entries=len(snapshot.entries),
            libraries=sum(e.kind == "added" for e in snapshot.entries),
            blobs=len(snapshot.blobs),
            bytes_hashed=hashed,
            root=snapshot.checkpoint.root.hex(),
            pinned=snapshot.pin.size,
            unpinned=snapshot.unpinned,
            baselines=baselines(snapshot),
            orphans=snapshot.orphans,
            leftovers=snapshot.leftovers,
            writable=snapshot.writable,
        )


def entries(archive: Path, pin: Path) -> tuple[HistoryLine, ...]:
    """The libraries of the verified archive, oldest first."""
    with open_archive(archive, pin) as (_, snapshot):
        return history(snapshot)


def baselines(snapshot: Snapshot, *, pinned: bool = False) -> dict[str, Digest]:
    """The baseline of each backend that the archive holds a library of; ``pinned``: of those that
    the pin covers, as no other one is handed out.
    """
    found = {backend: snapshot.current(backend) for backend in BACKENDS}
    below = snapshot.pin.size if pinned else len(snapshot.entries)
    return {b: snapshot.entries[i].library for b, i in found.items() if i is not None and i < below}


def history(snapshot: Snapshot) -> tuple[HistoryLine, ...]:
    current = baselines(snapshot, pinned=True).values()
    lines: list[HistoryLine] = []
    sizes: dict[str, int] = {}  # of the last library of each backend
    for i, (entry, manifest) in enumerate(zip(snapshot.entries, snapshot.manifests, strict=True)):
        if entry.kind != "added":
            continue
        layer, later, backend = manifest.library, snapshot.entries[i:], snapshot.backend(i)
        before, sizes[backend] = sizes.get(backend), entry.size_bytes
        lines.append(
            HistoryLine(
                index=i,
                label=entry.label,
                digest=entry.library,
                size_bytes=entry.size_bytes,
                change_bytes=None if before is None else entry.size_bytes - before,
                time=entry.time,
                why=entry.why,
                abi_version=layer.annotation(layout.ABI),
                backend=layer.annotation(layout.BACKEND),
                bits_version=layer.annotation(layout.BITS),
                revision=layer.annotation(layout.REVISION),
                dirty=_dirty(layer.annotation(layout.BUILD_INFO)),
                symbols=tuple(layer.annotation(layout.SYMBOLS).split()),
                accepted=tuple(
                    e.time for e in later if e.kind == "accepted" and e.library == entry.library
                ),
                baseline=entry.library in current,
            )
        )
    return tuple(lines)


def _dirty(build_info: str) -> bool | None:
    """What the library said of its sources; None where it said nothing that is understood here."""
    try:
        said = json.loads(build_info)["dirty"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return said if isinstance(said, bool) else None
