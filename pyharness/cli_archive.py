"""``run-ab archive``: the commands about the record of baselines, click only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pyharness.options import (
    ARCHIVE,
    AS_JSON,
    BACKEND,
    CANDIDATE,
    LIBRARY,
    PATH,
    RUNNING,
    WORKERS,
    settings_of,
)


@click.group()
def archive() -> None:
    """The immutable record of which library is the baseline."""


@archive.command("add")
@LIBRARY
@click.option("--label", required=True, help="Its name in the archive.")
@click.option("--why", required=True, help="One line for the log.")
@click.option(
    "--probe/--no-probe", default=True, help="Ask the library what it is, in a process of its own."
)
@ARCHIVE
def archive_add(library: Path, label: str, why: str, probe: bool, **given: Any) -> int:
    """Put a library into the archive."""
    from pyharness import archive_commands

    return archive_commands.add(settings_of(given), library, label, why, probe=probe)


@archive.command("list")
@AS_JSON
@ARCHIVE
def archive_list(as_json: bool, **given: Any) -> int:
    """Its libraries."""
    from pyharness import archive_commands

    return archive_commands.history(settings_of(given), log=False, as_json=as_json)


@archive.command("log")
@AS_JSON
@ARCHIVE
def archive_log(as_json: bool, **given: Any) -> int:
    """Its history. Each library's size, the change from the one before, and why."""
    from pyharness import archive_commands

    return archive_commands.history(settings_of(given), log=True, as_json=as_json)


@archive.command("verify")
@ARCHIVE
def archive_verify(**given: Any) -> int:
    """Read and hash all of it, against its pin."""
    from pyharness import archive_commands

    return archive_commands.verify(settings_of(given))


@archive.command("recompute")
@click.argument("reference", metavar="[REF]", default="")
@click.option("--only", metavar="NAME", multiple=True, help="Runs of those jobs; * is any text.")
@click.option("--model", "models", multiple=True, type=PATH, help="Where a recorded model is here.")
@AS_JSON
@BACKEND
@CANDIDATE
@ARCHIVE
@RUNNING
@WORKERS
def archive_recompute(
    reference: str, only: tuple[str, ...], models: tuple[Path, ...], as_json: bool, **given: Any
) -> int:
    """Do the runs of an accepted library again. The candidate does them: of every run that the
    record of the accepted one holds, of whatever device, each file must have the recorded digest.
    """
    from pyharness import recompute

    return recompute.recompute(reference, models, only, settings_of(given), as_json=as_json)
