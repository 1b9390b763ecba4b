"""A command line whose libraries and runner are toys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyharness import cli, commands, replay
from pyharness.tests.fake_arms import NEW, OLD, FakeLibrary, FakeRunner

SMALL = ["--synthetic", "gdn", "--prefix", "2"]


class Bench:
    """A command line whose libraries and runner are toys."""

    def __init__(
        self, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self.capture, self.patch = folder, capture, patch
        self.out = self.err = ""
        patch.setattr(commands, "LocalRunner", FakeRunner)
        for name in [n for n in os.environ if n.startswith("VLLM_")]:
            patch.delenv(name)
        self.libraries()

    def libraries(self, baseline: FakeLibrary = OLD, candidate: FakeLibrary = NEW) -> None:
        pair = {"baseline": baseline, "candidate": candidate}
        self.patch.setattr(commands, "open_pair", lambda stack, settings: pair)
        self.patch.setattr(replay, "open_libraries", lambda stack, before, settings: pair)

    def __call__(self, *arguments: str | Path, out: bool = True) -> int:
        line = [str(a) for a in arguments]
        code = cli.run([*line, *(["--out", str(self.folder / "runs")] if out else [])])
        self.out, self.err = self.capture.readouterr()
        return int(code)

    @property
    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").iterdir()) if (self.folder / "runs").exists() else []
