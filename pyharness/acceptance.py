"""``accept``: the candidate of a green run becomes the baseline that later runs compare with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from pyharness import record
from pyharness.archive import store
from pyharness.archive_commands import no_revision
from pyharness.config import Settings
from pyharness.coverage import coverage_of, gaps
from pyharness.errors import Exit, GateRefusal, InputError, NothingProved
from pyharness.files import read_regular, sha256_bytes, sha256_file
from pyharness.host.abi import OPTIONAL
from pyharness.host.elf import read_elf_file
from pyharness.record import Record
from pyharness.values import Arm
from pyharness.verdict import Verdict


def accept(
    run: str, settings: Settings, label: str | None, why: str, library_path: Path | None = None
) -> int:
    """The candidate of a green run becomes the baseline of its backend. ``library_path``: where its
    bytes are now, if not where the run had them, as after a run on another machine.
    """
    folder = record.find_run(settings["out"], run)
    verdict, whole, made = record.read_run(folder)
    if verdict.exit_code != Exit.SAME:
        raise NothingProved(
            f"{folder.name}: only a run that ended with 0 can be accepted, this one ended with "
            f"{verdict.exit_code}"
        )
    raw = read_regular(folder / "record.json")
    if str(sha256_bytes(raw)) != whole["files"]["record.json"]:
        raise GateRefusal(f"{folder / 'record.json'}: changed while it was read")
    if set(made.libraries) != set(get_args(Arm)):
        raise InputError(f"{folder}: its record names {len(made.libraries)} libraries")
    library = made.libraries["candidate"]
    path = library_path or Path(library.origin)
    if library_path is None and not path.exists():
        raise InputError(
            f"{path}: the library of this run is not there; say where it is with --library"
        )
    if (found := sha256_file(path)[0]) != library.digest:
        raise GateRefusal(
            f"{path}: expected {library.digest}, the library of this run, found {found}"
        )
    _check_coverage(made, verdict, read_elf_file(path).names)
    archive, pin = settings["archive"], settings["pin"]
    compared = made.libraries["baseline"].digest
    added = store.add(
        archive, pin, path,
        label=label or made.run.lower(), why=why, facts=library.facts, record=raw,
        compared=compared,
    )  # fmt: skip
    accepted = store.accept(archive, pin, library.digest, record=raw, why=why, compared=compared)
    _tell(made, label, added, accepted)
    return Exit.SAME


def _check_coverage(made: Record, verdict: Verdict, exports: frozenset[str]) -> None:
    """A baseline has shown every kind of job that it can do on every kind of layer. What was green
    is counted again, and what the library lacks is read from its own symbols.
    """
    models = {job.candidate.model.name: job.candidate.model for job in made.suite.jobs}
    stated = {m.model: m.layers for m in made.coverage}  # the weights may be on another machine
    away = {n: stated[n] for n, m in models.items() if n in stated and m.kind != "synthetic"}
    coverage = coverage_of(made.suite.jobs, verdict.jobs, away)
    if coverage != made.coverage:
        raise NothingProved(f"{made.run}: the coverage in its record is not that of its green jobs")
    if unseen := gaps(coverage, set(OPTIONAL) - exports):
        raise NothingProved(
            f"{made.run}: no green job was {', '.join(unseen)}: do `run-ab`, which runs all of "
            "them, and accept that run"
        )


def _tell(made: Record, label: str | None, added: store.Appended, accepted: store.Appended) -> None:
    entry = accepted.entry
    facts = made.libraries["candidate"].facts
    for line in (*added.settled, *accepted.settled, *no_revision(facts)):
        print(f"note: {line}", file=sys.stderr)
    where = f"{entry.label} {entry.library}, log entry {accepted.index}"
    if not accepted.added:
        print(f"is the accepted baseline already: {where}; this run and --why are not recorded")
        return
    print(f"accepted {where}")
    for model in made.coverage:
        print(f"  {model.line}")
    if label and label != entry.label:
        print(f"note: it is in the archive as {entry.label}, --label {label} is not recorded")
