"""A worker process that stays: one library, one model, and an answer to each question."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from pyharness.errors import HarnessError, LibraryFailure
from pyharness.runner.base import SealedLibrary
from pyharness.runner.child import (
    RAISED,
    call_in_progress,
    during,
    killed_by,
    with_last_words,
    worker_command,
)
from pyharness.runner.environment import worker_environment
from pyharness.runner.process import TAIL_BYTES, Children
from pyharness.speed.pairs import LONGEST_NS
from pyharness.values import ArmPlan, Digest, LibraryFacts, from_json, to_json

_CHUNK = 1 << 16
_REPLY_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class SpeedRequest:
    """The first line to a worker that times steps. Its plan's script is not run: ``prefix`` is."""

    plan: ArmPlan
    rows: int  # of a step; 1: single steps
    prefix: tuple[int, ...]  # tokens before the first timed one
    stream: tuple[int, ...]  # tokens by position, repeated
    cold: bool = False  # evict the caches before each call
    library_fd: int = -1
    library_sha256: Digest | None = None
    library_size_bytes: int = 0
    trace_fd: int = -1
    parent_pid: int = 0


@dataclass(frozen=True)
class Ready:
    """The first answer."""

    library: LibraryFacts
    by_rows: bool  # an M-row step is timed; False: single steps


class WarmWorker:
    """Started at once; ``name`` is who is blamed. Close it, or use it in a ``with``."""

    def __init__(
        self, name: str, request: SpeedRequest, library: SealedLibrary, children: Children
    ) -> None:
        self.name, self._children = name, children
        self._timeout_s = request.plan.timeout_s
        self._reply, self._tail = bytearray(), bytearray()
        self._trace = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by close
        plan = {
            **to_json(request),
            "library_fd": library.fd,
            "library_sha256": str(library.digest),
            "library_size_bytes": library.size_bytes,
            "trace_fd": self._trace.fileno(),
            "parent_pid": os.getpid(),
        }
        try:
            self._child = subprocess.Popen(
                worker_command("pyharness.speed.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=worker_environment(request.plan),
                pass_fds=(library.fd, self._trace.fileno()),
                start_new_session=True,
            )
        except OSError as e:
            self._trace.close()
            raise LibraryFailure(f"the worker process cannot be started: {e.strerror}") from None
        children.began(self._child.pid)
        self._selector = selectors.DefaultSelector()
        for pipe, into in ((self._child.stdout, self._reply), (self._child.stderr, self._tail)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, into)
        try:
            self.ready = self._ready(plan)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WarmWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing of it is left when this returns."""
        self._children.ended(self._child.pid)
        self._child.wait()
        self._selector.close()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of an unsent line
                    pipe.close()
        self._trace.close()

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer. LibraryFailure, or what the worker's exit code means, where it gives none."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ended: what it said before is still to be read
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        answer = self._line()
        if answer is None:
            raise self._failure(self._ending())
        if "failed" in answer:
            # Its exit code counts only with its word: a library can exit with any code.
            raise self._failure(str(answer["failed"]), RAISED.get(self._child.wait()))
        return answer

    def _ready(self, plan: dict[str, Any]) -> Ready:
        """A library can write to the same pipe: what it forges is no answer."""
        answer = self.ask(plan)
        try:
            ready: Ready = from_json(Ready, answer)
        except ValueError as e:
            raise self._failure(f"the worker's answer is unreadable: {e}") from None
        return ready

    def sample(self, calls: int) -> int:
        """Nanoseconds inside the library."""
        nanoseconds = self.ask({"calls": calls}).get("ns")
        if not isinstance(nanoseconds, int) or not 0 < nanoseconds < LONGEST_NS:
            raise self._failure("the worker gives no time")
        return nanoseconds

    def rows(self) -> str:
        """Digests of the rows that it timed so far, from the first position after the prefix on."""
        told = self.ask({"rows": True}).get("rows")
        if not isinstance(told, str):
            raise self._failure("the worker gives no digests")
        return told

    # ---- reading ---------------------------------------------------------------------------------

    def _line(self) -> dict[str, Any] | None:
        """The next line of its stdout; None when it has ended without one."""
        deadline = time.monotonic() + self._timeout_s
        while b"\n" not in self._reply:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._failure(f"timed out after {self._timeout_s:g} s{during(self._call())}")
            if not self._read(left):
                return None
            if len(self._reply) > _REPLY_LIMIT_BYTES:
                raise self._failure("the worker wrote far more than an answer to its stdout")
        line, _, rest = bytes(self._reply).partition(b"\n")
        self._reply[:] = rest
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError("not an object")
        except ValueError:
            raise self._failure(f"the worker's answer is unreadable: {line[:80]!r}") from None
        return value

    def _read(self, timeout_s: float) -> bool:
        """Waits for output; False when its stdout has ended."""
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, _CHUNK)
            key.data.extend(data)
            del self._tail[:-TAIL_BYTES]
            if not data:
                self._selector.unregister(key.fileobj)
                if key.data is self._reply:
                    return False
        return True

    # ---- how it went wrong -----------------------------------------------------------------------

    def _ending(self) -> str:
        try:
            code = self._child.wait(5)
        except subprocess.TimeoutExpired:
            return f"the worker closed its stdout{during(self._call())}"
        if code >= 0:
            return f"the worker exited with code {code} and no answer{during(self._call())}"
        return killed_by(-code, self._call())

    def _call(self) -> str:
        return call_in_progress(self._trace.fileno())

    def _failure(self, reason: str, kind: type[HarnessError] | None = None) -> HarnessError:
        told = with_last_words(reason, bytes(self._tail))
        return (kind or LibraryFailure)(f"{self.name}: {told}")
