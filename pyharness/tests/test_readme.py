"""Every command of README.md runs: in a copy of the tree's archive and settings, with the library
that was built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyharness.errors import Exit
from pyharness.tests.goldens import NAMES, golden

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user's checkout holds after ``make setup native``; runs and acceptances stay in the
    copy.
    """
    made = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "archive", made / "archive")
    shutil.copytree(ROOT / ".ci", made / ".ci")
    shutil.copy(ROOT / "pyproject.toml", made)
    (made / "abruns").mkdir()
    (made / "build").mkdir()
    (made / "build" / "cpu").symlink_to(ROOT / "build" / "cpu")
    (made / "build" / "golden").symlink_to(golden(NAMES[0]).parent)
    return made


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_commands_in_the_order_of_the_page(tree: Path) -> None:
    ran = 0
    for command in commands():
        if command.startswith("make "):
            done = run(f"make -n {command.removeprefix('make ')}", ROOT)
        elif command.startswith(". "):
            continue
        else:
            done = run(command, tree)
            ran += 1
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert ran >= 15
    assert list(tree.glob("abruns/*/verdict.json"))


def test_commands_in_the_text(tree: Path) -> None:
    """Inline commands are complete or a form with words in capitals; each subcommand exists."""
    for command in re.findall(r"`(run-ab [^`]*)`", README):
        words = [w for w in command.split()[1:] if re.fullmatch(r"[a-z]+", w)]
        done = run(f"run-ab {' '.join(words[:2])} --help", tree)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_the_targets_of_ci_exist() -> None:
    for command in re.findall(r"^- run: (.*)$", blocks("yaml")[0], re.MULTILINE):
        if command.startswith("make "):
            assert run(f"make -n {command.removeprefix('make ')}", ROOT).returncode == 0, command
        else:
            assert command.startswith(".venv/bin/run-ab "), command


def test_the_table_of_exit_codes() -> None:
    codes = [int(c) for c in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)]
    assert codes == [int(e) for e in Exit]
