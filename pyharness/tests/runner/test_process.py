from __future__ import annotations

import os
import sys
import time

import pytest

from pyharness.runner import process
from pyharness.runner.process import Children, Ended, run_process


def run(code: str, stdin: bytes = b"", timeout_s: float = 20.0) -> Ended:
    return run_process(
        Children(), (sys.executable, "-I", "-S", "-c", code), stdin, {"A": "1"}, (), timeout_s
    )


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(") ", 1)[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


@pytest.fixture(params=[True, False], ids=["pidfd", "no pidfd"])
def _with_and_without_pidfd(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.param:
        monkeypatch.setattr(process, "_pidfd", lambda pid: -1)


@pytest.mark.usefixtures("_with_and_without_pidfd")
def test_streams_and_exit_code() -> None:
    code = "import sys, os; print(sys.stdin.read() * 2, end=''); os.write(2, b'no'); sys.exit(7)"
    ended = run(code, b"x" * 300_000)
    assert ended.returncode == 7
    assert ended.stdout == b"x" * 600_000
    assert ended.stderr_tail == b"no"
    assert not ended.timed_out and not ended.overflowed


def test_the_environment_is_exactly_the_one_given() -> None:
    ended = run("import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))")
    assert ended.stdout == b"['A']\n"


def test_only_the_last_of_stderr_is_kept() -> None:
    ended = run("import sys; sys.stderr.write('a' * 3_000_000 + 'end')")
    assert len(ended.stderr_tail) == process.TAIL_BYTES
    assert ended.stderr_tail.endswith(b"aend")


def test_a_signal_is_a_negative_exit_code() -> None:
    assert run("import os; os.kill(os.getpid(), 11)").returncode == -11


def test_an_overlong_output_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "REPLY_LIMIT_BYTES", 100_000)
    ended = run("while True: print('x' * 1000)")
    assert ended.overflowed
    assert len(ended.stdout) < 1_000_000


@pytest.mark.usefixtures("_with_and_without_pidfd")
def test_a_time_out_kills_the_whole_group() -> None:
    code = "import os, time; pid = os.fork(); print(pid or os.getpid(), flush=True); time.sleep(60)"
    began = time.monotonic()
    ended = run(code, timeout_s=1.0)
    assert ended.timed_out and ended.returncode == -9
    assert time.monotonic() - began < 10
    grandchild = int(ended.stdout.split()[0])
    assert gone(grandchild)
    assert gone(ended.pid)


def test_a_grandchild_that_holds_the_pipes_is_not_waited_for() -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(60)\nprint('done')"
    began = time.monotonic()
    ended = run(code)
    assert ended.stdout == b"done\n" and not ended.timed_out
    assert time.monotonic() - began < 10


def test_an_interrupt_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupted(watch: process._Watch) -> None:
        pipe = watch._pipes[0].fileno()
        os.set_blocking(pipe, True)
        started.append(int(os.read(pipe, 20)))
        raise KeyboardInterrupt

    monkeypatch.setattr(process._Watch, "until_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    assert gone(started[0])


def test_a_program_that_is_not_there_is_an_oserror() -> None:
    with pytest.raises(OSError, match="No such file"):
        run_process(Children(), ("/nonexistent/program",), b"", {}, (), 5.0)
