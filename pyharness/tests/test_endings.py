"""Output that goes away and signals, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyharness.errors import Exit

ROOT = Path(__file__).resolve().parents[2]
# The command line on toy arms, as the console script starts it.
TOY = """
import sys, threading
sys.path.insert(0, sys.argv.pop(1))
from pyharness import cli, commands, record
from pyharness.tests.fake_arms import NEW, OLD, FakeRunner, broken
class Slow(FakeRunner):
    ended = threading.Event()
    def run(self, plan, library, out):
        print("began", plan.role, file=sys.stderr, flush=True)
        out.mkdir(parents=True)
        self.ended.wait()
        raise InterruptedError
    def stop(self):
        self.ended.set()
kind = sys.argv.pop(1)
candidate = broken("rows") if kind == "red" else NEW
commands.LocalRunner = Slow if kind == "slow" else FakeRunner
commands.open_pair = lambda stack, settings: {"baseline": OLD, "candidate": candidate}
cli.main()
"""
RUN = ["--mt", "2-8", "--synthetic", "gdn", "--prefix", "2", "--no-trace"]


def command(kind: str, folder: Path, *arguments: str) -> list[str]:
    line = [sys.executable, "-c", TOY, str(ROOT), kind, *arguments]
    return [*line, "--out", str(folder)]


def code_with_closed_pipe(line: list[str], reads: int, stderr: bool = False) -> tuple[int, str]:
    """The exit code when the reader of stdout goes away after so many bytes."""
    running = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if stderr else subprocess.PIPE
    )
    assert running.stdout is not None
    os.read(running.stdout.fileno(), reads) if reads else None
    running.stdout.close()
    said = ""
    if running.stderr:
        with running.stderr as stream:
            said = stream.read().decode()
    return running.wait(60), said


@pytest.mark.parametrize("reads", [0, 1])
@pytest.mark.parametrize("options", [[], ["--json", "-"]])
def test_a_reader_that_goes_away_does_not_end_the_run(
    tmp_path: Path, reads: int, options: list[str]
) -> None:
    code, said = code_with_closed_pipe(command("green", tmp_path, *RUN, *options), reads)
    assert code == Exit.SAME and "Traceback" not in said
    assert len(list(tmp_path.glob("*/verdict.json"))) == 1


def test_a_red_run_stays_red_and_both_streams_may_go(tmp_path: Path) -> None:
    line = command("red", tmp_path, *RUN)
    assert code_with_closed_pipe(line, 1, stderr=True)[0] == Exit.DIFFERS
    assert len(list(tmp_path.glob("*/verdict.json"))) == 1
    assert code_with_closed_pipe(command("red", tmp_path, "show", "last"), 0)[0] == Exit.DIFFERS


@pytest.mark.parametrize(
    "arguments", [["archive", "log"], ["archive", "list", "--json"], ["config", "show"], ["--help"]]
)
def test_other_commands_end_well_too(arguments: list[str]) -> None:
    line = [sys.executable, "-m", "pyharness", *arguments]
    assert code_with_closed_pipe(line, 0) == (Exit.SAME, "")


def test_a_full_disk_behind_stdout_is_said_and_the_verdict_is_there(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("green", tmp_path, *RUN), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == Exit.USAGE and done.stderr.count("\n") == 1
    assert "stdout cannot be written: No space left on device" in done.stderr
    assert len(list(tmp_path.glob("*/verdict.json"))) == 1


def test_an_interrupt_while_modules_are_imported_is_one_line() -> None:
    code = """
import builtins, sys
sys.path.insert(0, sys.argv.pop(1))
from pyharness.__main__ import main
def interrupted(*arguments):
    raise KeyboardInterrupt
builtins.__import__ = interrupted
main()
"""
    line = [sys.executable, "-c", code, str(ROOT)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "run-ab: interrupted\n")


def test_closed_streams(tmp_path: Path) -> None:
    line = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command("green", tmp_path, *RUN)]
    assert subprocess.run(line, check=False).returncode == Exit.SAME
    assert len(list(tmp_path.glob("*/verdict.json"))) == 1


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([signal.SIGINT], Exit.INTERRUPTED),
        ([signal.SIGINT] * 4, Exit.INTERRUPTED),
        ([signal.SIGTERM, signal.SIGINT], Exit.TERMINATED),
        ([signal.SIGHUP], Exit.HUNG_UP),
    ],
)
def test_signals(tmp_path: Path, sent: list[signal.Signals], code: Exit) -> None:
    line = command("slow", tmp_path, *RUN)
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    with running.stderr as stream:
        assert stream.readline().startswith("began")
        time.sleep(0.5)  # the pool has its threads
        for number in sent:
            running.send_signal(number)
            time.sleep(0.02)
        said = stream.read()
    assert running.wait(30) == code and "Traceback" not in said
    assert said.splitlines()[-1].startswith("run-ab: ")
    (run,) = tmp_path.iterdir()
    assert [p.name for p in run.iterdir()] == ["plan.json"]
