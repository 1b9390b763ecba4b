"""A build that was forgotten is said, on one line, and decides nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pyharness import cli
from pyharness.errors import Exit
from pyharness.stale import _sources, stale
from pyharness.tests.place import Place
from pyharness.tests.stubs import stub

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/cpu/libvllm_cuda.so"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a library of each backend, built after its sources."""
    for name in ("api.cpp", "arith/sums.h", "cpu/pool.cpp", "cuda/project.cu", "tools/bench.cu",
                 "tests/test_pool.cpp", "cuda/NOTES.md", "exports.map"):  # fmt: skip
        path = tmp_path / "native" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (1000, 1000))
    for backend in ("cpu", "cuda", "mine"):
        path = tmp_path / f"build/{backend}/libvllm_cuda.so"
        path.parent.mkdir(parents=True)
        shutil.copy(stub(), path)
        os.utime(path, (2000, 2000))
    (tmp_path / "pyproject.toml").write_text("[tool.vllm-ab]\n")
    return tmp_path


def touch(path: Path, time: int = 3000) -> None:
    os.utime(path, (time, time))


@pytest.mark.parametrize(
    ("source", "backends"),
    [
        ("api.cpp", {"cpu", "cuda", "mine"}),
        ("arith/sums.h", {"cpu", "cuda", "mine"}),
        ("exports.map", {"cpu", "cuda", "mine"}),
        ("cpu/pool.cpp", {"cpu", "mine"}),
        ("cuda/project.cu", {"cuda"}),
        ("cuda/NOTES.md", set()),
        ("tools/bench.cu", set()),
        ("tests/test_pool.cpp", set()),
    ],
)
def test_a_source_that_is_newer(project: Path, source: str, backends: set[str]) -> None:
    libraries = {b: project / f"build/{b}/libvllm_cuda.so" for b in ("cpu", "cuda", "mine")}
    assert not any(stale(path, project) for path in libraries.values())
    touch(project / "native" / source, 2000)
    assert not any(stale(path, project) for path in libraries.values())  # just built
    touch(project / "native" / source)
    made = {"cpu": "`make native` builds it again", "cuda": "`make cuda` builds it again"}
    for backend, path in libraries.items():
        said = f"{path}: is older than native/{source}: {made.get(backend, 'build it again')}"
        assert stale(path, project) == (said if backend in backends else "")


def test_a_library_elsewhere_is_nobodys_business(project: Path) -> None:
    touch(project / "native/api.cpp")
    elsewhere = project / "libvllm_cuda.so"
    shutil.copy2(project / "build/cpu/libvllm_cuda.so", elsewhere)
    assert stale(project / "build/../libvllm_cuda.so", project) == ""
    assert stale(elsewhere, project) == "" and stale(project / "build/none.so", project) == ""


def test_it_is_said_once_and_decides_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    place = Place(project / "site", stub("step-m-differs"))
    line = ["--m1", "--synthetic", "gdn", "--prefix", "2"]
    told = []
    for time in (1000, 3000):
        touch(project / "native/api.cpp", time)
        capfd.readouterr()
        assert place.run(*line, *place.out) == Exit.SAME
        told.append(capfd.readouterr())
        assert cli.run(["doctor", *place.where]) == Exit.SAME
        (candidate,) = re.findall(r"^ok +candidate .*", capfd.readouterr().out, re.MULTILINE)
        assert ("is older than native/api.cpp" in candidate) is (time == 3000)
    library = project / "build/cpu/libvllm_cuda.so"
    assert [t.err for t in told] == [
        "",
        f"note: {library}: is older than native/api.cpp: `make native` builds it again\n",
    ]


@pytest.mark.skipif(not BUILT.exists(), reason="no CPU library; build it with `make native`")
def test_every_source_of_the_cpu_library_is_watched() -> None:
    """By what the compiler read."""
    ninja = shutil.which("ninja")
    if ninja is None or not (BUILT.parent / ".ninja_deps").exists():
        pytest.skip("the build keeps no dependencies that ninja can tell")
    told = subprocess.run(
        [ninja, "-C", str(BUILT.parent), "-t", "deps"], capture_output=True, text=True, check=True
    ).stdout
    read: set[str] = set()
    for block in told.split("\n\n"):
        if block.startswith("CMakeFiles/vllm_cuda.dir/"):
            read |= set(re.findall(r"^    \S*/native/(\S+)$", block, re.MULTILINE))
    assert "api.cpp" in read and len(read) > 20
    native = ROOT / "native"
    watched = {str(path.relative_to(native)) for _, path in _sources(native, "cpu")}
    assert read | {"exports.map"} <= watched
