"""The log's entries: canonical JSON, one for each library added and for each one accepted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyharness.archive.layout import check_label
from pyharness.canonical import canonical_json, parse_canonical
from pyharness.errors import InputError
from pyharness.values import Digest, from_json, to_json


@dataclass(frozen=True)
class LogEntry:
    """One line of the archive's history."""

    kind: Literal["added", "accepted"]
    time: str  # UTC, e.g. 2026-11-29T18:17:00Z
    manifest: Digest
    library: Digest
    size_bytes: int  # of the library
    label: str
    why: str
    record: Digest | None = None  # of the run, a blob of the manifest; always there for "accepted"
    version: int = 1  # of this form

    def to_bytes(self) -> bytes:
        return canonical_json(to_json(self))

    @classmethod
    def parse(cls, data: bytes) -> LogEntry:
        """ValueError unless these are exactly the bytes that ``to_bytes`` gives."""
        entry: LogEntry = from_json(cls, parse_canonical(data))
        if entry.version != 1:
            raise ValueError(f"version {entry.version} of the entry's form is not known here")
        if not entry.why.isprintable():
            raise ValueError(f"not one line of text: {entry.why!r}")  # it is shown on terminals
        if entry.to_bytes() != data or entry.size_bytes < 1:
            raise ValueError("a field is missing or out of range")
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry.time):
            raise ValueError(f"not a time: {entry.time!r}")
        return entry


def parse_entries(raw: Sequence[bytes]) -> tuple[LogEntry, ...]:
    """ValueError for an entry that is malformed or that does not fit the ones before it."""
    entries: list[LogEntry] = []
    for i, data in enumerate(raw):
        try:
            entry = LogEntry.parse(data)
            _check_order(entry, entries)
        except (ValueError, InputError) as e:
            raise ValueError(f"entry {i}: {e}") from None
        entries.append(entry)
    return tuple(entries)


def _check_order(entry: LogEntry, before: Sequence[LogEntry]) -> None:
    added = [e for e in before if e.kind == "added"]
    if entry.kind == "added":
        check_label(entry.label)
        if any(e.label == entry.label or e.library == entry.library for e in added):
            raise ValueError(f"adds {entry.label} ({entry.library}) a second time")
    elif not any((e.label, e.library) == (entry.label, entry.library) for e in added):
        raise ValueError(f"accepts {entry.label} ({entry.library}), which was never added")
    elif entry.record is None:
        raise ValueError("accepts a library without the record of a run")
