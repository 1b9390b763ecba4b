"""``run-ab runs``: the commands about the folders of runs, click only."""

from __future__ import annotations

from typing import Any

import click

from pyharness.options import AS_JSON, SETTINGS, settings_of


@click.group("runs")
def runs_group() -> None:
    """The folders of runs."""


@runs_group.command("list")
@AS_JSON
@SETTINGS
def runs_list(as_json: bool, **given: Any) -> int:
    """Every run, newest first. Its verdict, its size, and which library was accepted for it."""
    from pyharness import runs

    return runs.list_runs(settings_of(given), as_json=as_json)


@runs_group.command("prune")
@click.option(
    "--keep", type=click.IntRange(0), metavar="N", required=True, help="How many stay, the newest."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@SETTINGS
def runs_prune(keep: int, dry_run: bool, yes: bool, **given: Any) -> int:
    """Remove old runs. Never one that a library was accepted for, nor one in progress."""
    from pyharness import runs

    return runs.prune(settings_of(given), keep, dry_run=dry_run, yes=yes)
