"""Runs an arm on this machine in a worker process; whatever that does becomes one ``ArmResult``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyharness.compare import FILES
from pyharness.differences.traces import TraceRequest
from pyharness.dumps import partial_folder
from pyharness.errors import Exit, GateRefusal, HarnessError, InputError
from pyharness.files import sha256_file
from pyharness.runner.base import SealedLibrary, WorkerRequest
from pyharness.runner.environment import worker_environment
from pyharness.runner.process import Children, Ended, run_process
from pyharness.values import ArmPlan, ArmResult, FileFact, from_json, to_json

_ROOT = Path(__file__).resolve().parents[2]
# -I keeps the user's folders and PYTHON* variables out; the worker is that of this very package.
# A folder that is on the path already, as site-packages is, stays behind the standard library.
_BOOT = (
    "import sys; sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]); "
    "from pyharness.worker import main; main()"
)
_RAISED: dict[int, type[HarnessError]] = {
    Exit.USAGE: InputError,
    Exit.REFUSED: GateRefusal,
    Exit.DEFECT: HarnessError,
}
_REASON_CHARS = 300


@dataclass(frozen=True)
class LocalRunner:
    """``memory_limit_bytes`` bounds a worker's address space; 0, as CUDA needs it: no bound."""

    memory_limit_bytes: int = 0
    _children: Children = field(default_factory=Children, repr=False, compare=False)

    def stop(self) -> None:
        """Ends every arm in progress, from another thread, and lets no further one run."""
        self._children.stop()

    def run(self, plan: ArmPlan, library: SealedLibrary, out: Path) -> ArmResult:
        """``out`` must not exist, or be an empty folder."""
        return next(self.run_batch(library, [(plan, out)]))

    def trace(
        self, plan: ArmPlan, library: SealedLibrary, out: Path, request: TraceRequest
    ) -> ArmResult:
        return next(self._run_batch(library, [(plan, out)], request))

    def run_batch(
        self, library: SealedLibrary, items: Sequence[tuple[ArmPlan, Path]]
    ) -> Iterator[ArmResult]:
        """One arm after the other in one process; a new one where an arm fails. All plans have one
        environment, up to the variable of M.
        """
        return self._run_batch(library, items, None)

    def _run_batch(
        self,
        library: SealedLibrary,
        items: Sequence[tuple[ArmPlan, Path]],
        traced: TraceRequest | None,
    ) -> Iterator[ArmResult]:
        left = [(plan, Path(os.path.abspath(out))) for plan, out in items]
        for _, out in left:
            if out.exists() and (not out.is_dir() or any(out.iterdir())):
                raise InputError(f"{out} exists already; a dump is never overwritten")
        while left:
            results = self._run_process(library, left, traced)
            left = left[len(results) :]
            yield from results

    def _run_process(
        self,
        library: SealedLibrary,
        items: Sequence[tuple[ArmPlan, Path]],
        traced: TraceRequest | None,
    ) -> list[ArmResult]:
        """The results of the arms that one process came to, at least one."""
        results: list[ArmResult] = []
        names = traced.files if traced else FILES
        try:
            with tempfile.TemporaryFile(buffering=0) as trace:
                ended = self._start(items, library, trace.fileno(), traced)
                call = os.pread(trace.fileno(), 4096, 0).rstrip(b"\0").decode("utf-8", "replace")
            if self._children.stopped:
                return [ArmResult("failed", "stopped")] * len(items)
            *early, last = _replies(ended.stdout, len(items))
            for reply, (plan, out) in zip(early, items, strict=False):
                # its line is whole: what became of the process later is not this arm's
                well = Ended(ended.pid, 0, reply, ended.stderr_tail)
                results.append(_result(plan, well, call, out, names))
            plan, out = items[len(early)]
            results.append(_result(plan, replace(ended, stdout=last), call, out, names))
        finally:
            for i, (_, out) in enumerate(items):
                if i >= len(results) or results[i].status != "done":
                    # nothing that a failed arm wrote stays, Ctrl-C included
                    shutil.rmtree(partial_folder(out, os.getpid()), ignore_errors=True)
                    shutil.rmtree(out, ignore_errors=True)
        return results

    def _start(
        self,
        items: Sequence[tuple[ArmPlan, Path]],
        library: SealedLibrary,
        trace_fd: int,
        traced: TraceRequest | None,
    ) -> Ended:
        (plan, out), *more = items
        request = WorkerRequest(
            plan=plan,
            library_fd=library.fd,
            library_sha256=library.digest,
            library_size_bytes=library.size_bytes,
            out=str(out),
            trace_fd=trace_fd,
            parent_pid=os.getpid(),
            memory_limit_bytes=self.memory_limit_bytes,
            trace=traced,
            more=tuple((further, str(folder)) for further, folder in more),
        )
        try:
            return run_process(
                self._children,
                (sys.executable, "-I", "-c", _BOOT, str(_ROOT)),
                json.dumps(to_json(request)).encode(),
                worker_environment(plan),
                (library.fd, trace_fd),
                plan.timeout_s,
            )
        except OSError as e:
            raise HarnessError(f"the worker process cannot be started: {e}") from None


