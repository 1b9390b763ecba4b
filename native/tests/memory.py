"""A device without memory: what fails is refused, and everything works once there is memory again.

First each allocation of a session fails once (VLLM_CUDA_FAIL_ALLOCATION=n, native/cuda/device.h):
opening, loading, the first steps of each M and the first mark. The failed call must be refused as
out of memory, leave the state byte for byte as it was, and give the right bits when it is made
again. Then the device really is full.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from arms import PARTS, Arm, Different, same

from pyharness.host import abi
from pyharness.host.session import CallFailed, Rows, Session
from pyharness.inputs.layout import Model

VARIABLE = "VLLM_CUDA_FAIL_ALLOCATION"
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
        made = [make(session, *line) for line in SCRIPT]
        outputs = [[r.h_out.copy(), r.logits.copy()] for r in made if r]
        return [*outputs, state(session, model)]


class Failing:
    """One session of the script in which the n-th allocation fails."""

    def __init__(self, n: int) -> None:
        self.n, self.failed = n, ""
        os.environ[VARIABLE] = str(n)

    def __call__(self, name: str, call: Callable[[], T], unchanged: Callable[[], None]) -> T:
        try:
            return call()
        except CallFailed as e:
            os.environ.pop(VARIABLE)
            if self.failed or e.status != abi.Status.E_MEMORY:
                raise Different(f"allocation {self.n} fails: {e}") from None
            self.failed = name
        unchanged()
        return call()


def run(arm: Arm, model: Model, expected: list[list[np.ndarray]], n: int) -> str:
    """The call in which the n-th allocation was, "" when there are fewer."""
    failing = Failing(n)
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
                    raise Different(f"allocation {n} fails: {call} moved the cursor")
                equal(f"allocation {n} fails: state after {call}", before, state(session, model))

            name = f"{call} {len(argument)}" if isinstance(argument, list) else call
            made = failing(name, partial(make, session, call, argument), unchanged)
            if made:
                found = [made.h_out, made.logits]
                equal(f"allocation {n} failed: {name}", next(steps), found)
        equal(f"allocation {n} failed: the state at the end", next(steps), state(session, model))
        session.close()
    finally:
        os.environ.pop(VARIABLE, None)
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
        for call, argument in SCRIPT:
            if call == "mark" and session.info().position == 9:
                before = state(session, model)
                with Hog():
                    refused(call, session.mark)
                    equal("a full device: state after mark", before, state(session, model))
            made = make(session, call, argument)
            if made:
                equal(f"a device that was full: {call}", next(steps), [made.h_out, made.logits])
        equal("a device that was full: the state", next(steps), state(session, model))


def check(name: str, cpu: Arm, cuda: Arm, model: Model) -> str:
    expected = expected_outputs(cpu, model)
    where: Counter[str] = Counter()
    for n in range(1, 10_000):
        call = run(cuda, model, expected, n)
        if not call:
            break
        where[call] += 1
    if not {"open", "load", "step 1", "step 8"} <= set(where):
        raise Different(f"allocations failed in {dict(where)} only")
    told = ", ".join(f"{count} in {call}" for call, count in where.items())
    if "tiny" not in name:  # where a state slot is larger than what is left of a shared block
        full(cuda, model, expected)
        told += "; a full device"
    return f"{sum(where.values())} allocations failed once ({told}); every byte right afterwards"
