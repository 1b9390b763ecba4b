"""``make attack``: all of it, in numbers that the tests have no time for; 1 if one got through."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pyharness.tests.archive.samples import long, small, without_waiting_for_the_disk
from pyharness.tests.attack import gate_attacks, kills
from pyharness.tests.attack.parsers import targets
from pyharness.tests.attack.test_parsers import attack

FIRST = 5  # survivors of one kind that are told


class Count:
    """Prints a line for each kind of attack and remembers whether anything got through."""

    def __init__(self) -> None:
        self.through = self.tried = 0

    def add(self, name: str, said: Iterable[str]) -> None:
        all_said = list(said)
        found = [s for s in all_said if s]
        self.tried += len(all_said)
        self.through += len(found)
        print(f"{name}: {len(all_said)} tried, {len(found)} got through", flush=True)
        for line in found[:FIRST]:
            print(f"  {line}", flush=True)


def at_the_gate(count: Count, folder: Path, attempts: int) -> None:
    with without_waiting_for_the_disk():
        for name, site, share in (
            ("short log", small(folder / "short"), attempts - attempts // 10),
            ("log of 258", long(folder / "long", 258), attempts // 10),
        ):
            found = gate_attacks.survivors(site, 7, share)
            count.add(f"changes to an archive, {name}", [*found, *[""] * (share - len(found))])
        site = small(folder / "places")
        for kind in ("misplaced", "harmless", "races", "loaded_is_verified"):
            done = getattr(gate_attacks, kind)(site)
            count.add(kind, (f"{name}: {said}" if said else "" for name, said in done))


def kill(count: Count, folder: Path, attempts: int) -> None:
    rng = random.Random(attempts)
    place = kills.prepared(folder / "place")
    for name, line, share in (
        ("archive add", kills.Place.add_line, attempts * 2 // 5),
        ("accept", kills.Place.accept_line, attempts * 2 // 5),
    ):
        (folder / name).mkdir()
        done = list(kills.kills(place, folder / name, share, rng, line))
        count.add(f"{name}, {sum(k for k, _ in done)} killed", (said for _, said in done))
    here = place.copy(folder / "runs")
    done = list(kills.killed_runs(here, attempts // 5, rng))
    count.add(f"run-ab, {sum(k for k, _ in done)} killed", (said for _, said in done))
    here = place.copy(folder / "copies")
    count.add("copies during adds", kills.copies_while_adding(here, folder, 40))


def parse(count: Count, folder: Path, examples: int) -> None:
    for name, target in targets(folder).items():
        tried, said = attack(target, examples)
        count.add(f"hostile {name}", [said, *[""] * (tried - 1)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make attack")
    parser.add_argument("--gate", type=int, default=1500, help="generated changes to an archive")
    parser.add_argument("--kills", type=int, default=200, help="moments of kill -9")
    parser.add_argument("--examples", type=int, default=1000, help="hostile files for each parser")
    given = parser.parse_args()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for name, part, size in (
            ("gate", at_the_gate, given.gate), ("kills", kill, given.kills),
            ("parsers", parse, given.examples),
        ):  # fmt: skip
            (Path(folder) / name).mkdir()
            if size:
                part(count, Path(folder) / name, size)
    print(f"{count.tried} attacks, {count.through} got through")
    return 1 if count.through else 0


if __name__ == "__main__":
    sys.exit(main())
