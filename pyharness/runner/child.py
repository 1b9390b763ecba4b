"""How a worker process is started, and what is said of the way it ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyharness.errors import Exit, GateRefusal, HarnessError, InputError

# Of a worker's exit codes, those that say that it is not the library that failed.
RAISED: dict[int, type[HarnessError]] = {
    Exit.USAGE: InputError,
    Exit.REFUSED: GateRefusal,
    Exit.DEFECT: HarnessError,
}
_ROOT = Path(__file__).resolve().parents[2]
# -I keeps the user's folders and PYTHON* variables out; the worker is that of this very package.
# A folder that is on the path already, as site-packages is, stays behind the standard library.
_BOOT = (
    "import sys; sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]); "
    "from MODULE import main; main()"
)
_SAID_CHARS = 300
_CALL_BYTES = 4096


def worker_command(module: str) -> tuple[str, ...]:
    """The command line that runs ``main`` of a module of this package."""
    return sys.executable, "-I", "-c", _BOOT.replace("MODULE", module), str(_ROOT)


def call_in_progress(trace_fd: int) -> str:
    """The native call that the worker's trace names, "" before the first."""
    return os.pread(trace_fd, _CALL_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace")


def during(call: str) -> str:
    """To be put after a reason; "" where no call was made yet."""
    return f" during {call}" if call else ""


def killed_by(number: int, call: str) -> str:
    """The name of the signal and the call in progress."""
    known = {s.value: s.name for s in signal.Signals}
    hint = " (out of memory, or killed by hand)" if number == signal.SIGKILL else ""
    return f"killed by {known.get(number, f'signal {number}')}{hint}{during(call)}"


def with_last_words(reason: str, stderr_tail: bytes) -> str:
    """The reason and the last line that the library printed, as one line."""
    lines = stderr_tail.decode("utf-8", "replace").split("\n")
    said = next((s for line in reversed(lines) if (s := _printable(line))), "")
    return f"{reason}; it printed last: {said[:_SAID_CHARS]}" if said else reason


def _printable(line: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in line).split())
