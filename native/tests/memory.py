"""Calls that fail on the device: they are refused, and everything works afterwards.

Without memory: first each allocation of a session fails once (VLLM_CUDA_FAIL_ALLOCATION=n of
native/cuda/device.h): opening, loading, the first steps of each M and the first mark. The failed
call must be refused as out of memory, leave the state byte for byte as it was, and give the right
bits when it is made again. Then the device really is full. The same with launches
(VLLM_CUDA_FAIL_LAUNCH=n), some of which fail while a graph is captured: a capture left open would
refuse to read the state.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import TypeVar

import numpy as np
from arms import PARTS, Arm, Different, same

from pyharness.host import abi
from pyharness.host.session import CallFailed, Rows, Session
from pyharness.inputs.layout import Model

ALLOCATION, LAUNCH = "VLLM_CUDA_FAIL_ALLOCATION", "VLLM_CUDA_FAIL_LAUNCH"
STATUS = {ALLOCATION: abi.Status.E_MEMORY, LAUNCH: abi.Status.E_DEVICE}
MMAX, CONTEXT = 8, 300
T = TypeVar("T")

# (call, its argument): tokens of a step
SCRIPT: tuple[tuple[str, list[int] | int | None], ...] = (
    ("step", [3]),
    ("step", [5, 1, 4, 1, 5, 9, 2, 6]),
    ("mark", None),
    ("step", [2, 7, 1, 8, 2]),
    ("step", [8]),
    ("rollback", None),
    ("mark", None),
    ("step", [1, 4, 1]),
    ("rollback_to", 2),
    ("step", [1, 7]),
)


def make(session: Session, call: str, argument: list[int] | int | None) -> Rows | None:
    if isinstance(argument, list):
        return session.step(argument[0]) if len(argument) == 1 else session.step_m(argument)
    return getattr(session, call)(*([] if argument is None else [argument]))


def state(session: Session, model: Model) -> list[np.ndarray]:
    kinds = enumerate(model.config.layer_kinds)
    return [session.state_read(i, part) for i, kind in kinds for part in PARTS[kind]]


def equal(what: str, expected: list[np.ndarray], found: list[np.ndarray]) -> None:
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        same(f"{what}: part {i}", "expected", a, "found", b)


def expected_outputs(arm: Arm, model: Model) -> list[list[np.ndarray]]:
    """Of each step of the script, then the state."""
    with Session(arm.bound, model, MMAX, context=CONTEXT) as session:
        session.load()
        outputs = []
        for line in SCRIPT:
            if made := make(session, *line):
                outputs.append([made.h_out.copy(), made.logits.copy()])
        return [*outputs, state(session, model)]


class Failing:
    """One session of the script in which the n-th allocation or launch fails."""

    def __init__(self, variable: str, n: int) -> None:
        self.variable, self.failed = variable, ""
        self.what = f"{variable}={n}"
        os.environ[variable] = str(n)

    def __call__(self, name: str, call: Callable[[], T], unchanged: Callable[[], None]) -> T:
        try:
            return call()
        except CallFailed as e:
            os.environ.pop(self.variable)
            if self.failed or e.status != STATUS[self.variable]:
                raise Different(f"{self.what}: {e}") from None
            self.failed = name
        unchanged()
        return call()


def run(arm: Arm, model: Model, expected: list[list[np.ndarray]], variable: str, n: int) -> str:
    """The call in which the n-th allocation or launch was, "" when there are fewer."""
    failing = Failing(variable, n)
    what = failing.what
    try:
        session = failing(
            "open", lambda: Session(arm.bound, model, MMAX, context=CONTEXT), lambda: None
        )
        failing("load", session.load, lambda: None)
        steps = iter(expected)
        for call, argument in SCRIPT:
            before = state(session, model)
            position = session.info().position

            def unchanged(
                before: list[np.ndarray] = before, position: int = position, call: str = call
            ) -> None:
                if session.info().position != position:
                    raise Different(f"{what}: {call} moved the cursor")
                equal(f"{what}: state after {call}", before, state(session, model))

            name = f"{call} {len(argument)}" if isinstance(argument, list) else call
            made = failing(name, partial(make, session, call, argument), unchanged)
            if made:
                found = [made.h_out, made.logits]
                equal(f"{what}: {name}", next(steps), found)
        equal(f"{what}: the state at the end", next(steps), state(session, model))
        session.close()
    finally:
        os.environ.pop(variable, None)
    return failing.failed


class Hog:
    """Takes all the memory of the device, in pieces, through the driver."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._pieces: list[ctypes.c_uint64] = []
        self._check(self._cuda.cuInit(0))
        context = ctypes.c_void_p()
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._check(self._cuda.cuCtxSetCurrent(context))

    def _check(self, status: int) -> None:
        if status:
            raise Different(f"the driver reports error {status}")

    def __enter__(self) -> Hog:
        size = 1 << 36
        while size >= 1 << 20:
            piece = ctypes.c_uint64()
            if self._cuda.cuMemAlloc_v2(ctypes.byref(piece), ctypes.c_size_t(size)) == 0:
                self._pieces.append(piece)
            else:
                size //= 2
        return self

    def __exit__(self, *_: object) -> None:
        for piece in self._pieces:
            self._check(self._cuda.cuMemFree_v2(piece))
        self._pieces.clear()


