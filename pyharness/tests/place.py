"""Where the command line is tested: an archive with one library, and runs beside it."""

from __future__ import annotations

from pathlib import Path

from pyharness import cli
from pyharness.errors import Exit


def options(folder: Path) -> tuple[list[str], list[str]]:
    """Where the archive and the runs are."""
    archive = ["--archive", str(folder / "archive"), "--pin", str(folder / "archive.pin")]
    return archive, ["--out", str(folder / "runs")]


class Place:
    def __init__(self, folder: Path, baseline: Path, label: str = "first") -> None:
        self.folder = folder
        self.where, self.out = options(folder)
        added = ["archive", "add", str(baseline), "--label", label, "--why", "test"]
        assert self.run(*added) == Exit.SAME

    def run(self, *arguments: str) -> int:
        """The exit code of a command on this archive."""
        return int(cli.run([*arguments, *self.where]))

    @property
    def runs(self) -> list[Path]:
        folder = self.folder / "runs"
        return sorted(folder.iterdir()) if folder.exists() else []
