"""Attacks on an archive, without end: each changes an archive, and each must be refused.

An attack is a description (which files get which bytes, disappear or become links), so that a run
can name it, undo it and do it again. ``python -m pyharness.tests.archive.attacks 5000`` tries that
many.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyharness.archive import layout, verify
from pyharness.archive.entry import LogEntry
from pyharness.archive.snapshot import Snapshot
from pyharness.errors import GateRefusal
from pyharness.gate import open_baseline
from pyharness.tests.archive.samples import (
    Site,
    elf,
    index_of,
    log_files,
    long,
    small,
    without_waiting_for_the_disk,
)


@dataclass(frozen=True)
class Attack:
    """``changes``: new bytes, None to delete, or a path to link to."""

    name: str
    changes: tuple[tuple[Path, bytes | Path | None], ...]
    gate: bool = (
        True  # False: bytes that opening the baseline need not read; only a deep check does
    )
    verify: bool = (
        True  # False: a true continuation of the log, of no use to anybody before it is pinned
    )


def attacks(site: Site, seed: int) -> Iterator[Attack]:
    """Every kind of change to every class of file, round after round, at other places each time."""
    rng, snapshot = random.Random(seed), site.snapshot()
    classes = file_classes(site, snapshot)
    while True:
        for kind, paths in classes.items():
            for change in (flip, truncate, extend, delete, link, exchange):
                if attack := change(rng, kind, rng.choice(paths), paths):
                    yield attack
        yield from forgeries(rng, site, snapshot)


def file_classes(site: Site, snapshot: Snapshot) -> dict[str, list[Path]]:
    """The archive's files by what they are; the names of the classes say what is under attack."""
    current = snapshot.current("cpu")
    assert current is not None
    baseline = snapshot.entries[current].library
    last_record = snapshot.entries[current].record
    found: dict[str, list[Path]] = {
        "oci-layout": [site.archive / "oci-layout"],
        "index": [site.archive / "index.json"],
        "checkpoint": [site.archive / "log/checkpoint"],
        "pin": [site.pin],
        "baseline": [site.archive / layout.blob_path(baseline)],
        "manifest": [site.archive / layout.blob_path(e.manifest) for e in snapshot.entries],
    }
    others = set(snapshot.blobs) - {baseline} - {e.manifest for e in snapshot.entries}
    assert last_record in others
    found["other blob"] = [site.archive / layout.blob_path(digest) for digest in sorted(others)]
    for tile in sorted((site.archive / "log/tile").rglob("*")):
        if tile.is_file():
            level = tile.relative_to(site.archive / "log/tile").parts[0]
            width = "partial" if tile.parent.name.endswith(".p") else "full"
            kind = "bundle" if level == "entries" else f"tile of level {level}"
            found.setdefault(f"{width} {kind}", []).append(tile)
    return found


# ---- one file -----------------------------------------------------------------------------------

OneFile = Callable[[random.Random, str, Path, Sequence[Path]], Attack | None]


def _attack(kind: str, what: str, path: Path, new: bytes | Path | None) -> Attack:
    # The size of every blob is checked by the gate, the bytes of libraries and records it does not
    # open are not.
    unread = kind == "other blob" and isinstance(new, bytes) and len(new) == path.stat().st_size
    return Attack(f"{what} {kind} ({path.name[:12]})", ((path, new),), gate=not unread)


def flip(rng: random.Random, kind: str, path: Path, _: Sequence[Path]) -> Attack:
    data = bytearray(path.read_bytes())
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    data[at] ^= 1 << bit
    return _attack(kind, f"flip bit {bit} of byte {at} of the", path, bytes(data))


def truncate(rng: random.Random, kind: str, path: Path, _: Sequence[Path]) -> Attack:
    data = path.read_bytes()
    size = rng.choice([0, len(data) - 1, rng.randrange(len(data))])
    return _attack(kind, f"truncate to {size} bytes the", path, data[:size])


def extend(rng: random.Random, kind: str, path: Path, _: Sequence[Path]) -> Attack:
    data = path.read_bytes()
    more = rng.choice([b"\n", b"\0", b" ", data, rng.randbytes(32)])
    return _attack(kind, f"append {len(more)} bytes to the", path, data + more)


def delete(_: random.Random, kind: str, path: Path, __: Sequence[Path]) -> Attack:
    return _attack(kind, "delete the", path, None)


def link(rng: random.Random, kind: str, path: Path, paths: Sequence[Path]) -> Attack:
    outside = path.parent.parent / f"outside-{path.name}"  # holds the right bytes
    target = rng.choice([outside, path.parent, Path("/dev/null"), Path("/nowhere"), *paths[:2]])
    if target == path:
        target = outside
    return _attack(kind, f"link to {target.name} the", path, target)


def exchange(rng: random.Random, kind: str, path: Path, paths: Sequence[Path]) -> Attack | None:
    other = rng.choice(paths).read_bytes() if len(paths) > 1 else elf(99)
    if other == path.read_bytes():
        return None
    return _attack(kind, "put another file's bytes into the", path, other)


# ---- the whole archive --------------------------------------------------------------------------