def refused(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except CallFailed as e:
        if e.status != abi.Status.E_MEMORY:
            raise Different(f"a full device: {what}: {e}") from None
        return
    raise Different(f"a full device: {what} found memory all the same")


def full(arm: Arm, model: Model, expected: list[list[np.ndarray]]) -> None:
    """The device is full at the load, then at the first mark (memory for the third state slot)."""
    steps = iter(expected)
    with Session(arm.bound, model, MMAX, context=CONTEXT) as session:
        with Hog():
            refused("load", session.load)
        session.load()
        marks = 0
        for call, argument in SCRIPT:
            marks += call == "mark"
            if call == "mark" and marks == 1:
                before = state(session, model)
                with Hog():
                    refused(call, session.mark)
                    equal("a full device: state after mark", before, state(session, model))
            made = make(session, call, argument)
            if made:
                equal(f"a device that was full: {call}", next(steps), [made.h_out, made.logits])
        equal("a device that was full: the state", next(steps), state(session, model))


def injected(
    arm: Arm, model: Model, expected: list[list[np.ndarray]], variable: str, numbers: Iterable[int]
) -> Counter[str]:
    """How many failed in which call; all the numbers, or up to the first that nothing reaches."""
    where: Counter[str] = Counter()
    for n in numbers:
        call = run(arm, model, expected, variable, n)
        if not call:
            break
        where[call] += 1
    return where


def check(name: str, cpu: Arm, cuda: Arm, model: Model) -> str:
    expected = expected_outputs(cpu, model)
    if "tiny" not in name:  # where a state slot is larger than what is left of a shared block
        full(cuda, model, expected)
        return "a full device at the load and at the mark; every byte right afterwards"
    allocations = injected(cuda, model, expected, ALLOCATION, count(1))
    if not {"open", "load", "step 1", "step 8"} <= set(allocations):
        raise Different(f"allocations failed in {dict(allocations)} only")
    numbers = [1, 2, 3, *range(5, 2000, 23)]  # the launches of a step are alike
    launches = injected(cuda, model, expected, LAUNCH, numbers)
    if not {"step 1", "step 8", "step 5", "step 3", "step 2"} <= set(launches):
        raise Different(f"launches failed in {dict(launches)} only")
    told = [f"allocations failed once each: {listed(allocations)}"]
    told.append(f"launches: {listed(launches)}")
    return "; ".join(told) + "; every byte right afterwards"


def listed(where: Counter[str]) -> str:
    return ", ".join(f"{n} in {call}" for call, n in where.items())
