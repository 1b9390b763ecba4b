from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyharness.errors import LibraryFailure
from pyharness.host import abi
from pyharness.host.abi import StateKind, Status
from pyharness.host.script import MM_VARIABLE
from pyharness.host.session import CallFailed, MissingEntry, Session, build_info
from pyharness.inputs.synthetic import synthetic_model
from pyharness.tests.stubs import stub

MODEL = synthetic_model("hybrid", "tiny", 1)


def bound(fault: str = "", without: tuple[str, ...] = ()) -> abi.Bound:
    return abi.bind(ctypes.CDLL(str(stub(fault, without))))


def opened(fault: str = "", mmax: int = 4, context: int = 32) -> Session:
    session = Session(bound(fault), MODEL, mmax, context=context)
    session.load()
    return session


def rows_of(session: Session, tokens: Sequence[int]) -> np.ndarray:
    """Logits of single steps."""
    return np.concatenate([session.step(token).logits.copy() for token in tokens])


def test_shapes_positions_and_reset() -> None:
    with opened() as session:
        rows = session.step(3)
        assert (rows.h_out.shape, rows.logits.shape) == ((1, 160), (1, 512))
        assert session.info().position == 1
        first = rows.logits.copy()
        assert not np.array_equal(session.step(3).logits, first)
        session.reset()
        assert session.info().position == 0
        assert np.array_equal(session.step(3).logits, first)


def test_rows_equal_singles_and_a_rollback_gives_the_past_back() -> None:
    with opened() as session:
        singles = rows_of(session, (5, 6, 7, 8))
        session.reset()
        session.step(5)
        session.mark()
        assert session.info().marked
        session.step_m((9, 9))
        session.rollback()
        assert np.array_equal(session.step_m((6, 7, 8)).logits, singles[1:])
        assert session.info().position == 4


def test_mmax_reaches_the_library_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MM_VARIABLE, "99")
    with opened(mmax=4) as session:
        assert session.info().mmax == 4
    with opened(mmax=0) as session:
        assert session.info().mmax == 0
        with pytest.raises(CallFailed, match="VCUDA_E_UNSUPPORTED"):
            session.step_m((1, 2))
    assert os.environ[MM_VARIABLE] == "99"


def test_context_reaches_the_library_and_a_refusal_is_survived() -> None:
    with opened(context=2) as session:
        rows_of(session, (1, 2))
        with pytest.raises(CallFailed) as caught:
            session.step(3)
        assert caught.value.status == Status.E_CONTEXT_FULL
        assert str(caught.value) == (
            "vcuda_dev_model_step: VCUDA_E_CONTEXT_FULL (4): the cache is full"
        )
        session.reset()
        session.step(3)


def test_state_parts_have_their_sizes() -> None:
    with opened() as session:
        session.step_m((1, 2, 3))
        assert session.state_read(0, StateKind.S).size == 4 * 64 * 64
        assert session.state_read(0, StateKind.CONV).size == 512 * 3
        assert session.state_read(3, StateKind.KEYS).size == 2 * 3 * 64
        with pytest.raises(CallFailed, match=r"VCUDA_E_ARGUMENT \(1\): the layer has no such part"):
            session.state_read(3, StateKind.S)


def test_an_empty_cache_reads_as_nothing() -> None:
    with opened() as session:
        assert session.state_read(3, StateKind.VALUES).size == 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("silent", r"vcuda_dev_model_step \(token 1\): h_out row 0 column 0 was not written"),
        ("partial", r"logits row 0 column 507 was not written \(5 of 512 elements were not\)"),
        ("nan", r"logits row 0 column 3 is NaN"),
        ("infinity", r"h_out row 0 column 1 is infinite, 0xff800000"),
        ("overrun", r"wrote 2 words past the end of the logits buffer"),
        ("underrun", r"wrote 1 words before the h_out buffer"),
        ("error", r"VCUDA_E_DEVICE \(8\): the device reported an illegal address$"),
        ("odd-status", r"unknown status \(77\): the library gives no reason$"),
        (
            "error-writes",
            r"VCUDA_E_INTERNAL \(9\): late failure \(and it wrote outputs all the same\)",
        ),
    ],
)
def test_a_fault_in_a_step_is_named(fault: str, reason: str) -> None:
    with opened(fault) as session, pytest.raises(LibraryFailure, match=reason):
        session.step(1)


def test_the_row_before_is_never_taken_for_this_one() -> None:
    with opened("silent-later") as session:
        session.step(1)
        with pytest.raises(
            LibraryFailure, match=r"token 2\): h_out row 0 column 0 was not written"
        ):
            session.step(2)


