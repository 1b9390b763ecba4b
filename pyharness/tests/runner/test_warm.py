"""Warm workers over stub libraries: answers, and whatever a library does instead."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyharness.errors import GateRefusal, HarnessError, InputError, LibraryFailure
from pyharness.rows import DIGITS
from pyharness.runner.process import Children
from pyharness.runner.warm import SpeedRequest, WarmWorker
from pyharness.speed.worker import ROOM
from pyharness.tests.stubs import Sealed, sealed, stub
from pyharness.values import ArmPlan, Digest, ModelSpec

HOSTILE = Path(__file__).parents[1] / "attack" / "hostile.c"
REQUEST = SpeedRequest(
    ArmPlan("candidate", "arm", ModelSpec("synthetic", "gdn", "tiny"), (), timeout_s=60.0),
    rows=1,
    prefix=(1, 2),
    stream=(1, 2, 3),
)
ROWS = dataclasses.replace(REQUEST, rows=3, plan=dataclasses.replace(REQUEST.plan, mmax=3))


@contextmanager
def worker(path: Path, request: SpeedRequest = REQUEST) -> Iterator[WarmWorker]:
    with sealed(path) as library, WarmWorker("candidate", request, library, Children()) as warm:
        yield warm


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_times_of_a_warm_worker() -> None:
    with worker(stub(flags=("-DSTEP_SLEEP_US=2000",))) as warm:
        assert warm.ready.library.build_info["backend"] == "stub" and not warm.ready.by_rows
        assert warm.sample(1) >= 2_000_000
        assert warm.sample(3) >= 6_000_000  # a sleep is never shorter than asked for
        pid = warm._child.pid
        assert alive(pid)
    assert not alive(pid)


def test_rows_in_one_step_or_one_by_one() -> None:
    with worker(stub(flags=("-DSTEP_SLEEP_US=1000",)), ROWS) as warm:
        assert warm.ready.by_rows and warm.sample(1) >= 3_000_000
    old = stub(without=("vcuda_dev_model_step_m",), flags=("-DSTEP_SLEEP_US=1000",))
    with worker(old, ROWS) as warm:
        assert not warm.ready.by_rows and warm.sample(2) >= 6_000_000


def test_the_rows_that_were_timed() -> None:
    """One for each position, the same in one step and one by one, and however often."""
    with worker(stub(), ROWS) as warm:
        warm.sample(2)
        few = warm.rows()
        warm.sample(600)  # more than the cache holds: from the prefix again
        rows = warm.rows()
    assert len(few) == 15 * DIGITS and rows.startswith(
        few
    )  # 2 calls at the start, then 1 more than 2
    assert len(rows) == ROOM // 3 * 3 * DIGITS
    with worker(stub()) as warm:
        warm.sample(11)
        assert rows.startswith(warm.rows())
    with (
        pytest.raises(LibraryFailure, match="candidate: other outputs than before at position 40"),
        worker(stub("wrong-by-and-by")) as warm,
    ):
        warm.sample(600)


def test_cold_and_many_resets() -> None:
    """The stub refuses a step beyond the cache: 2000 calls cross its end several times."""
    with worker(stub(), ROWS) as warm:
        assert warm.sample(700) > 0
    with worker(stub(), dataclasses.replace(REQUEST, cold=True)) as warm:
        assert warm.sample(2) > 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("segfault", "killed by SIGSEGV during vcuda_dev_model_step (token 1)"),
        ("load-crash", "killed by SIGSEGV during the load of the library"),
        ("exit-3", "exited with code 3 and no answer during vcuda_dev_model_step"),
        ("error", "vcuda_dev_model_step: VCUDA_E_DEVICE"),
        ("prints-and-dies", "it printed last: ASSERTION FAILED: 1 == 2"),
    ],
)
def test_what_goes_wrong_is_blamed_on_the_side_and_the_call(fault: str, said: str) -> None:
    with pytest.raises(LibraryFailure) as raised, worker(stub(fault)):
        pass
    assert str(raised.value).startswith("candidate: ") and said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_library_that_hangs_is_ended() -> None:
    plan = dataclasses.replace(REQUEST.plan, timeout_s=2.0)
    began = time.monotonic()
    with (
        pytest.raises(LibraryFailure, match=r"timed out after 2 s during vcuda_dev_model_step"),
        worker(stub("hang"), dataclasses.replace(REQUEST, plan=plan)),
    ):
        pass
    assert time.monotonic() - began < 30


def test_what_a_library_prints_is_no_answer() -> None:
    with worker(stub("prints")) as warm:
        assert warm.sample(2) > 0


@pytest.mark.parametrize("hostile", ["forges-done", "forges-twice"])
def test_what_a_library_writes_in_its_workers_place_is_no_answer(hostile: str) -> None:
    library = stub("", (), (str(HOSTILE), f'-DHOSTILE="{hostile}"'))
    with pytest.raises(LibraryFailure, match=r"^candidate: the worker's answer is unreadable"):
        worker(library).__enter__()


def test_a_worker_that_was_killed_between_two_questions() -> None:
    with worker(stub()) as warm:
        os.kill(warm._child.pid, 9)
        with pytest.raises(LibraryFailure, match="killed by SIGKILL"):
            warm.sample(1)


def test_other_bytes_are_refused() -> None:
    with sealed(stub()) as library:
        other = Sealed(library.fd, Digest("ab" * 32), library.size_bytes)
        with pytest.raises(GateRefusal, match="nothing was loaded"):
            WarmWorker("candidate", REQUEST, other, Children())


def test_a_request_that_cannot_be_served() -> None:
    with (
        pytest.raises(InputError, match="no tokens"),
        worker(stub(), dataclasses.replace(REQUEST, stream=())),
    ):
        pass
    with worker(stub()) as warm, pytest.raises(HarnessError):
        warm.ask({"calls": "many"})
