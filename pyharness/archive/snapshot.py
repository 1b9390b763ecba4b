"""One consistent, verified view of an archive: what ``read_snapshot`` returns has been checked
against the pin.

The log is the truth. The checkpoint is the root of its entries; the pin, kept outside of the
archive, is a beginning of it; every tile follows from the entries, every manifest belongs to its
entry, and the index follows from both, down to the byte. Only the bytes of the libraries and
records are left: ``checks.check_blob`` reads those.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from pyharness.archive import checks, layout, tlog
from pyharness.archive.entry import LogEntry, parse_entries
from pyharness.archive.layout import Manifest, named
from pyharness.archive.tlog import Checkpoint
from pyharness.archive.tree import Tree
from pyharness.errors import GateRefusal, InputError
from pyharness.files import read_regular
from pyharness.values import Digest


@dataclass(frozen=True)
class Snapshot:
    """A verified archive. ``manifests[i]`` belongs to ``entries[i]``."""

    checkpoint: Checkpoint
    pin: Checkpoint
    raw_entries: tuple[bytes, ...]
    entries: tuple[LogEntry, ...]
    manifests: tuple[Manifest, ...]
    manifest_sizes: tuple[int, ...]
    blobs: dict[Digest, int]  # referenced: digest -> size
    orphans: tuple[str, ...]  # blobs that nothing refers to
    leftovers: tuple[str, ...]  # of an interrupted add: temporary files, tiles never reached
    writable: tuple[str, ...]  # files with a write permission, as after a checkout

    @property
    def unpinned(self) -> int:
        """Entries beyond the pin: of an interrupted add, or somebody's who could not write the
        pin.
        """
        return self.checkpoint.size - self.pin.size

    def backend(self, index: int) -> str:
        """Of an entry's library, by what its manifest says."""
        return layout.backend_of(self.manifests[index].library)

    def accepted(self, backend: str, count: int | None = None) -> int | None:
        """Position of the last acceptance of a backend, among the first ``count`` entries."""
        found = (
            i for i, e in enumerate(self.entries[:count])
            if e.kind == "accepted" and self.backend(i) == backend
        )  # fmt: skip
        return max(found, default=None)

    def current(self, backend: str) -> int | None:
        """Position of the entry that names the baseline of a backend: the one accepted last, else
        the one added last. One that was added with the record of a run was to be accepted for it:
        where that did not come to pass it is no baseline.
        """
        accepted = self.accepted(backend)
        if accepted is not None:
            return accepted
        added = (
            i for i, e in enumerate(self.entries) if self.backend(i) == backend and e.record is None
        )
        return max(added, default=None)

    def added(self, library: Digest) -> LogEntry | None:
        found = (e for e in self.entries if e.kind == "added" and e.library == library)
        return next(found, None)

    def index_after(self, count: int) -> bytes:
        """The index when the log had this many entries."""
        rolling = {self.accepted(b, count): tag for b, tag in layout.ACCEPTED_TAGS.items()}
        listed = []
        for i, entry in enumerate(self.entries[:count]):
            tag = entry.label if entry.kind == "added" else rolling.get(i, "")
            listed.append((entry.manifest, self.manifest_sizes[i], tag))
        return layout.index_bytes(listed)


def read_pin(path: Path) -> Checkpoint | None:
    """The pinned checkpoint; None where there is no such file."""
    if not os.path.lexists(path):
        return None
    try:
        return Checkpoint.parse(read_regular(path, follow=False))
    except InputError as e:
        raise GateRefusal(str(e)) from None
    except ValueError as e:
        raise GateRefusal(f"{path}: not a pinned checkpoint: {e}") from None


def read_snapshot(tree: Tree, pin_path: Path) -> Snapshot:
    """Reads and verifies everything but the bytes of libraries and records. GateRefusal at the
    first mismatch.
    """
    files = tree.files()
    checkpoint = checks.read_checkpoint(tree, files)
    pin = _required_pin(pin_path, checkpoint, tree.path)
    raw = checks.read_entries(tree, checkpoint)
    checks.check_consistency(tree, pin, checkpoint, raw)
    checks.check_tiles(tree, files, checkpoint, raw)
    try:
        entries = parse_entries(raw)
    except ValueError as e:
        raise GateRefusal(f"{tree.path}/log: {e}") from None
    manifests, sizes = checks.read_manifests(tree, entries)
    blobs = checks.references(entries, manifests, sizes)
    orphans, leftovers = checks.classify(tree, files, checkpoint, blobs)
    writable = (name for name, info in files.items() if stat.S_IMODE(info.st_mode) & 0o222)
    snapshot = Snapshot(
        checkpoint=checkpoint,
        pin=pin,
        raw_entries=raw,
        entries=entries,
        manifests=manifests,
        manifest_sizes=sizes,
        blobs=blobs,
        orphans=orphans,
        leftovers=leftovers,
        writable=tuple(sorted(writable)),
    )
    if layout.INDEX_FILE in files:
        _check_index(tree, snapshot)
    return snapshot


def _required_pin(path: Path, checkpoint: Checkpoint, archive: Path) -> Checkpoint:
    pin = read_pin(path)
    if pin is None:
        if checkpoint.size:
            raise GateRefusal(
                f"{path}: is missing, and {archive} holds {checkpoint.size} log entries: restore "
                "it from version control"
            )
        return tlog.EMPTY
    if pin.size > checkpoint.size:
        raise GateRefusal(
            f"{archive}/log: is shorter than its pin: expected at least {pin.size} entries, found "
            f"{checkpoint.size}"
        )
    return pin


def _check_index(tree: Tree, snapshot: Snapshot) -> None:
    """The index follows from the log; after an interrupted add it may lack the one entry that is
    not pinned either.
    """
    size = snapshot.checkpoint.size
    expected, found = snapshot.index_after(size), tree.read(layout.INDEX_FILE)
    before = snapshot.index_after(size - 1) if snapshot.unpinned else expected
    if found not in (expected, before):
        raise GateRefusal(
            f"{tree.path / layout.INDEX_FILE}: is not the index of this log: expected "
            f"{named(expected)}, "
            f"found {named(found)}"
        )
