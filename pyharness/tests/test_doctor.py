"""``doctor``: one line for each thing a run rests on, and the exit code that the run would have."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyharness import cli, device, doctor
from pyharness.errors import Exit
from pyharness.tests.stubs import stub


class Place:
    """An archive with one stub library, and another as the candidate."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capture = folder, capture
        self.where = ["--archive", str(folder / "archive"), "--pin", str(folder / "archive.pin")]
        added = ["archive", "add", str(stub()), "--label", "sound", "--why", "test", "--no-probe"]
        assert cli.run([*added, *self.where]) == Exit.SAME
        self.candidate: Path = stub("step-m-differs")

    def __call__(self, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit code, and the checks by name."""
        self.capture.readouterr()
        line = ["doctor", "--json", *self.where, "--candidate", str(self.candidate), *arguments]
        code = int(cli.run([*line, "--out", str(self.folder / "runs")]))
        told = json.loads(self.capture.readouterr().out)
        assert told["schema"] == "ab-doctor/1" and told["exit_code"] == code
        return code, {check["name"]: check for check in told["checks"]}


@pytest.fixture
def place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capfd)


def test_a_machine_on_which_a_run_can_work(place: Place) -> None:
    code, found = place()
    assert code == Exit.SAME
    for name in ("python", "numpy", "click", "rich", "sealing", "cpu portable", "archive", "runs"):
        assert found[name]["status"] == "ok", found[name]
    assert "sound" in found["baseline"]["told"] and "stub" in found["candidate"]["told"]
    assert all(c["told"] == " ".join(c["told"].split()) for c in found.values())


def test_one_line_each_for_people(place: Place) -> None:
    place.capture.readouterr()
    line = ["doctor", *place.where, "--candidate", str(place.candidate)]
    assert cli.run(line) == Exit.SAME
    *lines, last = place.capture.readouterr().out.splitlines()
    assert last == "exit 0: a run can work"
    assert all(line.split()[0] in ("ok", "absent", "broken") for line in lines)


@pytest.mark.parametrize(
    ("fault", "said"), [("segfault", "SIGSEGV"), ("no-device", "vcuda_dev_open")]
)
def test_a_candidate_that_cannot_run(place: Place, fault: str, said: str) -> None:
    place.candidate = stub(fault)
    code, found = place()
    assert code == Exit.FAILED and said in found["candidate"]["told"]
    assert found["candidate"]["status"] == "broken" and found["baseline"]["status"] == "ok"


def test_a_candidate_that_is_not_there_or_is_none(place: Place) -> None:
    place.candidate = place.folder / "none.so"
    code, found = place()
    assert code == Exit.USAGE and "make native" in found["candidate"]["told"]
    place.candidate.write_text("no library")
    code, found = place()
    assert code == Exit.USAGE and found["candidate"]["status"] == "broken"


def test_an_archive_that_was_bent_is_refused(place: Place) -> None:
    (blob,) = (
        p for p in (place.folder / "archive/blobs/sha256").iterdir() if p.stat().st_size > 9999
    )
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[5000] ^= 1
    blob.write_bytes(data)
    code, found = place()
    assert code == Exit.REFUSED and found["baseline"]["exit_code"] == Exit.REFUSED
    (place.folder / "archive/log/checkpoint").chmod(0o644)
    (place.folder / "archive/log/checkpoint").write_text("x")
    code, found = place()
    assert code == Exit.REFUSED and found["archive"]["status"] == "broken"


def test_a_place_without_an_archive_says_how_to_make_one(place: Place) -> None:
    shutil.rmtree(place.folder / "archive")
    (place.folder / "archive.pin").unlink()
    code, found = place()
    assert code == Exit.USAGE and "archive add" in found["archive"]["told"]


def test_no_memfd_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError("not allowed here")

    assert doctor._sealing().status == "ok"
    monkeypatch.setattr(os, "memfd_create", refuse)
    check = doctor._sealing()
    assert check.status == "absent" and "private copy" in check.told
    assert check.exit_code == Exit.SAME


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    needed, other = doctor._package("numpy", True), doctor._package("tokenizers", False)
    assert (needed.status, needed.exit_code) == ("broken", Exit.FAILED)
    assert (other.status, other.exit_code) == ("absent", Exit.SAME)


def test_instruction_sets_follow_the_flags_of_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = "flags\t: fpu avx2 fma f16c avx512f avx512bw\nflags\t: nothing\n"
    monkeypatch.setattr(doctor, "_cpuinfo", lambda: told)
    found = {c.name: c for c in doctor._instruction_sets()}
    assert found["cpu portable"].status == found["cpu avx2"].status == "ok"
    assert found["cpu avx512"].status == "absent" and "avx512vl" in found["cpu avx512"].told
    monkeypatch.setattr(doctor, "_cpuinfo", lambda: "")
    assert [c.status for c in doctor._instruction_sets()] == ["ok", "absent", "absent"]


def test_tools_that_are_missing_or_do_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.delenv("CXX", raising=False)
    assert doctor._tool("skopeo", "why").told == "not found: why"
    assert doctor._compiler().status == "absent"
    (tmp_path / "cmake").write_text("no program")
    (tmp_path / "cmake").chmod(0o755)
    assert "does not run" in doctor._tool("cmake", "").told


def test_a_gpu_is_told_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        def facts(self) -> dict[str, str]:
            return {"name": "a GPU", "driver": "1.2"}

    for gpu, status, said in ((Gpu(), "ok", "a GPU, driver 1.2"), (None, "absent", "no CUDA")):
        monkeypatch.setattr(device, "open_gpu", lambda _, gpu=gpu: contextlib.nullcontext(gpu))
        check = doctor._gpu()
        assert check.status == status and said in check.told and check.exit_code == Exit.SAME


def test_a_folder_of_runs_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert doctor._folder(tmp_path / "file" / "runs").exit_code == Exit.USAGE
    assert doctor._folder(tmp_path / "new" / "runs").status == "ok"
