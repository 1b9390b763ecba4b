"""The process that owns one library: a request on stdin, three files, an ArmResult on stdout.

Started as ``python -I -m pyharness.worker`` where the package is installed; a runner that works
from a plain checkout names the folder itself. Request and result are one line of JSON each. What
native code prints goes to stderr: only the worker holds the real stdout. The exit code is 0 where
the line says done or unsupported, else that of the error. A request may hold several arms: each
has a device and a model of its own and a line of its own, and the first that fails is the last.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import NoReturn

import numpy as np

from pyharness.differences.traces import TraceRequest
from pyharness.dumps import POSITION, DumpWriter
from pyharness.errors import Exit, HarnessError, InputError, LibraryFailure, UsageError
from pyharness.host import abi, loader, script
from pyharness.host.abi import StateKind
from pyharness.host.session import CallFailed, Engine, Session, build_info
from pyharness.host.tracer import Tracer
from pyharness.inputs.layout import LayerKind, Model
from pyharness.inputs.model import load_model
from pyharness.inputs.safetensors import TensorSource, array_source
from pyharness.rows import row_digests
from pyharness.runner.base import WorkerRequest
from pyharness.values import ArmPlan, ArmResult, FileFact, LibraryFacts, Op, from_json, to_json

TRACE_BYTES = 256
_S = abi.Status
REFUSALS = (_S.E_ARGUMENT, _S.E_UNSUPPORTED, _S.E_CONTEXT_FULL, _S.E_NO_MARK)
_PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    reply, work = claim_stdout(), _Work()
    while True:
        result, code = _answer(work.next)
        line = json.dumps(to_json(result)).encode() + b"\n"
        while line:
            line = line[os.write(reply, line) :]
        if code != Exit.SAME or not work.left:
            break
    # Not sys.exit: the dump is in place and said to be; no destructor may add to that.
    os._exit(code)


class _Work:
    """The arms of the request, one after the other, on a library that is loaded once."""

    def __init__(self) -> None:
        self._request: WorkerRequest | None = None
        self._library: tuple[loader.Loaded, abi.Bound] | None = None
        self.left: list[tuple[ArmPlan, str]] = []

    def next(self) -> ArmResult:
        if self._request is None:
            self._request = request = _read_request()
            self.left = [(request.plan, request.out), *request.more]
            confine(request.parent_pid, request.memory_limit_bytes)
        plan, out = self.left.pop(0)
        return self._run(dataclasses.replace(self._request, plan=plan, out=out))

    def _run(self, request: WorkerRequest) -> ArmResult:
        if not script.recorded_rows(request.plan.script):
            raise UsageError("the script records no row, so there would be nothing to compare")
        trace = Trace(request.trace_fd)
        if self._library is None:
            trace("the load of the library")
            loaded = loader.load(
                request.library_fd, request.library_sha256, request.library_size_bytes
            )
            self._library = loaded, abi.bind(loaded.library)
            _check_arithmetic("its load")
        return run_arm(request, *self._library, trace)


def _answer(run: Callable[[], ArmResult]) -> tuple[ArmResult, int]:
    """The result, whatever happens, and the exit code."""
    try:
        result = run()
        return result, Exit.FAILED if result.status == "failed" else Exit.SAME
    except HarnessError as e:
        return ArmResult("failed", str(e)), e.exit_code
    except MemoryError:
        return ArmResult("failed", "out of memory in the worker"), Exit.FAILED
    except Exception as e:
        place = ""
        if (trace := e.__traceback__) is not None:
            while trace.tb_next is not None:
                trace = trace.tb_next
            place = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        reason = f"defect of the harness in the worker: {type(e).__name__}{place}: {e}"
        return ArmResult("failed", " ".join(reason.split())), Exit.DEFECT


def run_arm(
    request: WorkerRequest, loaded: loader.Loaded, bound: abi.Bound, trace: Trace
) -> ArmResult:
    """From a loaded library to the three files; a HarnessError where that does not work out."""
    began, plan = time.monotonic(), request.plan
    rows = script.recorded_rows(plan.script)
    facts = library_facts(loaded, bound)
    needed = script.needed_entries(plan.script) + (script.TAPS if request.trace else ())
    if missing := bound.lacks(needed):
        reason = f"the library lacks {', '.join(missing)}"
        return ArmResult("unsupported", reason, missing, library=facts)
    trace("the reading of the weights")
    model = load_model(plan.model)
    sizes = rows, model.config.hidden, model.config.vocab
    try:
        if request.trace:
            ran, files = _run_with_taps(bound, model, request, request.trace, trace)
        else:
            with DumpWriter(Path(request.out), *sizes, owner=request.parent_pid) as dump:
                ran = _run_session(bound, model, plan, trace, dump)
                trace("the writing of the dump")
                files = dump.commit()
    except LibraryFailure as e:
        return ArmResult("failed", str(e), library=facts)
    wall_s = round(time.monotonic() - began, 6)
    return ArmResult(
        "done", files=files, rows=rows, library=facts,
        step_ns=tuple(ran.step_ns), wall_s=wall_s, row_digests="".join(ran.row_digests),
    )  # fmt: skip


@dataclasses.dataclass
class _Ran:
    """What a script leaves beside its dump: each call's time, and digests of every row."""

    step_ns: list[int] = dataclasses.field(default_factory=list)
    row_digests: list[str] = dataclasses.field(default_factory=list)


