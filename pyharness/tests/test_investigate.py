"""Which red jobs are looked into, and that a look decides nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pyharness.differences import investigate
from pyharness.differences.investigate import Investigator
from pyharness.differences.traces import TraceRequest
from pyharness.jobs import run_jobs
from pyharness.tests.fake_arms import NEW, OLD, FakeRunner, broken
from pyharness.tests.test_jobs import suite
from pyharness.values import ArmPlan, ArmResult, JobStatus
from pyharness.verdict import JobVerdict


class WithoutTaps(FakeRunner):
    """Can trace, but its libraries cannot."""

    traced = 0

    def trace(self, plan: ArmPlan, library: Any, out: Path, request: TraceRequest) -> ArmResult:
        self.traced += 1
        return ArmResult("unsupported", "lacks", ("vcuda_dev_model_taps",))


def looked(tmp_path: Path, runner: FakeRunner, candidate: Any) -> tuple[JobVerdict, ...]:
    libraries: Any = {"baseline": OLD, "candidate": candidate}
    look = Investigator(libraries, runner, tmp_path)
    return run_jobs(suite(), libraries, runner, tmp_path, workers=2, look=look)[0]


def test_every_red_job_is_explained_and_the_first_case_of_each_m_located(tmp_path: Path) -> None:
    verdicts = looked(tmp_path, FakeRunner(), broken("rows"))
    plain = run_jobs(suite(), {"baseline": OLD, "candidate": broken("rows")}, FakeRunner(),
                     tmp_path / "again", workers=2)[0]  # fmt: skip
    assert plain == tuple(
        dataclasses.replace(v, divergence=None, explanations=()) for v in verdicts
    )
    red = [v for v in verdicts if v.status is JobStatus.DIFFERS]
    assert red and all(v.explanations and v.comparison for v in red)
    located = [v.id.rsplit("/", 1)[1] for v in red if v.divergence]
    groups = [name.partition("-")[0] if "libs" not in name else name for name in located]
    assert len(groups) == len(set(groups)) >= 3 and {"mt2", "mt4", "libs-mt2"} <= set(located)
    assert not [
        v for v in verdicts if v.status is JobStatus.SAME and (v.divergence or v.explanations)
    ]
    d = next(v.divergence for v in red if v.id.endswith("/mt4"))
    assert d is not None
    assert (d.position, d.row, d.rows, d.operation, d.index) == (6, 3, 4, "logits", (3, 3))


def test_a_sound_library_is_not_looked_into(tmp_path: Path) -> None:
    runner = WithoutTaps()
    verdicts = looked(tmp_path, runner, NEW)
    assert not [v for v in verdicts if v.divergence or v.explanations] and not runner.traced


@pytest.mark.parametrize("limit", ["TRACED_JOBS", "TRACED_S"])
def test_traces_are_bounded_and_the_dumps_still_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(investigate, limit, 0)
    runner = WithoutTaps()
    verdicts = looked(tmp_path, runner, broken("rows"))
    assert not runner.traced
    assert next(v.divergence.operation for v in verdicts if v.divergence) == "logits"


def test_equal_traces_are_asked_for_once(tmp_path: Path) -> None:
    runner = WithoutTaps()
    verdicts = looked(tmp_path, runner, broken("rows"))
    notes = {v.divergence.note for v in verdicts if v.divergence}
    known = "layer and operation are not known: the candidate lacks vcuda_dev_model_taps"
    assert notes == {known}
    located = [v.id.rsplit("/", 1)[1] for v in verdicts if v.divergence]
    assert {"mt2", "libs-mt2"} <= set(located)  # these two run one script of the candidate
    assert runner.traced == len(located) - 1
    assert not list((tmp_path / investigate.FOLDER).glob("*"))
