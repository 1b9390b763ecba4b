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

from pyharness import commands as commands_module
from pyharness import config, gate, plan
from pyharness.commands import ModelOptions, SuiteOptions
from pyharness.errors import Exit
from pyharness.files import read_descriptor
from pyharness.host.elf import read_elf
from pyharness.host.script import needed_entries
from pyharness.report.text import summary_line
from pyharness.tests.goldens import NAMES, golden
from pyharness.values import JobStatus
from pyharness.verdict import JobVerdict, conclude

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
        bare = re.sub(r"--[a-z-]+ [a-z]+", "", command)  # an option's value is no subcommand
        words = [w for w in bare.split()[1:] if re.fullmatch(r"[a-z]+", w)]
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


def test_the_sentence_of_the_first_run() -> None:
    """The counts of the default suite against the first baseline, as entries of the two libraries
    decide them; nothing is run.
    """
    settings = config.resolve({}, {}, ROOT)
    workloads = commands_module.read_workloads(ModelOptions(), settings)
    request = commands_module.suite_request(SuiteOptions(ModelOptions()), settings, 2)
    with gate.open_baseline(settings["archive"], settings["pin"], "cpu-m1") as library:
        has = read_elf(read_descriptor(library.fd, "baseline")).names
    told = []
    for job in plan.build(workloads, request).jobs:
        lacks = set(needed_entries(job.baseline.script)) - has
        status = JobStatus.UNSUPPORTED if lacks else JobStatus.SAME
        told.append(JobVerdict(job.id, status, "", job.requested))
    assert f"```text\n{summary_line(conclude(told))}\n```" in README
