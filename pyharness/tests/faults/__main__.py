"""Builds the mutants, runs the command on each, prints the table; exits 1 when one survives."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pyharness.record import sources_digest
from pyharness.tests.faults.mutant import NATIVE, Mutant
from pyharness.tests.faults.table import MUTANTS, ROOT, Bench, Outcome
from pyharness.values import to_json

KNOWN = ROOT / "build/faults.json"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--again", is_flag=True, help="Also those that were killed before on these sources.")
@click.option("--workers", type=int, default=os.cpu_count() or 1, show_default=True)
def main(names: tuple[str, ...], again: bool, workers: int) -> None:
    """Every mutant, or those named, against the command's jobs."""
    if unknown := set(names) - {m.name for m in MUTANTS}:
        raise click.UsageError(f"no mutant {', '.join(sorted(unknown))}")
    chosen = [m for m in MUTANTS if not names or m.name in names]
    if stale := [f"{m.name}: {m.problem()}" for m in chosen if m.problem()]:
        raise click.ClickException("\n".join(stale))
    known = {} if again else _read()
    outcomes = {m.name: Outcome(True, known[_key(m)]) for m in chosen if _key(m) in known}
    left = [m for m in chosen if m.name not in outcomes]
    if left:
        outcomes |= _run(left, workers)
        _write(known | {_key(m): outcomes[m.name].told for m in left if outcomes[m.name].killed})
    survivors = [m.name for m in chosen if not outcomes[m.name].killed]
    _print(chosen, outcomes)
    green = [
        name for name in outcomes if name.startswith("unchanged ") and not outcomes[name].killed
    ]
    for name in green:
        click.echo(f"the {name} is not green: {outcomes[name].told}")
    click.echo(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    raise SystemExit(1 if survivors or green else 0)


def _run(mutants: list[Mutant], workers: int) -> dict[str, Outcome]:
    commands = dict.fromkeys(m.options for m in mutants)
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, Progress(transient=True) as bar:
        task = bar.add_task("mutants", total=len(mutants) + len(commands))
        bench = Bench(Path(folder))

        def mutant(m: Mutant) -> None:
            outcomes[m.name] = bench.try_mutant(m)
            bar.advance(task)

        def green(number: int, options: tuple[str, ...]) -> None:
            name = f"unchanged library, run-ab {' '.join(options)}"
            outcomes[name] = bench.unchanged_is_green(options, f"green-{number}")
            bar.advance(task)

        with ThreadPoolExecutor(workers) as pool:
            made = [pool.submit(mutant, m) for m in mutants]
            made += [pool.submit(green, i, options) for i, options in enumerate(commands)]
            for future in made:
                future.result()
    return outcomes


def _print(mutants: Iterable[Mutant], outcomes: dict[str, Outcome]) -> None:
    table = Table("mutant", "breaks", "file", "job", "result", row_styles=("", "dim"))
    for m in mutants:
        outcome = outcomes[m.name]
        verdict = "[green]killed[/]" if outcome.killed else "[bold red]SURVIVED[/]"
        wanted = "" if outcome.killed else f" (wanted: {m.status} {m.shows})"
        job = f"{m.family}/{m.job}" + (f" {m.profile}" if m.profile != "quick" else "")
        table.add_row(m.name, m.breaks, m.file, job, f"{verdict} {outcome.told}{wanted}")
    Console(width=None if Console().is_terminal else 200).print(table)


# ---- what is known to be killed ------------------------------------------------------------------


def _key(mutant: Mutant) -> str:
    """Of the row and of everything that decides what becomes of it."""
    state = hashlib.sha256(json.dumps(to_json(mutant), sort_keys=True).encode())
    for path in sorted(p for p in NATIVE.rglob("*") if p.is_file() and "cuda" not in p.parts):
        state.update(f"{path.relative_to(NATIVE)}\0".encode() + path.read_bytes())
    state.update(str(sources_digest()).encode())
    return state.hexdigest()


def _read() -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads(KNOWN.read_bytes())
        return known
    except (OSError, ValueError):
        return {}


def _write(known: dict[str, str]) -> None:
    KNOWN.parent.mkdir(parents=True, exist_ok=True)
    KNOWN.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
