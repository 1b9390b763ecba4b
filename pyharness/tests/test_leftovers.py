"""Dumps of killed runs go, those of living and finished ones stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyharness import leftovers
from pyharness.record import new_run


def run_in(out: Path) -> Path:
    folder = new_run(out)
    (folder / "plan.json").write_text("{}")
    for part in ("baseline/x.arm", "candidate/.x.arm.partial-1", "first-difference/1"):
        (folder / part).mkdir(parents=True)
        (folder / part / "h_out.npy").write_bytes(b"dump")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_dumps_of_a_killed_run_go_and_its_plan_stays(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from pyharness import leftovers\n"
        "with leftovers.living(pathlib.Path(sys.argv[1])): print('alive', flush=True); input()"
    )
    folder = run_in(tmp_path)
    line = [sys.executable, "-c", code, str(folder)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        line, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == "alive\n"
        leftovers.sweep(tmp_path)
        assert len(names(folder)) == 4
        running.kill()
    leftovers.sweep(tmp_path)
    assert names(folder) == ["plan.json"]


def test_finished_runs_and_strange_folders_stay(tmp_path: Path) -> None:
    finished, strange, planless = run_in(tmp_path), tmp_path / "mine", run_in(tmp_path)
    (finished / "verdict.json").write_text("{}")
    (planless / "plan.json").unlink()
    run_in(tmp_path / "other").rename(strange)
    (tmp_path / "file").write_text("x")
    leftovers.sweep(tmp_path)
    assert [len(names(f)) for f in (finished, strange, planless)] == [5, 4, 3]
    leftovers.sweep(tmp_path / "nowhere")
