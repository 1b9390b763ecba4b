"""Output that cannot be written, and signals: neither leaves a run half done, and neither ends with
an exit code that means something else.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from pyharness.errors import Exit

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUICK_S = 2.0  # signals that come within this time are one wish
_last = -_QUICK_S  # monotonic time of the signal that was heard last


class Signalled(KeyboardInterrupt):
    """Ctrl-C, or another signal that asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def catch_signals() -> None:
    """A signal unwinds the program, which ends its workers and removes what they wrote; impatient
    further ones do not disturb that.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _unwind)


def _unwind(number: int, frame: FrameType | None) -> None:
    global _last
    now = time.monotonic()
    if now - _last >= _QUICK_S:
        _last = now
        raise Signalled(number)


def ignore_signals() -> None:
    """What is left to do is to say how it ended."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def said_of_signal(error: BaseException) -> tuple[str, Exit]:
    """What is said of a program that a signal ended, and its exit code."""
    ignore_signals()
    code = Exit(128 + getattr(error, "number", signal.SIGINT))
    words = {Exit.HUNG_UP: "the terminal went away", Exit.TERMINATED: "terminated"}
    return words.get(code, "interrupted"), code


class _Sink(io.RawIOBase):
    """A descriptor for writing that takes everything, also what it can no longer pass on."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self.error: OSError | None = None  # the first; nothing is written after it

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while not self.error and done < len(view):
            try:
                done += os.write(self._fd, view[done:])
            except OSError as e:
                self.error = e
        return len(view)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)


def guard_output() -> Callable[[], str]:
    """Lets stdout and stderr go away under the program, which then goes on to its end.

    The function that is returned flushes both and says why stdout took less than all: "" if it took
    everything, or if its reader closed the pipe, which is the reader's right.
    """
    for fd in range(3):  # closed by the caller: else the next file to be opened is stdout
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sink = _guarded(sys.stdout, 1)
    sys.stderr, _ = _guarded(sys.stderr, 2)

    def lost() -> str:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        error = sink.error
        if error is None or error.errno == errno.EPIPE:
            return ""
        return f"stdout cannot be written: {error.strerror}"

    return lost


def _guarded(stream: Any, fd: int) -> tuple[io.TextIOWrapper, _Sink]:
    sink = _Sink(fd)
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.flush()
    made = io.TextIOWrapper(
        io.BufferedWriter(sink),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=fd == 2 or sink.isatty(),
    )
    return made, sink
