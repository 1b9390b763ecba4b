"""The worker as a program of its own; what it does within a runner is in runner/test_local.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

from pyharness import worker
from pyharness.dumps import Dump
from pyharness.errors import Exit, LibraryFailure
from pyharness.runner.base import WorkerRequest
from pyharness.runner.child import worker_command
from pyharness.tests.runner.arms import PLAN
from pyharness.tests.stubs import sealed, stub
from pyharness.values import ArmResult, Op, from_json, to_json

BOOT = worker_command("pyharness.worker")[2:]  # without the interpreter and -I
MODULE = ("-m", "pyharness.worker")


def isolated(*arguments: str) -> list[str]:
    return [sys.executable, "-I", *arguments]


def work(
    argv: list[str], out: Path, fault: str = "", request: str | None = None
) -> tuple[int, ArmResult, bytes]:
    with sealed(stub(fault)) as library:
        made = WorkerRequest(PLAN, library.fd, library.digest, library.size_bytes, str(out))
        done = subprocess.run(
            argv,
            input=(request if request is not None else json.dumps(to_json(made))).encode(),
            capture_output=True,
            pass_fds=(library.fd,),
        )
    assert done.stdout.count(b"\n") == 1, done
    return done.returncode, from_json(ArmResult, json.loads(done.stdout)), done.stderr


def test_without_a_runner(tmp_path: Path) -> None:
    code, result, stderr = work(isolated(*BOOT), tmp_path / "out")
    assert (code, result.status, stderr) == (0, "done", b"")
    assert Dump.open(tmp_path / "out").rows == result.rows == 4


def test_as_a_module_of_the_installed_package(tmp_path: Path) -> None:
    if subprocess.run(isolated("-c", "import pyharness"), capture_output=True).returncode:
        pytest.skip("the package is not installed for this interpreter")
    assert work(isolated(*MODULE), tmp_path / "out")[1].status == "done"


def test_what_the_library_prints_goes_to_stderr(tmp_path: Path) -> None:
    code, result, stderr = work(isolated(*BOOT), tmp_path / "out", "prints")
    assert (code, result.status) == (0, "done")
    assert b'{"status": "done"}\n' in stderr and b"loading kernels\n" in stderr


def test_an_error_of_the_library_has_its_exit_code(tmp_path: Path) -> None:
    code, result, stderr = work(isolated(*BOOT), tmp_path / "out", "nan")
    assert (code, result.status, stderr) == (Exit.FAILED, "failed", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("request_", ["", "nonsense", "{}", "[]", '{"plan": 3}'])
def test_an_unreadable_request_is_one_line(request_: str, tmp_path: Path) -> None:
    code, result, stderr = work(isolated(*BOOT), tmp_path / "out", request=request_)
    assert (code, result.status, stderr) == (Exit.USAGE, "failed", b"")
    assert result.reason.startswith("the worker cannot read its request: ")


def test_a_defect_of_the_harness_says_where_and_exits_70(tmp_path: Path) -> None:
    patch = "import pyharness.host.script as s; s.reach = lambda script: 1 // 0; "
    flag, boot, root = BOOT
    before, after = boot.split("from pyharness.worker")
    argv = isolated(flag, f"{before}{patch}from pyharness.worker{after}", root)
    code, result, stderr = work(argv, tmp_path / "out")
    assert (code, stderr) == (Exit.DEFECT, b"")
    assert result.reason.startswith(
        "defect of the harness in the worker: ZeroDivisionError at <string>:1"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", get_args(get_type_hints(Op)["kind"]))
def test_the_cursor_is_looked_at_after_every_kind_of_call(kind: Any) -> None:
    engine: Any = SimpleNamespace(info=lambda: SimpleNamespace(position=3))
    worker._check_position(engine, 3, Op(kind))
    with pytest.raises(LibraryFailure, match=f"position is 3 after a {kind}, expected 2"):
        worker._check_position(engine, 2, Op(kind))
