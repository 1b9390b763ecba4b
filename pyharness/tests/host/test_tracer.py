"""Traces of the stub library, whose operations are hashes of the tokens so far."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyharness.differences import traces
from pyharness.differences.traces import Capture, Site, Trace, TraceRequest, digest, read_trace
from pyharness.dumps import Dump
from pyharness.errors import InputError
from pyharness.host.abi import TapKind
from pyharness.inputs.synthetic import config_of
from pyharness.runner.base import SealedLibrary
from pyharness.runner.local import LocalRunner
from pyharness.tests.stubs import sealed, stub
from pyharness.values import ArmPlan, ArmResult, ModelSpec, Op

MODEL = ModelSpec("synthetic", "hybrid", "tiny", 1)
CONFIG = config_of("hybrid", "tiny")
ROWS = (
    Op("step", (1, 2)),
    Op("mark"),
    Op("step_m", (9, 8, 7)),
    Op("rollback"),
    Op("step_m", (3, 4), record=True),
    Op("mark"),
    Op("step_m", (5, 5)),
    Op("rollback_to", number=1),
    Op("poison", number=0x7FC00000),
    Op("step", (6,), record=True),
)
SINGLES = (Op("step", (1, 2)), Op("step", (3, 4), record=True), Op("step", (5, 6), record=True))


def plan(script: tuple[Op, ...]) -> ArmPlan:
    return ArmPlan("candidate", "arm", MODEL, script, mmax=4, timeout_s=60.0)


def traced(
    library: SealedLibrary, out: Path, script: tuple[Op, ...], capture: Capture | None = None
) -> ArmResult:
    return LocalRunner().trace(plan(script), library, out, TraceRequest(capture))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    folder = tmp_path_factory.mktemp("traces")
    with sealed(stub()) as library:
        for name, script in (("rows", ROWS), ("singles", SINGLES)):
            assert traced(library, folder / name, script).status == "done"
    assert sorted(p.name for p in (folder / "rows").iterdir()) == sorted(TraceRequest().files)
    return read_trace(folder / "rows"), read_trace(folder / "singles")


def test_each_call_and_the_tokens_behind_it(pair: tuple[Trace, Trace]) -> None:
    rows, singles = pair
    kinds = "reset step step mark step_m rollback step_m mark step_m rollback_to poison step"
    assert [c.kind for c in rows.calls] == kinds.split()
    assert [c.position for c in rows.calls] == [0, 1, 2, 2, 5, 2, 4, 4, 6, 5, 5, 6]
    assert [len(c.rows) for c in rows.calls] == [0, 1, 1, 0, 3, 0, 2, 0, 2, 0, 0, 1]
    assert [c.recorded for c in rows.calls] == [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1]
    history = {c.position: c.history for c in singles.calls}
    for number in (1, 2, 3, 5, 6, 7, 9, 10, 11):
        call = rows.calls[number]
        assert call.history == history[call.position]
    assert rows.calls[4].history not in history.values()  # other tokens
    assert rows.calls[6].rows == (history[3], history[4])


def test_equal_tokens_leave_equal_digests_and_others_do_not(pair: tuple[Trace, Trace]) -> None:
    rows, singles = pair
    words = {h: w for t in pair for h, w in zip(histories(t), t.rows.tolist(), strict=True)}
    for trace in (rows, singles):
        for history, row in zip(histories(trace), trace.rows.tolist(), strict=True):
            assert row == words[history]
    assert len({tuple(w) for w in words.values()}) == len(words)
    states = {c.history: s for c, s in zip(singles.calls, singles.states.tolist(), strict=True)}
    for call, state in zip(rows.calls, rows.states.tolist(), strict=True):
        assert states.get(call.history, state) == state
    assert rows.rows.shape == (10, 8 * CONFIG.layers + 2) and rows.layers == CONFIG.layers


def histories(trace: Trace) -> list[str]:
    return [h for call in trace.calls for h in call.rows]


def test_the_outputs_are_the_dumps(tmp_path: Path, pair: tuple[Trace, Trace]) -> None:
    with sealed(stub()) as library:
        assert LocalRunner().run(plan(SINGLES), library, tmp_path / "dump").status == "done"
    dump = Dump.open(tmp_path / "dump")
    trace = pair[1]
    for kind, values in enumerate((dump.h_out, dump.logits)):
        column = trace.column(Site(-1, kind))
        assert [digest(row) for row in values] == trace.rows[2:, column].tolist()
    assert [digest(part) for part in dump.state.values()] == trace.states[-1].tolist()


@pytest.mark.parametrize(
    ("call", "row", "site"),
    [
        (6, 1, Site(2, TapKind.GATE_UP)),
        (4, 0, Site(0, TapKind.INPUT_NORM)),
        (6, 0, Site(-1, 1)),
        (11, 0, Site(CONFIG.layers - 1, TapKind.RESIDUAL)),
        (5, -1, Site(1, 1, state=True)),
        (9, -1, Site(3, 0, state=True)),
    ],
)
def test_a_capture_has_the_elements_behind_a_digest(
    tmp_path: Path, pair: tuple[Trace, Trace], call: int, row: int, site: Site
) -> None:
    capture = Capture(call, site.layer, site.kind, site.state, max(0, row))
    with sealed(stub()) as library:
        result = traced(library, tmp_path / "one", ROWS, capture)
    assert [f.name for f in result.files] == [traces.CAPTURE]
    array = np.load(tmp_path / "one" / traces.CAPTURE)
    trace = pair[0]
    source = trace.line(call, row)
    assert array.dtype == np.dtype("<f4") and array.ndim == 1
    assert digest(array) == int(source[trace.column(site)])


@pytest.mark.parametrize("entry", ["vcuda_dev_model_taps", "vcuda_dev_model_tap_read"])
def test_a_library_without_taps_is_named(tmp_path: Path, entry: str) -> None:
    with sealed(stub(without=(entry,))) as library:
        result = traced(library, tmp_path / "out", SINGLES)
        assert (result.status, result.missing) == ("unsupported", (entry,))
        assert LocalRunner().run(plan(SINGLES), library, tmp_path / "dump").status == "done"
    assert not (tmp_path / "out").exists()


def test_a_crash_leaves_nothing(tmp_path: Path) -> None:
    with sealed(stub("segfault")) as library:
        result = traced(library, tmp_path / "out", SINGLES)
    assert result.status == "failed" and "SIGSEGV" in result.reason
    assert list(tmp_path.iterdir()) == []


def test_a_capture_of_a_call_that_is_not_made_fails(tmp_path: Path) -> None:
    with sealed(stub()) as library:
        result = traced(library, tmp_path / "out", SINGLES, Capture(99, 0, 0, False))
    assert result.status == "failed" and "was not made" in result.reason


def test_what_is_no_trace_is_one_line(tmp_path: Path) -> None:
    with sealed(stub()) as library:
        assert traced(library, tmp_path / "t", SINGLES).status == "done"
    rows = np.load(tmp_path / "t" / traces.ROWS)
    for damage in (rows[:-1], rows.astype(np.int32)):
        np.save(tmp_path / "t" / traces.ROWS, damage)
        with pytest.raises(InputError, match="not a trace"):
            read_trace(tmp_path / "t")
    (tmp_path / "t" / traces.INDEX).write_text("{")
    with pytest.raises(InputError, match="not a trace"):
        read_trace(tmp_path / "t")