def forgeries(rng: random.Random, site: Site, snapshot: Snapshot) -> Iterator[Attack]:
    """History rewritten with everything recomputed but the pin; files where none belong."""
    old = list(snapshot.entries)
    i, j = sorted(rng.sample(range(len(old)), 2))
    swapped = [*old[:i], old[j], *old[i + 1 : j], old[i], *old[j + 1 :]]
    edited = [*old[:i], replace(old[i], why=f"{old[i].why} {rng.random()}"), *old[i + 1 :]]
    moved = [*old[:-1], replace(old[-1], library=old[2].library, label=old[2].label)]
    for name, entries in {
        f"exchange entries {i} and {j}": swapped,
        f"drop entry {i}": [*old[:i], *old[i + 1 :]],
        f"drop the last {len(old) - j} entries": old[:j],
        f"rewrite entry {i}": edited,
        "accept another library": moved,
    }.items():
        if entries != old:
            yield Attack(f"{name}, recompute the log", _rewritten(site, old, entries))
    yield Attack("continue the log", _rewritten(site, old, [*old, old[3]]), verify=False)
    yield Attack("an empty log", _rewritten(site, old, []))
    index = site.archive / "index.json"
    yield Attack("an older index", ((index, index_of(site, old[:-1])),))
    tags = [b'"v0"', b'"v1"', b'"v2"', b'"accepted"']
    first, second = rng.sample(tags, 2)
    retagged = index.read_bytes().replace(first, b"#").replace(second, first).replace(b"#", second)
    if first in index.read_bytes() and second in index.read_bytes():
        yield Attack(f"exchange tags {first!r} and {second!r}", ((index, retagged),))
    folder = rng.choice(["", "blobs", "blobs/sha256", "log", "log/tile", "log/tile/0", "other"])
    name = rng.choice(["x", "README", "000", "256", "0" * 63, "latest", "index.json~"])
    yield Attack(f"a file {folder}/{name}", ((site.archive / folder / name, b"x"),))
    folder = rng.choice(["blobs/sha256", "log", "log/tile", "log/tile/0", "log/tile/entries"])
    outside = site.root / "outside-folder"
    yield Attack(f"link the folder {folder}", ((site.archive / folder, outside),))


def _rewritten(
    site: Site, old: Sequence[LogEntry], new: Sequence[LogEntry]
) -> tuple[tuple[Path, bytes | None], ...]:
    before = dict.fromkeys(log_files([e.to_bytes() for e in old]))
    after = log_files([e.to_bytes() for e in new]) if new else {}
    index = {"index.json": index_of(site, new)}
    return tuple((site.archive / path, data) for path, data in (before | after | index).items())


# ---- doing and undoing --------------------------------------------------------------------------


@contextlib.contextmanager
def applied(attack: Attack) -> Iterator[None]:
    """The archive with the attack done; afterwards as it was."""
    undo = contextlib.ExitStack()
    with undo:
        for path, new in attack.changes:
            undo.callback(_put_back, path, _take_away(path))
            if isinstance(new, bytes):
                made = next((p for p in reversed(path.parents) if not p.exists()), None)
                if made:
                    undo.callback(shutil.rmtree, made)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(new)
            elif isinstance(new, Path):
                _link(path, new, undo)
        yield


def _take_away(path: Path) -> Path | None:
    if not os.path.lexists(path):
        return None
    aside = Path(tempfile.mkdtemp(prefix="aside-", dir=_outside(path))) / path.name
    os.rename(path, aside)
    return aside


def _outside(path: Path) -> Path:
    """The directory that the archive or the pin's folder stands in."""
    return next(p for p in path.parents if p.name in ("archive", "ci")).parent


def _put_back(path: Path, aside: Path | None) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    if aside:
        os.rename(aside, path)
        aside.parent.rmdir()


def _link(path: Path, target: Path, undo: contextlib.ExitStack) -> None:
    """A link to the target; one named outside-* is made first, with the very bytes of the
    original.
    """
    if target.name.startswith("outside-"):
        target = _outside(path) / target.name
        aside = next(_outside(path).glob(f"aside-*/{path.name}"))
        if aside.is_dir():
            shutil.copytree(aside, target)
            undo.callback(shutil.rmtree, target)
        else:
            shutil.copy(aside, target)
            undo.callback(target.unlink)
    path.symlink_to(target)


def refused_by_verify(site: Site) -> str:
    """The refusal's text, "" when the archive passed."""
    try:
        verify(site.archive, site.pin)
    except GateRefusal as e:
        return str(e)
    return ""


def refused_by_gate(site: Site) -> str:
    try:
        open_baseline(site.archive, site.pin).close()
    except GateRefusal as e:
        return str(e)
    return ""


def survivors(site: Site, seed: int, count: int) -> list[str]:
    """The names of those of the first ``count`` attacks that something let through."""
    through = []
    for attack in itertools.islice(attacks(site, seed), count):
        with applied(attack):
            if attack.verify and not refused_by_verify(site):
                through.append(f"verify: {attack.name}")
            if attack.gate and not refused_by_gate(site):
                through.append(f"gate: {attack.name}")
    return through


def main(count: int) -> int:
    """Nine in ten on a short log; a log with two levels of tiles takes twenty times as long."""
    through = []
    with tempfile.TemporaryDirectory() as folder, without_waiting_for_the_disk():
        sites = {small(Path(folder) / "s"): count - count // 10}
        sites[long(Path(folder) / "l", 260)] = count // 10
        for seed, (site, share) in enumerate(sites.items()):
            entries = len(site.snapshot().entries)
            found = survivors(site, seed, share)
            print(
                *found, f"{share} attacks on a log of {entries}: {len(found)} got through", sep="\n"
            )
            through += found
    return 1 if through else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 1000))
