"""``accept``: the candidate of a green run becomes the baseline that later runs compare with."""

from __future__ import annotations

from pathlib import Path

from pyharness import gate, record
from pyharness.archive import store
from pyharness.config import Settings
from pyharness.errors import Exit, GateRefusal, InputError, NothingProved
from pyharness.files import sha256_file
from pyharness.record import Record
from pyharness.verdict import Verdict, conclude


def accept(run: str, settings: Settings, label: str | None, why: str) -> int:
    """The candidate of a green run becomes the baseline."""
    folder = record.find_run(settings["out"], run)
    verdict, _ = record.read_verdict(folder)
    if verdict.exit_code != Exit.SAME:
        raise NothingProved(
            f"{folder.name}: only a run that ended with 0 can be accepted, this one ended with "
            f"{verdict.exit_code}"
        )
    made, raw = record.read_record(folder), (folder / "record.json").read_bytes()
    _check_own(folder, verdict, made)
    library = made.libraries["candidate"]
    if (found := sha256_file(Path(library.origin))[0]) != library.digest:
        raise GateRefusal(
            f"{library.origin}: expected {library.digest}, the library of this run, found {found}"
        )
    archive, pin = settings["archive"], settings["pin"]
    _check_still_baseline(made, archive, pin)
    store.add(
        archive, pin, Path(library.origin),
        label=label or made.run.lower(), why=why, facts=library.facts, record=raw,
    )  # fmt: skip
    accepted = store.accept(archive, pin, library.digest, record=raw, why=why)
    print(f"accepted {accepted.entry.label} {library.digest}, log entry {accepted.index}")
    return Exit.SAME


def _check_own(folder: Path, verdict: Verdict, made: Record) -> None:
    """InputError unless verdict and record are of this run and say the same."""
    jobs_of = [job.id for job in made.suite.jobs], [job.id for job in verdict.jobs]
    if set(made.libraries) != {"baseline", "candidate"}:
        raise InputError(f"{folder}: its record names {len(made.libraries)} libraries")
    if made.run != folder.name or jobs_of[0] != jobs_of[1] or conclude(verdict.jobs) != verdict:
        raise InputError(f"{folder}: its verdict and its record do not belong together")


def _check_still_baseline(made: Record, archive: Path, pin: Path) -> None:
    """A run against an older baseline says nothing of what the present one would say."""
    compared = made.libraries["baseline"].digest
    with gate.open_baseline(archive, pin) as current:
        if current.digest not in (compared, made.libraries["candidate"].digest):
            raise NothingProved(
                f"{made.run} compared with {compared}, the baseline is {current.digest} now: "
                "run again and accept that run"
            )
