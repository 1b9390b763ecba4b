"""The pictures in README.md: reports of three faulty libraries, in a real browser.

``python -m pyharness.tests.report.pictures`` builds the mutants, runs the command on each and
writes ``.ci/pictures/<mutant>.png``; needs chromium and a built library.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyharness import cli
from pyharness.errors import Exit
from pyharness.tests.faults.table import MUTANTS, ROOT
from pyharness.tests.faults.workshop import Workshop
from pyharness.tests.report.test_chromium import THEMES, browse, pixels

FOLDER = ROOT / ".ci" / "pictures"
# mutant -> options of the run, theme, height of the picture
SHOWN = {
    "sees-next-key": (("--m1", "--mt", "2-8", "--synthetic", "hybrid"), "light", 1240),
    "conv-not-restored": (("--rb", "4", "--synthetic", "gdn"), "dark", 1560),
    "sum-order-m5": (("--m1", "--mt", "2-8", "--synthetic", "gdn"), "light", 1240),
}
WIDTH, LARGEST = 1000, 150_000


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    mutants = {m.name: m for m in MUTANTS}
    with tempfile.TemporaryDirectory(prefix="pictures-") as name:
        place = Path(name)
        workshop = Workshop(place)
        for mutant, (options, theme, height) in SHOWN.items():
            library = workshop.build(mutants[mutant], place / mutant)
            runs = place / f"{mutant}-runs"
            isa = ("--isa", mutants[mutant].isa)
            line = [*options, *isa, "--candidate", str(library), "--out", str(runs)]
            assert cli.run(line) == Exit.DIFFERS
            (report,) = runs.glob("*/report.html")
            shot = FOLDER / f"{mutant}.png"
            window = f"--window-size={WIDTH},{height}"
            browse(report, window, f"--screenshot={shot}", *THEMES[theme])
            write_png(shot, pixels(shot.read_bytes()))
            assert shot.stat().st_size < LARGEST, f"{shot}: {shot.stat().st_size} bytes"


def write_png(path: Path, shown: npt.NDArray[np.uint8]) -> None:
    """With a palette of the 256 colours that occur most: text has many faint ones between."""
    colours, where, counts = np.unique(
        shown.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True
    )
    palette = colours[np.argsort(-counts)[:256]].astype(np.int32)
    distances = ((colours[:, None].astype(np.int32) - palette) ** 2).sum(axis=2)
    indices = distances.argmin(axis=1).astype(np.uint8)[where.reshape(shown.shape[:2])]
    height, width = indices.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), indices], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header), (b"PLTE", palette.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""),
    )  # fmt: skip
    data = b"\x89PNG\r\n\x1a\n"
    for name, body in chunks:
        data += struct.pack(">I", len(body)) + name + body
        data += struct.pack(">I", zlib.crc32(name + body))
    path.write_bytes(data)


if __name__ == "__main__":
    main()
