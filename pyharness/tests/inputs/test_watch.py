"""An input that is another file, or the same one written to, when the run ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyharness import commands
from pyharness.errors import Exit, InputError, NothingProved
from pyharness.files import sha256_file
from pyharness.inputs.watch import input_file, require_unchanged
from pyharness.tests.command_line import SMALL, Bench
from pyharness.tests.fake_arms import FakeRunner
from pyharness.values import ArmPlan, ArmResult


def turned(path: Path, back: bool = False) -> None:
    """A link of the path's that leads elsewhere, and back again."""
    link = path.parent
    was = os.readlink(link)
    for target in (link.with_name("b"), was) if back else (link.with_name("b"),):
        (link.parent / "new").symlink_to(target)
        os.replace(link.parent / "new", link)


def rewritten(path: Path) -> None:
    """Other bytes, and the time of the last write set back."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: list[Callable[[Path], object]] = [
    turned,
    lambda path: turned(path, back=True),
    rewritten,
    lambda path: path.unlink(),
    lambda path: path.rename(path.with_name("away")),
]


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A file by a name with a link in it, in a folder that has a counterpart."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens.txt").write_text("1 2 3 4 5 6 7 8 9 10")
    (tmp_path / "link").symlink_to("a")
    time.sleep(0.02)  # file systems tell times in steps of some milliseconds
    return tmp_path / "link" / "tokens.txt"


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_after_it_was_hashed_is_told(
    named: Path, change: Callable[[Path], object]
) -> None:
    file = input_file(named)
    assert (file.fact.sha256, file.fact.size_bytes) == sha256_file(named)
    require_unchanged([file])
    change(named)
    with pytest.raises(NothingProved, match=r"link/tokens\.txt: inputs changed while the run"):
        require_unchanged([file])


def test_another_file_beside_it_is_no_change(named: Path) -> None:
    file = input_file(named)
    (named.parent / "other").write_text("x")
    (named.parents[1] / "link2").symlink_to("a")
    assert named.read_text()
    require_unchanged([file])


def test_an_input_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        input_file(tmp_path)
    with pytest.raises(InputError):
        input_file(tmp_path / "none")


def test_a_run_whose_input_is_swapped_proves_nothing(
    bench: Bench,
    named: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = threading.Lock()  # of the run's arms, which run side by side

    class Swapping(FakeRunner):
        def run(self, plan: ArmPlan, library: object, out: Path) -> ArmResult:
            if first.acquire(blocking=False):
                turned(named)
            return super().run(plan, library, out)

    line: list[str | Path] = [*SMALL[:2], "--m1", "--tokens", named]
    assert bench(*line) == Exit.SAME
    monkeypatch.setattr(commands, "LocalRunner", Swapping)
    assert bench(*line) == Exit.UNPROVED
    assert "inputs changed while the run read them" in bench.err
    assert not (bench.runs[-1] / "verdict.json").exists()
    first.release()
    assert bench("replay", bench.runs[0].name) == Exit.UNPROVED
    assert "inputs changed while the run read them" in bench.err
