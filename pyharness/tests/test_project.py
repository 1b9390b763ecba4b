"""The project's own promises: top level, exact pins, hashed locks, one line for a missing tool."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {"native", "pyharness", "abruns", "archive", "Makefile", "pyproject.toml", "README.md"}
LOCKS = (".requirements.lock", ".requirements-lint.lock")


def tracked(*patterns: str) -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return listing.stdout.splitlines()


def project_pins() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [project["build-system"]["requires"], project["project"]["dependencies"]]
    lists += project["project"]["optional-dependencies"].values()
    lists += project["dependency-groups"].values()
    return {requirement for requirements in lists for requirement in requirements}


def locked_pins(name: str) -> dict[str, int]:
    """ "name==version" -> number of hashes."""
    text = (ROOT / name).read_text()
    blocks = re.findall(
        r"^([a-z0-9.-]+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", text, re.M
    )
    return {pin: hashes.count("--hash") for pin, hashes in blocks}


def test_top_level_is_fixed() -> None:
    top = {Path(name).parts[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_no_checkout_changes_a_byte(tmp_path: Path) -> None:
    """The record of an accepted run holds digests of the golden models' files, as they are here."""
    names = tracked()
    copy = tmp_path / "copy"
    git = ["git", "-c", f"safe.directory={ROOT}", "-c", f"safe.directory={ROOT / '.git'}"]
    asked = [*git, "check-attr", "text", "-z", "--stdin"]
    listed = "\0".join(names).encode()
    told = subprocess.run(asked, cwd=ROOT, input=listed, capture_output=True, check=True).stdout
    assert told.decode().split("\0")[2::3] == ["unset"] * len(names)
    subprocess.run(["git", "init", "-q", copy], check=True)
    (copy / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    text = (ROOT / "pyharness/tests/golden/tiny-gdn/config.json").read_bytes()
    (copy / "config.json").write_bytes(text)
    converting = ["git", "-c", "core.autocrlf=true"]
    subprocess.run([*converting, "add", "."], cwd=copy, check=True)
    (copy / "config.json").unlink()
    subprocess.run([*converting, "checkout", "-q", "."], cwd=copy, check=True)
    assert (copy / "config.json").read_bytes() == text


def test_every_pin_is_exact_and_locked_with_hashes() -> None:
    locked = {pin: count for name in LOCKS for pin, count in locked_pins(name).items()}
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", pin) for pin in project_pins())
    assert project_pins() <= set(locked)
    assert min(locked.values()) >= 1


@pytest.mark.parametrize("name", LOCKS)
def test_lock_holds_nothing_but_pins_and_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    rest = re.sub(
        r"^[a-z0-9.-]+==\S+ \\$|^    --hash=sha256:[0-9a-f]{64}( \\)?$|^#.*$", "", text, flags=re.M
    )
    assert rest.strip() == ""
    assert "://" not in text


def check_tools(tools: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The check with nothing on PATH but ``tools``."""
    return subprocess.run(
        ["/bin/sh", str(ROOT / ".ci/check-tools.sh")],
        env={"PATH": str(tools), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with only what a shell script needs: no Python, no make, no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("mktemp", "rm", "cat", "tail"):
        (folder / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    return folder


def fake(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_each_missing_tool_is_one_line(tools: Path) -> None:
    result = check_tools(tools)
    lines = result.stderr.splitlines()
    assert result.returncode == 1
    assert len(lines) == 3
    for line, name, remedy in zip(
        lines, ("Python", "make", "C++17"), ("python3", "make", "g++"), strict=True
    ):
        assert line.startswith("missing: ")
        assert name in line
        assert f"install {remedy}" in line


def test_a_compiler_that_does_not_compile_is_missing(tools: Path) -> None:
    fake(tools, "make", "exit 0")
    fake(tools, "python3", "exit 0")
    fake(tools, "g++", "exit 1")
    result = check_tools(tools)
    assert result.returncode == 1
    assert [line.split(":")[1].split()[1] for line in result.stderr.splitlines()] == ["C++17"]


def test_python_without_venv_is_named(tools: Path) -> None:
    fake(tools, "make", "exit 0")
    fake(tools, "python3", 'case "$2" in *ensurepip*) exit 1;; esac')
    result = check_tools(tools, CXX="true")
    assert result.returncode == 1
    assert "install python3-venv" in result.stderr.splitlines()[0]


def test_this_machine_has_the_tools() -> None:
    path = os.environ["PATH"]
    result = subprocess.run(
        ["/bin/sh", str(ROOT / ".ci/check-tools.sh")],
        env={"PATH": path, "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("version", "needed", "taken"),
    [
        ("3.22.0", "3.22", True),
        ("3.100.1", "3.22", True),
        ("3.9.9", "3.22", False),
        ("", "3.22", False),
    ],
)
def test_new_enough(tmp_path: Path, version: str, needed: str, taken: bool) -> None:
    fake(tmp_path, "cmake", f"echo cmake version {version}")
    path = f"{tmp_path}:/usr/bin:/bin"
    command = [str(ROOT / ".ci/new-enough.sh"), "cmake", needed]
    result = subprocess.run(
        command, env={"PATH": path}, capture_output=True, text=True, check=False
    )
    assert (result.stdout.strip() == str(tmp_path / "cmake")) is taken
    assert (result.returncode == 0) is taken
