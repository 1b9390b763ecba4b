"""``archive recompute``: the digests of an acceptance, asked of another library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyharness import cli, gate, record
from pyharness.archive import add
from pyharness.errors import Exit
from pyharness.tests.goldens import golden
from pyharness.tests.stubs import stub

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/cpu/libvllm_cuda.so"
SOURCES = record.sources_digest()
GOLDEN = "tiny-hybrid"

pytestmark = pytest.mark.skipif(
    not BUILT.exists(), reason="no CPU library; build it with `make native`"
)


class Place:
    """An archive in which a library was accepted by a run on a synthetic model and a golden one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = ["--archive", str(folder / "archive"), "--pin", str(folder / "archive.pin")]

    def __call__(self, *arguments: str | Path) -> int:
        return int(cli.run([*map(str, arguments), *self.where]))

    def recompute(self, *arguments: str | Path) -> int:
        return self("archive", "recompute", "new", "--candidate", BUILT, *arguments)

    def record(self) -> dict[str, Any]:
        (run,) = (self.folder / "runs").iterdir()
        value: dict[str, Any] = json.loads((run / "record.json").read_bytes())
        return value

    def with_record(self, label: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Another library in the archive, whose record is the run's, changed."""
        library = self.folder / f"{label}.so"
        library.write_bytes((self.folder / "new.so").read_bytes() + label.encode())
        value = self.record()
        digest = gate.open_candidate(library)
        value["libraries"]["candidate"]["digest"] = str(digest.digest)
        digest.close()
        change(value)
        add(
            self.folder / "archive", self.folder / "archive.pin", library,
            label=label, why="x", record=json.dumps(value).encode(),
        )  # fmt: skip


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = Place(tmp_path_factory.mktemp("accepted"))
    new, moved = place.folder / "new.so", place.folder / "elsewhere" / GOLDEN
    shutil.copytree(golden(GOLDEN), moved)
    assert place("archive", "add", BUILT, "--label", "old", "--why", "x") == Exit.SAME
    new.write_bytes(BUILT.read_bytes() + b"new")
    line = ["--m1", "--mt", "2", "--rb", "2", "--prefix", "0", "--synthetic", "gdn"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "sources_digest", lambda: SOURCES)
        out = ["--out", str(place.folder / "runs")]
        assert place(*line, "--model", moved, "--candidate", new, *out) == Exit.SAME
    told = ["--label", "new", "--why", "x", *out]
    new.rename(place.folder / "brought.so")  # as after a run on another machine
    assert place("accept", "last", *told) == Exit.USAGE
    assert place("accept", "last", *told, "--library", BUILT) == Exit.REFUSED
    assert place("accept", "last", *told, "--library", place.folder / "brought.so") == Exit.SAME
    (place.folder / "brought.so").rename(new)
    shutil.rmtree(moved)
    return place.folder


@pytest.fixture
def place(accepted: Path, tmp_path: Path) -> Place:
    shutil.copytree(accepted, tmp_path / "site")
    return Place(tmp_path / "site")


def test_a_model_is_found_by_its_bytes(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.recompute("--model", golden("tiny-gdn"), "--model", golden(GOLDEN)) == Exit.SAME
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["same", "gdn-tiny"] and second.split()[:2] == ["same", GOLDEN]
    runs = sum(
        a["arm"] == "candidate" and a["role"] == "arm" for a in place.record()["arms"]
    )  # of 2 models
    assert last.startswith(f"{runs} of {runs} runs of new again on ") and last.endswith("exit 0")


def test_a_model_that_is_not_here_proves_nothing(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.recompute() == Exit.UNPROVED
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("same ") and told[1].split()[:3] == ["not", "run", GOLDEN]
    assert "--model says where" in told[1]
    assert place.recompute("--model", golden("tiny-gdn")) == Exit.UNPROVED
    assert "none of the given models has its bytes" in capsys.readouterr().out
    assert place.recompute("--model", "nowhere") == Exit.USAGE
    assert "nowhere: there is no such model" in capsys.readouterr().err
    assert place.recompute("--only", "gdn-tiny/*") == Exit.SAME
    assert place.recompute("--only", "nothing") == Exit.USAGE


def test_one_digest_that_differs(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    def change(value: dict[str, Any]) -> None:
        arms = (a for a in value["arms"] if a["arm"] == "candidate" and a["role"] == "arm")
        state = next(a for a in arms if a["job"] == "gdn-tiny/p0/rb2")["result"]["files"][2]
        state["sha256"] = f"sha256:{'5' * 64}"

    place.with_record("bent", change)
    line = ["archive", "recompute", "bent", "--candidate", str(BUILT), "--only", "gdn-tiny/*"]
    assert place(*line) == Exit.DIFFERS
    told = capsys.readouterr().out.splitlines()
    assert told[0].split()[:4] == ["differs", "gdn-tiny", "1", "changes,"]
    expected = f"state.safetensors: expected sha256:{'5' * 64}, found sha256:"
    assert f"gdn-tiny/p0/rb2 candidate arm: {expected}" in told[1]
    assert place(*line, "--json") == Exit.DIFFERS
    whole = json.loads(capsys.readouterr().out)
    assert (whole["schema"], whole["exit_code"]) == ("ab-recompute/1", Exit.DIFFERS)
    assert len(whole["changes"]) == 1 and whole["summary"].endswith("exit 1")


def test_a_record_without_digests_proves_nothing(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    def empty(value: dict[str, Any]) -> None:
        for arm in value["arms"]:
            arm["result"]["files"] = []

    place.with_record("empty", empty)
    place.with_record("armless", lambda value: value.update(arms=[]))
    for label in ("empty", "armless"):
        assert place("archive", "recompute", label, "--candidate", BUILT) == Exit.UNPROVED
        assert f"the record of {label} holds no digest" in capsys.readouterr().err
    assert place("archive", "recompute", "old", "--candidate", BUILT) == Exit.UNPROVED
    told = capsys.readouterr().err
    assert "holds no record" in told and "accept one, or name one that has: " in told


def test_a_record_of_another_library_or_of_no_run(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(value: dict[str, Any]) -> None:
        value["libraries"]["candidate"]["digest"] = f"sha256:{'7' * 64}"

    place.with_record("other", other)
    place.with_record("none", lambda value: value.update(schema="x"))
    for label, said in (("other", "is not of a run of"), ("none", "not a record")):
        assert place("archive", "recompute", label, "--candidate", BUILT) == Exit.USAGE
        told = capsys.readouterr().err
        assert f"the record of {label}" in told and said in told and told.count("\n") == 1


def test_a_library_that_cannot_run(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["archive", "recompute", "new", "--candidate", str(stub("no-device"))]
    assert place(*line, "--only", "gdn-tiny/*") == Exit.FAILED
    assert "was done, is failed: vcuda_dev_open" in " ".join(capsys.readouterr().out.split())


def test_a_library_that_hangs_is_asked_three_times(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["archive", "recompute", "new", "--candidate", str(stub("hang")), "--timeout", "1.5"]
    assert place(*line, "--only", "gdn-tiny/*", "--json") == Exit.FAILED
    told = json.loads(capsys.readouterr().out)
    changes = told["changes"]
    asked = sum("is failed: timed out after 1.5 s" in line for line in changes)
    assert 3 <= asked <= 4  # a second process, in progress at the third time-out, ends by itself
    left = [line for line in changes if "not run: 3 runs of the candidate timed out" in line]
    assert len(left) == len(changes) - asked > 3
    assert told["summary"].startswith(f"{asked} of {len(changes)} runs of new again on ")
