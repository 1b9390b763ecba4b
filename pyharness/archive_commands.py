"""What the commands about the archive and about single files do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from pyharness import commands, config, device, gate
from pyharness.config import Settings
from pyharness.errors import Exit, InputError, LibraryFailure
from pyharness.files import read_descriptor
from pyharness.messages import printable
from pyharness.report.tables import print_table
from pyharness.report.text import size
from pyharness.values import LibraryFacts, shown_revision, to_json


def check_gate(settings: Settings) -> int:
    """The archive against its pin, every blob against its digest, the baseline of each backend, or
    the one that was named, and the candidate as they are now.
    """
    from pyharness.archive import fsck

    report = fsck.verify(settings["archive"], settings["pin"])
    reference = commands.baseline_reference(settings["baseline"])
    for backend in (settings["backend"],) if reference else report.baselines:
        with gate.open_baseline(settings["archive"], settings["pin"], reference, backend) as one:
            size_and_label = f"{one.size_bytes} bytes  {one.label} ({one.backend})"
            print(f"baseline  {one.digest}  {size_and_label}")
    path = settings["candidate"]
    if path == settings.built and not path.exists():  # nobody named it: as in a fresh clone
        print(f"candidate none: {path} does not exist, only the archive was checked")
    else:
        with commands.open_candidate(settings) as candidate:
            print(f"candidate {candidate.digest}  {candidate.size_bytes} bytes  {candidate.origin}")
    print(f"log       {report.entries} entries, {report.pinned} pinned, root {report.root}")
    return Exit.SAME


def verify(settings: Settings) -> int:
    """Everything that the archive holds."""
    from pyharness.archive import fsck

    report = fsck.verify(settings["archive"], settings["pin"])
    print(
        f"archive verified: {report.entries} log entries ({report.pinned} pinned), "
        f"{report.libraries} libraries, {report.blobs} blobs, {size(report.bytes_hashed)} hashed, "
        f"root {report.root}"
    )
    if report.unpinned:  # whole all the same: any add may have been killed
        print(f"note: not all entries are pinned: {fsck.HOW_TO_FINISH}", file=sys.stderr)
    for what, names in (
        ("nothing refers to", report.orphans),
        ("left by an interrupted add:", report.leftovers),
    ):
        for name in names:
            print(f"note: {what} {name}", file=sys.stderr)
    return Exit.SAME


def add(settings: Settings, library: Path, label: str, why: str, *, probe: bool) -> int:
    """Puts a library into the archive; what it says of itself goes with it."""
    from pyharness.archive import store

    facts = probe_library(library) if probe else None
    added = store.add(
        settings["archive"], settings["pin"], library, label=label, why=why, facts=facts
    )
    for line in (*added.settled, *no_revision(facts)):
        print(f"note: {line}", file=sys.stderr)
    entry = added.entry
    where = f"{entry.label} {entry.library}, log entry {added.index} of {added.log_size}"
    lost = "--why" if entry.label == label else f"--label {label} and --why"
    print(f"added {where}" if added.added else f"is there already: {where}; {lost} not recorded")
    return Exit.SAME


def no_revision(facts: LibraryFacts | None) -> tuple[str, ...]:
    """Said of a library whose bytes are all that there is of it."""
    if facts is None or not facts.dirty:
        return ()
    return (f"built from {facts.revision}, with changes that are not committed: `make rebuild` "
            "cannot build it again, the log says so",)  # fmt: skip


def probe_library(library: Path) -> LibraryFacts:
    """What a worker sees of a library that takes one step."""
    from pyharness.runner.local import take_a_step

    remedy = "--no-probe adds a library that cannot run here"
    with gate.open_candidate(library) as sealed:
        if why := device.missing(sealed.backend):
            raise LibraryFailure(f"{library}: {why}; {remedy}")
        result = take_a_step(sealed)
    if result.library is None:
        raise LibraryFailure(f"{library}: {result.reason}; {remedy}")
    return result.library


def history(settings: Settings, *, log: bool, as_json: bool) -> int:
    """``list``: one line a library; ``log``: with size, change of size, and why."""
    from pyharness.archive import fsck

    lines = fsck.entries(settings["archive"], settings["pin"])
    if as_json:
        print(json.dumps(to_json(lines), indent=1))
        return Exit.SAME
    head = ("label", "backend", "library", "size", "change", "added", "baseline", "revision", "why")
    rows = []
    for line in lines:
        change = "" if line.change_bytes is None else f"{line.change_bytes:+d}"
        mark = "baseline" if line.baseline else "accepted before" if line.accepted else ""
        cells = (line.label, line.backend, line.digest.short, str(line.size_bytes))
        revision = shown_revision(line.revision, bool(line.dirty))
        full = (*cells, change, line.time, mark, revision, line.why)
        rows.append(full if log else (*cells, mark))
    print_table(head if log else (*head[:4], "baseline"), rows, right=("size", "change"))
    return Exit.SAME


def symbols(library: Path, as_json: bool) -> int:
    """What a library exports, read from its file; nothing is loaded."""
    from pyharness.host import abi
    from pyharness.host.elf import read_elf

    with gate.open_candidate(library, to_load=False) as sealed:
        facts = read_elf(read_descriptor(sealed.fd, str(library)), str(library))
    required, optional = abi.REQUIRED, abi.OPTIONAL
    lacks = [name for name in (*required, *optional) if name not in facts.names]
    if as_json:
        exported = [s.name for s in facts.exported]
        print(
            json.dumps({"schema": "ab-symbols/1", "exported": exported, "missing": lacks}, indent=1)
        )
    else:
        for symbol in facts.exported:
            known = (
                "required"
                if symbol.name in required
                else "optional"
                if symbol.name in optional
                else ""
            )
            name = printable(symbol.name)
            print(f"{name:<32} {symbol.kind:<9} {symbol.binding:<7} {known}".rstrip())
        for name in lacks:
            print(f"{name:<32} missing   {'required' if name in required else 'optional'}")
    if unusable := [name for name in lacks if name in required]:
        raise LibraryFailure(f"{library}: lacks {', '.join(unusable)}")
    return Exit.SAME


def pack(folder: Path, out: Path, *, force: bool) -> int:
    """A checkpoint quantized once."""
    from pyharness.files import sha256_file
    from pyharness.inputs.pack import write_pack

    if out.is_file() and not force:
        raise InputError(f"{out}: exists already; --force replaces it")
    console = Console(stderr=True, highlight=False)
    with console.status("packing") as status:  # shown on a terminal only
        write_pack(folder, out, lambda name: status.update(f"packing {name}"))
    digest, count = sha256_file(out)
    print(f"{digest}  {count}  {out}")
    return Exit.SAME


def show_config(settings: Settings) -> int:
    """Every setting, its value, where it came from."""
    for key, setting in settings.values.items():
        print(
            f"{key:<10} {str(setting.value) or '-':<48} {setting.source:<16} {config.KEYS[key][2]}"
        )
    return Exit.SAME
