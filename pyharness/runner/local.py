"""Runs an arm on this machine in a worker process; whatever that does becomes one ``ArmResult``."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyharness import rows
from pyharness.compare import FILES
from pyharness.differences.traces import TraceRequest
from pyharness.dumps import partial_folder
from pyharness.errors import HarnessError, InputError, LibraryFailure
from pyharness.files import LARGEST_LIBRARY, read_descriptor, sha256_file
from pyharness.host.elf import read_elf
from pyharness.host.script import TAPS, needed_entries
from pyharness.runner.base import SealedLibrary, WorkerRequest
from pyharness.runner.child import (
    RAISED,
    call_in_progress,
    during,
    killed_by,
    with_last_words,
    worker_command,
)
from pyharness.runner.environment import worker_environment
from pyharness.runner.process import Children, Ended, run_process
from pyharness.values import (
    ArmPlan,
    ArmResult,
    Digest,
    FileFact,
    ModelSpec,
    Op,
    from_json,
    to_json,
)


@dataclass(frozen=True)
class LocalRunner:
    """``memory_limit_bytes`` bounds a worker's address space; 0, as CUDA needs it: no bound."""

    memory_limit_bytes: int = 0
    _children: Children = field(default_factory=Children, repr=False, compare=False)
    _exports: dict[Digest, frozenset[str]] = field(default_factory=dict, repr=False, compare=False)

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
                call = call_in_progress(trace.fileno())
            if self._children.stopped:
                return [ArmResult("failed", "stopped")] * len(items)
            *early, last = _replies(ended.stdout, len(items))
            for reply, (plan, out) in zip(early, items, strict=False):
                # its line is whole: what became of the process later is not this arm's
                well = Ended(ended.pid, 0, reply, ended.stderr_tail)
                results.append(_result(plan, well, call, out, names))
            plan, out = items[len(early)]
            results.append(_result(plan, replace(ended, stdout=last), call, out, names))
            taps = TAPS if traced else ()
            for i, (plan, _) in enumerate(items[: len(results)]):
                needed = (*needed_entries(plan.script), *taps)
                results[i] = self._checked(results[i], needed, library)
        finally:
            for i, (_, out) in enumerate(items):
                if i >= len(results) or results[i].status != "done":
                    # nothing that a failed arm wrote stays, Ctrl-C included
                    shutil.rmtree(partial_folder(out, os.getpid()), ignore_errors=True)
                    shutil.rmtree(out, ignore_errors=True)
        return results

    def _checked(
        self, result: ArmResult, needed: tuple[str, ...], library: SealedLibrary
    ) -> ArmResult:
        """An arm is unsupported where the sealed bytes themselves lack what its script needs: the
        worker, in whose process the library has run, is not believed.
        """
        if result.status != "unsupported":
            return result
        if library.digest not in self._exports:
            try:
                data = read_descriptor(library.fd, "library", LARGEST_LIBRARY)
                self._exports[library.digest] = read_elf(data).names
            except InputError as e:
                return ArmResult("failed", str(e))
        lacks = set(needed) - self._exports[library.digest]
        if result.missing and lacks.issuperset(result.missing):
            return result
        named = ", ".join(result.missing) or "no entry"
        told = f"its worker says unsupported and names {named}, yet the library lacks "
        return ArmResult("failed", told + (", ".join(sorted(lacks)) or "nothing that is needed"))

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
                worker_command("pyharness.worker"),
                json.dumps(to_json(request)).encode(),
                worker_environment(plan),
                (library.fd, trace_fd),
                plan.timeout_s,
            )
        except OSError as e:
            raise LibraryFailure(f"the worker process cannot be started: {e.strerror}") from None


def take_a_step(library: SealedLibrary) -> ArmResult:
    """One step of a tiny model in a worker of its own: whether a library works here, and what it
    says of itself.
    """
    step = (Op("step", (1,), record=True),)
    model = ModelSpec("synthetic", "gdn", "tiny")
    plan = ArmPlan("candidate", "arm", model, step, threads=1, timeout_s=60.0)
    with tempfile.TemporaryDirectory(prefix="vllm-cuda-") as folder:
        return LocalRunner().run(plan, library, Path(folder) / "step")


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
    exited = f"the worker exited with code {ended.returncode} and no result{during(call)}"
    try:
        result: ArmResult = from_json(ArmResult, json.loads(line))
        if rest:
            raise ValueError("more than one line")
    except (ValueError, RecursionError) as e:
        if not call:  # it never came to the library
            told = with_last_words("the worker process does not run", ended.stderr_tail)
            raise HarnessError(told) from None
        unreadable = f"the worker's result is unreadable ({e}): {line[:80]!r}"
        return _failed(unreadable if ended.stdout else exited, ended)
    if ended.returncode in RAISED:
        raise RAISED[ended.returncode](result.reason)
    if (ended.returncode != 0) != (result.status == "failed"):
        return _failed(exited, ended)
    if result.status == "failed":
        return replace(result, reason=with_last_words(result.reason, ended.stderr_tail))
    if result.status == "done" and (reason := _wrong_files(result.files, out, names)):
        return _failed(reason, ended)
    if result.status == "done" and (reason := _wrong_rows(result, plan)):
        return _failed(reason, ended)
    return result


def _broken_end(plan: ArmPlan, ended: Ended, call: str) -> str:
    if ended.timed_out:
        return f"timed out after {plan.timeout_s:g} s{during(call)}"
    if ended.overflowed:
        return "the worker wrote far more than a result to its stdout"
    if ended.returncode < 0:
        return killed_by(-ended.returncode, call)
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


def _wrong_rows(result: ArmResult, plan: ArmPlan) -> str:
    told, computed = len(result.row_digests) / rows.DIGITS, rows.count(plan.script)
    return f"the worker digested {told:g} rows of {computed}" if told != computed else ""


def _failed(reason: str, ended: Ended) -> ArmResult:
    reason = with_last_words(reason, ended.stderr_tail)
    return ArmResult("failed", reason, timed_out=ended.timed_out)