def test_the_row_of_an_m_row_step_is_named() -> None:
    reason = r"step_m \(M = 3\): logits row 0 column 507"
    with opened("partial") as session, pytest.raises(LibraryFailure, match=reason):
        session.step_m((1, 2, 3))


@pytest.mark.parametrize("output", ["h_out", "logits"])
def test_an_output_that_is_written_after_its_call_is_named(output: str) -> None:
    reason = f"wrote to the {output} buffer after its call"
    session = opened(f"late-{output}")
    session.step(1)
    session.step(2)  # nothing was written in between
    session.info()
    with pytest.raises(LibraryFailure, match=reason):
        session.step(3)
    with pytest.raises(LibraryFailure, match=reason), opened(f"late-{output}") as session:
        session.step_m((1, 2))
        session.info()
        session.step(3)  # into buffers of its own


def test_a_state_that_is_written_after_its_call_is_named() -> None:
    reason = r"wrote to the layers\.0\.conv buffer after its call"
    with pytest.raises(LibraryFailure, match=reason), opened("late-state") as session:
        session.step(1)
        session.state_read(0, StateKind.CONV)
    session = opened()
    session.state_read(0, StateKind.CONV)[5] = 0.25
    with pytest.raises(LibraryFailure, match=reason):
        session.state_read(0, StateKind.S)


def test_an_unwritten_state_is_named() -> None:
    with opened("state-partial") as session:
        session.step(1)
        with pytest.raises(LibraryFailure, match=r"layers.0.conv element 1535 was not written"):
            session.state_read(0, StateKind.CONV)


def test_a_size_that_changes_between_question_and_read_is_named() -> None:
    with opened() as session:
        functions, name = session._bound.functions, "vcuda_dev_model_state_read"
        real = functions[name]
        assert real is not None

        def grows(dev: Any, layer: int, kind: int, buffer: Any, size: int, needed: Any) -> int:
            status = int(real(dev, layer, kind, buffer, size, needed))
            needed._obj.value += 0 if buffer is None else 4
            return status

        functions[name] = grows
        with pytest.raises(LibraryFailure, match=r"layers\.0\.S had 65536 bytes, then 65540"):
            session.state_read(0, StateKind.S)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no-device", r"vcuda_dev_open: VCUDA_E_DEVICE \(8\): no usable device: driver too old"),
        ("null-device", "vcuda_dev_open reports success and gives no device"),
        ("load-memory", r"vcuda_dev_model_load: VCUDA_E_MEMORY \(7\): cannot allocate"),
        ("wrong-info", "hidden is 161 after a model with 160 was loaded"),
    ],
)
def test_a_fault_at_the_start_is_named(fault: str, reason: str) -> None:
    with pytest.raises(LibraryFailure, match=reason):
        opened(fault)


def test_device_and_threads_reach_the_library() -> None:
    with pytest.raises(CallFailed, match="device 2, threads -3"):
        Session(bound(), MODEL, threads=-3, device=2)


def test_a_missing_entry_is_named_when_it_is_called() -> None:
    name = "vcuda_dev_model_mark"
    with Session(bound(without=(name,)), MODEL) as session:
        session.load()
        with pytest.raises(MissingEntry, match=f"lacks {name}"):
            session.mark()


def test_the_first_error_counts_and_not_that_of_closing() -> None:
    with pytest.raises(KeyError), opened("close-error"):
        raise KeyError("first")
    with pytest.raises(CallFailed, match="vcuda_dev_close"), opened("close-error"):
        pass


def test_tokens_beyond_32_bits_never_wrap() -> None:
    with opened() as session:
        for token in (2**31, -(2**31) - 1, 2**32):
            with pytest.raises(LibraryFailure, match="does not fit into 32 bits"):
                session.step(token)
            with pytest.raises(LibraryFailure, match="does not fit into 32 bits"):
                session.step_m((1, token))


def test_calls_are_announced_and_timed() -> None:
    heard: list[str] = []
    with Session(bound(), MODEL, 4, context=8, on_call=heard.append) as session:
        session.load()
        before = session.native_ns
        session.step(5)
        session.step_m((1, 2))
        session.state_read(3, StateKind.KEYS)
        assert session.native_ns > before
    assert heard[0] == "vcuda_dev_open"
    assert "vcuda_dev_model_step (token 5)" in heard
    assert "vcuda_dev_model_step_m (M = 2)" in heard
    assert "vcuda_dev_model_state_read (layers.3.keys)" in heard
    assert heard[-1] == "vcuda_dev_close"


def test_build_info_is_an_object() -> None:
    assert build_info(bound())["backend"] == "stub"
    with pytest.raises(LibraryFailure, match="no JSON object: 'release build'"):
        build_info(bound("bad-build-info"))
    with pytest.raises(LibraryFailure, match="no JSON object"):
        build_info(bound("null-build-info"))