def _run_session(
    bound: abi.Bound, model: Model, plan: ArmPlan, trace: Trace, dump: DumpWriter
) -> _Ran:
    """Runs the script, writes rows and state, closes the library."""
    with _open(bound, model, plan, trace) as session:
        session.reset()
        ran = _run_script(session, plan, trace, dump)
        dump.state(state_tensors(session, model, session.info().position))
    return ran


def _run_with_taps(
    bound: abi.Bound, model: Model, request: WorkerRequest, wanted: TraceRequest, trace: Trace
) -> tuple[_Ran, tuple[FileFact, ...]]:
    """The same script, and in place of a dump what its operations left."""
    with _open(bound, model, request.plan, trace) as session:
        tracer = Tracer(session, model.config, wanted)
        tracer.reset()
        ran = _run_script(tracer, request.plan, trace, None)
        trace("the writing of the trace")
        files = tracer.write(Path(request.out), request.parent_pid or os.getpid())
    return ran, files


@contextlib.contextmanager
def _open(bound: abi.Bound, model: Model, plan: ArmPlan, trace: Trace) -> Iterator[Session]:
    context = plan.model.context or script.reach(plan.script)
    with Session(bound, model, plan.mmax, plan.threads, context=context, on_call=trace) as session:
        session.load()
        yield session


def _run_script(engine: Engine, plan: ArmPlan, trace: Trace, dump: DumpWriter | None) -> _Ran:
    ran = _Ran()
    positions = script.cursors(plan.script)
    for number, (op, position) in enumerate(zip(plan.script, positions, strict=True)):
        trace.where = f"call {number + 1} of {len(plan.script)} of the script"
        before = engine.native_ns
        _run_op(engine, op, dump, ran)
        ran.step_ns.append(engine.native_ns - before)
        _check_position(engine, position, op)
    trace.where = "after the script"
    _check_arithmetic("the script")
    return ran


def _run_op(engine: Engine, op: Op, dump: DumpWriter | None, ran: _Ran) -> None:
    if isinstance(engine, Tracer):
        engine.recording = len(op.recorded) if op.kind == "step_m" else int(op.record)
    if op.kind == "mark":
        engine.mark()
    elif op.kind == "rollback":
        engine.rollback()
    elif op.kind == "rollback_to":
        engine.rollback_to(op.number)
    elif op.kind == "poison":
        engine.poison(op.number)
    elif op.kind == "reset":
        engine.reset()
    elif op.kind == "refused":
        _run_refused(engine, op)
    elif op.kind == "step_m":
        rows = engine.step_m(op.tokens)
        ran.row_digests.append(row_digests(rows.h_out, rows.logits))
        if dump and (count := len(op.recorded)):
            dump.append(rows.h_out[:count], rows.logits[:count])
    else:
        for token in op.tokens:
            rows = engine.step(token)
            ran.row_digests.append(row_digests(rows.h_out, rows.logits))
            if dump and op.record:
                dump.append(rows.h_out, rows.logits)


