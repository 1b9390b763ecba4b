"""The process that keeps one library and its model warm and times steps when it is asked to.

Messages are lines of JSON. The first one is a ``SpeedRequest``; then each ``{"calls": n}`` is
answered with the nanoseconds that n calls took inside the library, and ``{"rows": true}`` with the
digests of the rows that they gave. End of input ends the process. Time is taken around the native
call only: this side's checks of the outputs stay outside of it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from pyharness.errors import Exit, HarnessError, InputError, LibraryFailure
from pyharness.host import abi, loader
from pyharness.host.session import Rows, Session
from pyharness.inputs.model import load_model
from pyharness.rows import DIGITS, row_digests
from pyharness.runner.warm import Ready, SpeedRequest
from pyharness.speed.cold import evictor
from pyharness.values import from_json, to_json
from pyharness.worker import Trace, claim_stdout, confine, library_facts

ROOM = 512  # rows that are timed between two resets; bounds the attention cache
STEP_M = "vcuda_dev_model_step_m"


def main() -> NoReturn:
    reply = claim_stdout()
    code = Exit.SAME
    try:
        _serve(reply)
    except HarnessError as e:
        code = e.exit_code
        _answer(reply, {"failed": str(e)})
    except MemoryError:
        code = Exit.FAILED
        _answer(reply, {"failed": "out of memory in the worker"})
    except BrokenPipeError:
        code = Exit.FAILED
    except Exception as e:
        code = Exit.DEFECT
        _answer(reply, {"failed": f"{type(e).__name__}: {' '.join(str(e).split())}"})
    os._exit(code)  # no destructor of the library may turn a finished measurement into a failure


def _serve(reply: int) -> None:
    request = _read_request()
    confine(request.parent_pid)
    gc.disable()  # a collection would fall into one side's samples only
    trace = Trace(request.trace_fd)
    trace("the load of the library")
    if request.library_sha256 is None:
        raise InputError("the worker was given no digest")
    loaded = loader.load(request.library_fd, request.library_sha256, request.library_size_bytes)
    bound = abi.bind(loaded.library)
    facts = library_facts(loaded, bound)
    trace("the reading of the weights")
    plan = request.plan
    model = load_model(plan.model)
    context = len(request.prefix) + max(ROOM, request.rows)
    by_rows = request.rows > 1 and STEP_M in bound.symbols
    with Session(
        bound, model, plan.mmax if by_rows else 0, plan.threads, context=context, on_call=trace
    ) as session:
        session.load()
        backend = str(facts.build_info.get("backend"))
        evict = evictor(backend) if request.cold else None
        timer = Timer(session, request, context, by_rows, evict)
        timer.sample(1)  # what is allocated or compiled at the first step
        _answer(reply, to_json(Ready(facts, by_rows)))
        while line := sys.stdin.buffer.readline():
            asked = json.loads(line)
            if asked.get("rows"):
                _answer(reply, {"rows": timer.rows})
            else:
                _answer(reply, {"ns": timer.sample(asked["calls"])})


class Timer:
    """Steps along one stream of tokens; when the cache is full, again from the prefix.

    Both sides make the same calls, so sample i begins at the same position on both.
    """

    def __init__(
        self,
        session: Session,
        request: SpeedRequest,
        context: int,
        by_rows: bool,
        evict: Callable[[], object] | None,
    ) -> None:
        self._session, self._request, self._context = session, request, context
        self._by_rows, self._evict = by_rows, evict
        self._position = context  # full: the first call starts over
        self.rows = ""  # digests of the rows after the prefix, one for each position

    def sample(self, calls: int) -> int:
        """Nanoseconds of so many calls; one more before them brings caches and clocks back from
        what the other side did to them.
        """
        if self._evict is None:
            self._call()
        return sum(self._call() for _ in range(calls))

    def _call(self) -> int:
        """One step of M rows, or, where the library has none, M single steps."""
        m, session = self._request.rows, self._session
        if self._position + m > self._context:
            self._start_over()
        tokens = [self._token(self._position + i) for i in range(m)]
        if self._evict is not None:
            self._evict()
        before = session.native_ns
        if self._by_rows:
            self._keep(session.step_m(tokens))
        else:
            for token in tokens:
                self._keep(session.step(token))
        return session.native_ns - before

    def _keep(self, rows: Rows) -> None:
        """The tokens follow from the position, so there is one right row at each."""
        made = row_digests(rows.h_out, rows.logits)
        at = DIGITS * (self._position - len(self._request.prefix))
        known = self.rows[at : at + len(made)]
        if not made.startswith(known):
            raise LibraryFailure(f"other outputs than before at position {self._position}")
        self.rows += made[len(known) :]
        self._position += len(rows.h_out)

    def _start_over(self) -> None:
        self._session.reset()
        for token in self._request.prefix:
            self._session.step(token)
        self._position = len(self._request.prefix)

    def _token(self, position: int) -> int:
        stream = self._request.stream
        return stream[position % len(stream)]


def _read_request() -> SpeedRequest:
    try:
        request: SpeedRequest = from_json(SpeedRequest, json.loads(sys.stdin.buffer.readline()))
    except ValueError as e:
        raise InputError(f"the worker cannot read its request: {e}") from None
    if not request.stream or request.rows < 1:
        raise InputError("the worker was given no tokens, or no rows")
    return request


def _answer(reply: int, value: dict[str, Any]) -> None:
    line = json.dumps(value).encode() + b"\n"
    while line:
        line = line[os.write(reply, line) :]


if __name__ == "__main__":
    main()
