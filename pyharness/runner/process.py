"""One child process: bounded output, a deadline, and nothing of it left when the call returns."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

REPLY_LIMIT_BYTES = 64 << 20
TAIL_BYTES = 16 << 10
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Ended:
    pid: int
    returncode: int  # negative: killed by that signal
    stdout: bytes
    stderr_tail: bytes  # the last TAIL_BYTES
    timed_out: bool = False
    overflowed: bool = False  # wrote more than REPLY_LIMIT_BYTES to stdout


class Children:
    """The processes in progress; ``stop`` ends them, and those to come, from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self.stopped = False

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            for pid in self._running:
                _kill_group(pid)

    def began(self, pid: int) -> None:
        with self._lock:
            self._running.add(pid)
            if self.stopped:
                _kill_group(pid)

    def ended(self, pid: int) -> None:
        """Kills what is left of the group; before the child is reaped its number is its own."""
        with self._lock:
            self._running.discard(pid)
            _kill_group(pid)


def run_process(
    children: Children,
    argv: Sequence[str],
    stdin: bytes,
    environment: Mapping[str, str],
    pass_fds: Sequence[int],
    timeout_s: float,
) -> Ended:
    """Runs to its end or the deadline, then kills the process group; each line on stdout moves the
    deadline to ``timeout_s`` from then on. OSError if it cannot start.
    """
    with tempfile.TemporaryFile() as request:
        request.write(stdin)  # a file, not a pipe: the child may read it late or never
        request.seek(0)
        child = subprocess.Popen(
            argv,
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    children.began(child.pid)
    watch = _Watch(child, timeout_s)
    try:
        watch.until_ended()
    finally:  # also on Ctrl-C: the child is in a session of its own and does not hear of it
        children.ended(child.pid)
        child.wait()
        watch.close()
    return Ended(
        child.pid,
        child.returncode,
        bytes(watch.reply),
        bytes(watch.tail),
        watch.timed_out,
        watch.overflowed,
    )


class _Watch:
    """Drains the child's pipes until it has ended, also when a grandchild holds them open."""

    def __init__(self, child: subprocess.Popen[bytes], timeout_s: float) -> None:
        assert child.stdout is not None and child.stderr is not None
        self.reply, self.tail = bytearray(), bytearray()
        self.timed_out = self.overflowed = False
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._pipes = (child.stdout, child.stderr)
        self._selector = selectors.DefaultSelector()
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)
        self._pidfd = _pidfd(child.pid)
        if self._pidfd >= 0:
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def until_ended(self) -> None:
        while not self.overflowed:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self.timed_out = True
                return
            ready = [key.fileobj for key, _ in self._selector.select(left)]
            for pipe in self._pipes:
                if pipe in ready:
                    self._read(pipe)
            if self._pidfd in ready or (self._pidfd < 0 and not self._selector.get_map()):
                for pipe in self._pipes:  # the process has ended; what it wrote is in the pipes
                    while self._read(pipe):
                        pass
                return

    def _read(self, pipe: IO[bytes]) -> bool:
        try:
            data = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._keep(pipe, data)
        else:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe)
        return bool(data) and not self.overflowed

    def _keep(self, pipe: IO[bytes], data: bytes) -> None:
        if pipe is self._pipes[0]:
            self.reply += data
            if b"\n" in data:
                self._deadline = time.monotonic() + self._timeout_s
            self.overflowed = len(self.reply) > REPLY_LIMIT_BYTES
        else:
            self.tail += data
            del self.tail[:-TAIL_BYTES]

    def close(self) -> None:
        self._selector.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        for pipe in self._pipes:
            pipe.close()


def _pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
