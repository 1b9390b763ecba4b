"""The archive: which library is the baseline, and why, in a form that nobody can change unnoticed.

On disk it is an OCI image layout (``layout``), which container tools copy and check, with an
append-only log beside it in the C2SP tlog-tiles form (``merkle``, ``tlog``, ``entry``):

    oci-layout  index.json          the index's tags are labels, derived from the log
    blobs/sha256/<digest>           libraries, manifests, records of runs
    log/checkpoint  log/tile/...    each library added, each one accepted

What makes the log append-only is its pin, a checkpoint kept outside of the archive and under
review. ``snapshot`` reads an archive and verifies it against the pin (``checks``, through
``tree``); ``store`` adds and accepts; ``fsck`` verifies every byte and tells the history. Nobody
loads a library from here: ``pyharness.gate`` hands out verified bytes.

    add(archive, pin, library, label=, why=, facts=None, record=None) -> Appended
    accept(archive, pin, digest, record=, why=) -> Appended
    verify(archive, pin, deep=True) -> ArchiveReport
    entries(archive, pin) -> tuple[HistoryLine, ...]
"""

from __future__ import annotations

from pyharness.archive.entry import LogEntry
from pyharness.archive.fsck import ArchiveReport, HistoryLine, entries, open_archive, verify
from pyharness.archive.store import Appended, accept, add
from pyharness.archive.tlog import Checkpoint

__all__ = [
    "Appended",
    "ArchiveReport",
    "Checkpoint",
    "HistoryLine",
    "LogEntry",
    "accept",
    "add",
    "entries",
    "open_archive",
    "verify",
]
