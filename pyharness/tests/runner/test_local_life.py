"""Life and death of a worker: its parent, interrupts, the environment."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyharness.runner import process
from pyharness.runner.local import LocalRunner
from pyharness.tests.runner.arms import PLAN, run
from pyharness.tests.runner.test_process import gone
from pyharness.tests.stubs import SOURCE, sealed, stub


def test_the_worker_dies_with_its_parent(tmp_path: Path) -> None:
    library = stub("hang")
    code = f"""
    import sys
    sys.path.insert(0, {str(SOURCE.parents[3])!r})
    from pathlib import Path
    from pyharness.tests.runner.arms import PLAN, run
    from pyharness.runner import process
    popen = process.subprocess.Popen
    def announced(*a, **k):
        child = popen(*a, **k)
        print(child.pid, flush=True)
        return child
    process.subprocess.Popen = announced
    run(Path({str(library)!r}), Path({str(tmp_path / "out")!r}))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        partial = tmp_path / f".out.partial-{parent.pid}"
        wait_for(partial.exists)
        parent.send_signal(signal.SIGKILL)
    assert gone(worker)
    assert not (tmp_path / "out").exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = tmp_path / f".out.partial-{os.getpid()}"

    def interrupted(watch: process._Watch) -> None:
        wait_for(partial.exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(process._Watch, "until_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(stub("hang"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_stop_ends_the_arms_of_other_threads(tmp_path: Path) -> None:
    runner, ended = LocalRunner(), []
    with sealed(stub("hang")) as library:
        threads = [
            threading.Thread(target=lambda o=out: ended.append(runner.run(PLAN, library, o)))
            for out in (tmp_path / "a", tmp_path / "b")
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        runner.stop()
        for thread in threads:
            thread.join(20.0)
        ended.append(runner.run(PLAN, library, tmp_path / "later"))
    assert [r.reason for r in ended] == ["stopped"] * 3
    assert list(tmp_path.iterdir()) == []


def wait_for(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_the_environment_does_not_reach_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mmax 0: without the allowlist the variable of this process would enable M rows."""
    monkeypatch.setenv("VLLM_CUDA_Q35_MM", "8")
    monkeypatch.setenv("LD_PRELOAD", str(stub("load-crash")))
    result = run(stub(), tmp_path / "out", dataclasses.replace(PLAN, mmax=0))
    assert result.status == "failed"
    assert "VCUDA_E_UNSUPPORTED (3): M rows are not enabled" in result.reason
