"""What green jobs exercised, and what a library still has to show."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from pyharness.coverage import ModelCoverage, coverage_of, gaps
from pyharness.plan import Request, Workload, build
from pyharness.tests.goldens import golden
from pyharness.values import JobStatus, ModelSpec
from pyharness.verdict import JobVerdict

STEP_M, MARK = "vcuda_dev_model_step_m", "vcuda_dev_model_mark"
BOTH = {"GDN": 3, "attention": 1}


def model(layers: dict[str, int], **jobs: int) -> ModelCoverage:
    return ModelCoverage("some model", layers, jobs, (), ())


def test_coverage_counts_green_jobs_only() -> None:
    request = Request(mt=(2, 5), rb=(3,), libs_mt=(2,), libs_rb=(), prefixes=(0, 7))
    specs = [ModelSpec("synthetic", "gdn", "tiny"), ModelSpec("synthetic", "hybrid", "tiny")]
    suite = build([Workload(spec, 512) for spec in specs], request)
    verdicts = [
        JobVerdict(
            job.id,
            JobStatus.UNSUPPORTED if job.kind.startswith("libs") else JobStatus.SAME,
            "", False,
        )
        for job in suite.jobs
    ]  # fmt: skip
    gdn, hybrid = coverage_of(suite.jobs, verdicts)
    kinds = Counter(job.kind for job in suite.jobs[: len(suite.jobs) // 2])
    assert gdn.jobs == hybrid.jobs == {kind: kinds[kind] for kind in ("m1", "mt", "rb")}
    assert set(gdn.layers) == {"GDN"} and set(hybrid.layers) == {"GDN", "attention"}
    assert gdn.rows == (2, 3, 5) and gdn.prefixes == (0, 7)
    assert gaps((gdn, hybrid), ()) == ()
    verdicts[0] = dataclasses.replace(verdicts[0], status=JobStatus.DIFFERS)
    assert coverage_of(suite.jobs, verdicts)[0].jobs["m1"] == kinds["m1"] - 1


def test_layers_of_a_checkpoint_come_from_its_configuration() -> None:
    spec = ModelSpec("checkpoint", path=str(golden("tiny-attn")))
    suite = build([Workload(spec, 512)], Request(mt=(), rb=(), libs_mt=(), libs_rb=()))
    green = [JobVerdict(job.id, JobStatus.SAME, "", True) for job in suite.jobs]
    (made,) = coverage_of(suite.jobs, green)
    assert set(made.layers) == {"attention"} and Path(made.model).name == "tiny-attn"


@pytest.mark.parametrize(
    ("coverage", "missing", "found"),
    [
        ([model(BOTH, m1=1, mt=1, rb=1)], [], ()),
        ([model({"GDN": 4}, m1=1, mt=1, rb=1)], [STEP_M], ("m1 on attention layers",)),
        (
            [model({"GDN": 4}, m1=1, mt=1, rb=1), model({"attention": 4}, m1=1, mt=1)],
            [],
            ("rb on attention layers",),
        ),
        ([model(BOTH, m1=1)], [STEP_M, MARK], ()),
        ([model(BOTH, m1=1, mt=1)], [MARK], ()),
        ([model(BOTH, m1=1)], [MARK], ("mt on GDN and attention layers",)),
        ([], [STEP_M], ("m1 on GDN and attention layers",)),
    ],
)
def test_gaps(coverage: list[ModelCoverage], missing: list[str], found: tuple[str, ...]) -> None:
    assert gaps(coverage, missing) == found