def _replies(stdout: bytes, arms: int) -> list[bytes]:
    """What each arm replied. The last one is the arm that the end of the process tells of: it
    replied last, or, where that was no failure and arms were left, it is the one in progress.
    """
    *lines, rest = stdout.split(b"\n")
    replies = [line + b"\n" for line in lines]
    if len(replies) < arms and not (replies and _says_failed(replies[-1])):
        return [*replies, rest]
    first = min(len(replies), arms) - 1
    return [*replies[:first], b"".join([*replies[first:], rest])]


def _says_failed(reply: bytes) -> bool:
    try:
        return bool(json.loads(reply)["status"] == "failed")
    except (ValueError, KeyError, TypeError):
        return True


def _result(plan: ArmPlan, ended: Ended, call: str, out: Path, names: tuple[str, ...]) -> ArmResult:
    """What the worker said, believed only as far as its end and its files bear it out."""
    if reason := _broken_end(plan, ended, call):
        return _failed(reason, ended)
    line, rest = ended.stdout.partition(b"\n")[::2]
    exited = f"the worker exited with code {ended.returncode} and no result{_during(call)}"
    try:
        result: ArmResult = from_json(ArmResult, json.loads(line))
        if rest:
            raise ValueError("more than one line")
    except (ValueError, RecursionError) as e:
        if not call:  # it never came to the library
            raise HarnessError(_with_tail("the worker process does not run", ended)) from None
        unreadable = f"the worker's result is unreadable ({e}): {line[:80]!r}"
        return _failed(unreadable if ended.stdout else exited, ended)
    if ended.returncode in _RAISED:
        raise _RAISED[ended.returncode](result.reason)
    if (ended.returncode != 0) != (result.status == "failed"):
        return _failed(exited, ended)
    if result.status == "failed":
        return replace(result, reason=_with_tail(result.reason, ended))
    if result.status == "done" and (reason := _wrong_files(result.files, out, names)):
        return _failed(reason, ended)
    return result


def _broken_end(plan: ArmPlan, ended: Ended, call: str) -> str:
    if ended.timed_out:
        return f"timed out after {plan.timeout_s:g} s{_during(call)}"
    if ended.overflowed:
        return "the worker wrote far more than a result to its stdout"
    if ended.returncode < 0:
        number = -ended.returncode
        known = {s.value: s.name for s in signal.Signals}
        name = known.get(number, f"signal {number}")
        hint = " (out of memory, or killed by hand)" if number == signal.SIGKILL else ""
        return f"killed by {name}{hint}{_during(call)}"
    return ""


def _wrong_files(files: tuple[FileFact, ...], out: Path, names: tuple[str, ...]) -> str:
    """Why the files are not the ones that the worker wrote, "" if they are."""
    if tuple(fact.name for fact in files) != names:
        return f"the worker says done and does not name {', '.join(names)}"
    for fact in files:
        try:
            digest, size = sha256_file(out / fact.name)
        except InputError as e:
            return str(e)
        if (digest, size) != (fact.sha256, fact.size_bytes):
            return (
                f"{out / fact.name} has {size} bytes and {digest}, the worker wrote "
                f"{fact.size_bytes} bytes and {fact.sha256}"
            )
    return ""


def _failed(reason: str, ended: Ended) -> ArmResult:
    return ArmResult("failed", _with_tail(reason, ended))


def _during(call: str) -> str:
    return f" during {call}" if call else ""


def _with_tail(reason: str, ended: Ended) -> str:
    """The reason and the last line that the library printed, as one line."""
    lines = ended.stderr_tail.decode("utf-8", "replace").split("\n")
    said = next((s for line in reversed(lines) if (s := _printable(line))), "")
    return f"{reason}; it printed last: {said[:_REASON_CHARS]}" if said else reason


def _printable(line: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in line).split())
