"""The pictures in README.md: reports of three faulty libraries, in a real browser.

``python -m pyharness.tests.report.pictures`` builds the mutants, runs the command on each and
writes ``.ci/pictures/<mutant>.png``; needs chromium and a built library.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyharness import cli
from pyharness.errors import Exit
from pyharness.tests.faults.table import MUTANTS, ROOT
from pyharness.tests.faults.workshop import Workshop
from pyharness.tests.report.test_chromium import THEMES, browse

FOLDER = ROOT / ".ci" / "pictures"
# mutant -> options of the run, theme, height of the picture
SHOWN = {
    "sees-next-key": (("--m1", "--mt", "2-8", "--synthetic", "hybrid"), "light", 1330),
    "conv-not-restored": (("--rb", "2,4,8", "--synthetic", "gdn"), "dark", 1330),
    "sum-order-m5": (("--m1", "--mt", "2-8", "--synthetic", "gdn"), "light", 1330),
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
            assert shot.stat().st_size < LARGEST, f"{shot}: {shot.stat().st_size} bytes"


if __name__ == "__main__":
    main()
