"""What every runner is, and the request that it hands to the worker process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pyharness.differences.traces import TraceRequest
from pyharness.values import ArmPlan, ArmResult, Digest


class SealedLibrary(Protocol):
    """Bytes that the gate let through, behind a descriptor; nobody can change them any more."""

    @property
    def fd(self) -> int: ...
    @property
    def digest(self) -> Digest: ...
    @property
    def size_bytes(self) -> int: ...


class Runner(Protocol):
    def run(self, plan: ArmPlan, library: SealedLibrary, out: Path) -> ArmResult:
        """Runs one arm in its own process. Then ``out`` exists only if the result is ``done``.

        How a library fails is a result; InputError and GateRefusal are raised.
        """
        ...


@runtime_checkable
class TracingRunner(Runner, Protocol):
    """A runner that can also say what the operations of an arm left."""

    def trace(
        self, plan: ArmPlan, library: SealedLibrary, out: Path, request: TraceRequest
    ) -> ArmResult:
        """As ``run``, with the files of the request in place of a dump."""
        ...


def run_batch(
    runner: Runner, library: SealedLibrary, items: Sequence[tuple[ArmPlan, Path]]
) -> Iterable[ArmResult]:
    """Several arms of one library, results in their order: in one process where the runner can."""
    together = getattr(runner, "run_batch", None)
    if together is not None and len(items) > 1:
        results: Iterator[ArmResult] = together(library, items)
        return results
    return (runner.run(plan, library, out) for plan, out in items)


@dataclass(frozen=True)
class WorkerRequest:
    """One line of JSON on the worker's stdin. Descriptors are inherited under their numbers."""

    plan: ArmPlan
    library_fd: int
    library_sha256: Digest
    library_size_bytes: int
    out: str  # absolute path of the folder to make
    trace_fd: int = -1  # a file that always holds the native call in progress; -1: none
    parent_pid: int = 0  # die with this process; 0: do not care
    memory_limit_bytes: int = 0  # RLIMIT_AS; 0: none (a CUDA driver reserves far more than it uses)
    trace: TraceRequest | None = None  # run with taps on and write a trace, not a dump
    # further arms of the same library and environment, each with its folder: after the first one,
    # from a fresh device and model, one line of reply each
    more: tuple[tuple[ArmPlan, str], ...] = ()