def _run_refused(engine: Engine, op: Op) -> None:
    """A call that must be refused, with nothing written; what follows shows the state as it was."""
    call: dict[str, Callable[[], object]] = {
        "step": lambda: engine.step(op.tokens[0]),
        "step_m": lambda: engine.step_m(op.tokens),
        "mark": engine.mark,
        "rollback": engine.rollback,
        "rollback_to": lambda: engine.rollback_to(op.number),
    }
    try:
        call[op.what]()
    except CallFailed as e:
        if e.status not in REFUSALS or e.wrote:
            raise
        return
    told = f" ({len(op.tokens)} tokens, the last one {op.tokens[-1]})" if op.tokens else ""
    raise LibraryFailure(f"vcuda_dev_model_{op.what}{told} was not refused")


def _check_arithmetic(after: str) -> None:
    """A library built for fast mathematics may leave the whole process with other arithmetic."""
    one, tiny, half_ulp = (np.float32(x) for x in (1.0, 2.0**-126, 2.0**-24))
    if tiny * np.float32(0.5) == 0:
        raise LibraryFailure(f"after {after} this process flushes denormal numbers to zero")
    if one + half_ulp != one or one + half_ulp * np.float32(1.5) == one:
        raise LibraryFailure(f"after {after} this process no longer rounds to nearest even")


def _check_position(engine: Engine, position: int, op: Op) -> None:
    if (found := engine.info().position) != position:
        raise LibraryFailure(
            f"vcuda_dev_model_info: position is {found} after a {op.kind}, expected {position}"
        )


def state_tensors(engine: Engine, model: Model, position: int) -> Iterator[TensorSource]:
    """The position, then each part of the state, layer by layer, read when its turn has come."""
    c = model.config
    kv = (c.kv_heads, position, c.head_dim)
    shapes: dict[LayerKind, dict[StateKind, tuple[int, ...]]] = {
        LayerKind.GDN: {
            StateKind.S: (c.gdn_v_heads, c.gdn_k_dim, c.gdn_v_dim),
            StateKind.CONV: (c.conv_dim, c.conv_kernel - 1),
        },
        LayerKind.ATTENTION: {StateKind.KEYS: kv, StateKind.VALUES: kv},
    }
    yield array_source(POSITION, "I64", np.array([position], "<i8"))
    for layer, layer_kind in enumerate(c.layer_kinds):
        for kind, shape in shapes[layer_kind].items():
            name = f"layers.{layer}.{kind.part}"
            yield name, "F32", shape, partial(_read_part, engine, layer, kind, shape)


def _read_part(
    engine: Engine, layer: int, kind: StateKind, shape: tuple[int, ...]
) -> Iterator[memoryview]:
    values = engine.state_read(layer, kind)
    if values.size != (wanted := prod(shape)):
        raise LibraryFailure(
            f"vcuda_dev_model_state_read: layers.{layer}.{kind.part} has {values.size} elements, "
            f"expected {wanted} for {list(shape)}"
        )
    if values.size:
        yield values.astype("<f4", copy=False).data.cast("B")


def library_facts(loaded: loader.Loaded, bound: abi.Bound) -> LibraryFacts:
    return LibraryFacts(
        sha256=loaded.sha256,
        size_bytes=loaded.size_bytes,
        abi_version=bound.abi_version,
        build_info=build_info(bound),
        symbols=bound.symbols,
        missing=bound.missing,
        mapped=loaded.mapped,
    )


class Trace:
    """Keeps the call in progress in a file that outlives a crash; the runner blames that call."""

    def __init__(self, fd: int) -> None:
        self.fd, self.where = fd, ""

    def __call__(self, call: str) -> None:
        if self.fd >= 0:
            text = f"{call}, {self.where}" if self.where else call
            os.pwrite(self.fd, text.encode()[:TRACE_BYTES].ljust(TRACE_BYTES, b"\0"), 0)


def claim_stdout() -> int:
    """The real stdout under a new number that no child inherits; descriptor 1 becomes stderr."""
    sys.stdout.flush()
    reply = os.dup(1)
    os.dup2(2, 1)
    return reply


def _read_request() -> WorkerRequest:
    try:
        request: WorkerRequest = from_json(WorkerRequest, json.load(sys.stdin))
    except (ValueError, RecursionError) as e:
        raise InputError(f"the worker cannot read its request: {e}") from None
    return request


def confine(parent_pid: int, memory_limit_bytes: int = 0) -> None:
    """Die with the parent, leave no core file, and stay within the memory limit."""
    if parent_pid:
        with contextlib.suppress(AttributeError):  # Linux only
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            raise LibraryFailure("the process that asked for this arm has gone")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_limit_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes,) * 2)


if __name__ == "__main__":
    main()
