"""What comparing and hashing dumps costs beside ``sha256sum`` and ``cmp`` on the same files.

``python -m pyharness.tests.bench_compare [GB] [FOLDER]``; the target is a ratio of at most 1.3 at 2
GiB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pyharness.compare import FILES, compare_and_hash
from pyharness.tests.test_compare import safetensors

ROUNDS = 3


def write_dump(folder: Path, size_bytes: int) -> None:
    """A tenth h_out, six tenths logits, the rest state."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    for name, part in ((FILES[0], 0.1), (FILES[1], 0.6)):
        rows = max(1, int(size_bytes * part) // (4 * 4096))
        np.save(folder / name, rng.random((rows, 4096), np.float32).astype("<f4"))
    state = rng.random(max(1, int(size_bytes * 0.3) // 4), np.float32).astype("<f4")
    (folder / FILES[2]).write_bytes(safetensors({"layers.0.S": state}))


def ours(a: Path, b: Path) -> None:
    comparison, left, right = compare_and_hash(a, b)
    assert comparison.equal and left == right


def theirs(a: Path, b: Path) -> None:
    for name in FILES:
        subprocess.run(["sha256sum", a / name, b / name], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmp", a / name, b / name], check=True)


def seconds(work: Callable[[Path, Path], None], a: Path, b: Path) -> float:
    """The best of a few rounds: everything is in the page cache."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work(a, b)
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(size_bytes: int, folder: Path) -> tuple[float, float]:
    """Seconds of this harness and of sha256sum + cmp, for two dumps of together ``size_bytes``."""
    a, b = folder / "baseline", folder / "candidate"
    write_dump(a, size_bytes // 2)
    write_dump(b, size_bytes // 2)
    return seconds(ours, a, b), seconds(theirs, a, b)


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else "2") * 2**30)
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        mine, coreutils = measure(size, Path(folder))
    both = f"{mine:.2f} s, sha256sum + cmp {coreutils:.2f} s"
    print(f"{size / 2**30:g} GiB: {both}, {mine / coreutils:.2f} x")


if __name__ == "__main__":
    main()
