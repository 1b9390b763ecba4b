"""What does not run: unsupported by name, or raised where it is not the library's fault."""

from __future__ import annotations

import dataclasses
import errno
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pyharness.errors import GateRefusal, HarnessError, InputError, LibraryFailure
from pyharness.host import abi
from pyharness.host.script import needed_entries
from pyharness.runner import child
from pyharness.runner.local import LocalRunner
from pyharness.tests.runner.arms import EVERY_ENTRY, PLAN, SCRIPT, SINGLES, run
from pyharness.tests.stubs import sealed, stub
from pyharness.values import Digest, ModelSpec

# ---- what cannot run is unsupported, by name -----------------------------------------------------


@pytest.mark.parametrize("name", needed_entries(EVERY_ENTRY))
def test_a_missing_entry_that_the_script_needs(name: str, tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, script=EVERY_ENTRY)
    assert run(stub(), tmp_path / "whole", plan).status == "done"
    shutil.rmtree(tmp_path / "whole")
    result = run(stub(without=(name,)), tmp_path / "out", plan)
    assert (result.status, result.missing) == ("unsupported", (name,))
    assert result.reason == f"the library lacks {name}"
    assert result.library is not None and result.library.missing == (name,)
    assert list(tmp_path.iterdir()) == []


def test_all_missing_entries_are_named_and_nothing_was_run(tmp_path: Path) -> None:
    names = ("vcuda_dev_model_step_m", "vcuda_dev_model_mark", "vcuda_dev_model_rollback")
    result = run(stub("segfault", without=names), tmp_path / "out")
    assert (result.status, result.missing) == ("unsupported", names)


FORGED = Path(__file__).parents[1] / "attack" / "hostile.c"


@pytest.mark.parametrize(
    ("hostile", "without", "reason"),
    [
        ("forges-unsupported", (), "names no entry, yet the library lacks nothing that is needed"),
        ("forges-missing", (), "names vcuda_dev_model_state_read, yet the library lacks nothing"),
        # lacks it indeed, and this script has no call of it
        ("forges-unneeded", ("vcuda_dev_model_taps",), "names vcuda_dev_model_taps, yet"),
        (
            "forges-missing",
            ("vcuda_dev_model_mark",),
            "names vcuda_dev_model_state_read, yet the library lacks vcuda_dev_model_mark",
        ),
    ],
)
def test_the_word_unsupported_is_held_against_the_bytes_of_the_library(
    hostile: str, without: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    library = stub("", without, (str(FORGED), f'-DHOSTILE="{hostile}"'))
    result = run(library, tmp_path / "out")
    assert result.status == "failed" and reason in result.reason
    assert result.missing == () and result.library is None


def test_a_missing_entry_that_the_script_does_not_need(tmp_path: Path) -> None:
    names = ("vcuda_dev_model_step_m", "vcuda_dev_model_mark", "vcuda_dev_model_rollback")
    old = run(stub(without=names), tmp_path / "old", dataclasses.replace(PLAN, script=SINGLES))
    new = run(stub(), tmp_path / "new")
    assert old.status == "done"
    assert old.files == new.files


@pytest.mark.parametrize("name", abi.REQUIRED)
def test_a_missing_required_entry_is_a_failure(name: str, tmp_path: Path) -> None:
    result = run(stub(without=(name,)), tmp_path / "out")
    assert (result.status, result.reason) == (
        "failed",
        f"the library lacks required entries: {name}",
    )


def test_another_abi_version_is_a_failure(tmp_path: Path) -> None:
    result = run(stub(flags=("-DSTUB_ABI_VERSION=7",)), tmp_path / "out")
    assert result.status == "failed"
    assert result.reason.startswith("the library has ABI version 7, this harness speaks version 1")


# ---- what is not the library's fault is raised ---------------------------------------------------


def test_bytes_other_than_those_of_the_gate_are_refused(tmp_path: Path) -> None:
    with sealed(stub()) as library:
        other = dataclasses.replace(library, digest=Digest("1" * 64))
        with pytest.raises(
            GateRefusal, match=f"the library has {library.digest}, expected sha256:1"
        ):
            LocalRunner().run(PLAN, other, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    spec = ModelSpec("checkpoint", path=str(tmp_path / "none"))
    with pytest.raises(InputError, match="none"):
        run(stub(), tmp_path / "out", dataclasses.replace(PLAN, model=spec))


def test_a_script_that_records_nothing_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="records no row"):
        run(stub(), tmp_path / "out", dataclasses.replace(PLAN, script=SCRIPT[:2]))


def test_a_dump_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(InputError, match="out exists already"):
        run(stub(), tmp_path / "out")
    assert (tmp_path / "out" / "precious").read_text() == "x"


def test_a_machine_without_room_for_a_process_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(LibraryFailure, match="cannot be started: Resource temporarily unavailable"):
        run(stub(), tmp_path / "out")


def test_a_worker_that_cannot_start_is_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_ROOT", tmp_path)
    monkeypatch.setattr(child, "_BOOT", "raise SystemExit('no module named numpy')")
    with pytest.raises(HarnessError, match="does not run; it printed last: no module named numpy"):
        run(stub(), tmp_path / "out")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("print('hello')", r"result is unreadable \(.*\): b'hello'"),
        ("print('[1]')", r"result is unreadable"),
        ('print(\'{"status": "fine"}\')', r"result is unreadable \(ArmResult.status"),
        ('print(\'{"status": "done"}\\nmore\')', r"result is unreadable \(more than one line"),
        ('print(\'{"status": "done"}\'); raise SystemExit(9)', "exited with code 9"),
        ('print(\'{"status": "failed"}\')', "exited with code 0"),
        ('print(\'{"status": "done"}\')', "says done and does not name h_out.npy"),
    ],
)
def test_a_result_is_believed_only_if_it_is_whole(
    said: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "import json, os, sys; os.write(json.load(sys.stdin)['trace_fd'], b'vcuda_dev_open'); "
    monkeypatch.setattr(child, "_BOOT", trace + said)
    result = run(stub(), tmp_path / "out")
    assert result.status == "failed"
    assert re.search(reason, result.reason), result.reason


def test_files_that_are_not_the_ones_written_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = (
        "import pyharness.dumps as d; commit = d.DumpWriter.commit\n"
        "def later(self):\n"
        "    facts = commit(self); f = open(self._out / 'logits.npy', 'r+b'); f.seek(-1, 2)\n"
        "    f.write(b'!'); f.close(); return facts\n"
        "d.DumpWriter.commit = later\n"
    )
    head, tail = child._BOOT.split("from MODULE", 1)
    monkeypatch.setattr(child, "_BOOT", f"{head}\n{patch}from MODULE{tail}")
    result = run(stub(), tmp_path / "out")
    assert result.status == "failed"
    assert re.search(r"logits.npy has \d+ bytes and sha256:.*, the worker wrote", result.reason)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_leaves_out_the_digest_of_a_row_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = "import pyharness.rows as r; r.row_digests = lambda *_: ''"
    head, tail = child._BOOT.split("from MODULE", 1)
    monkeypatch.setattr(child, "_BOOT", f"{head}{patch}\nfrom MODULE{tail}")
    result = run(stub(), tmp_path / "out")
    assert (result.status, result.reason) == ("failed", "the worker digested 0 rows of 9")
    assert list(tmp_path.iterdir()) == []
