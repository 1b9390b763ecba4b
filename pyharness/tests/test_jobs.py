"""The whole way from a suite to verdicts on a toy model: every planted fault turns its jobs red,
and only those.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyharness import jobs
from pyharness.errors import GateRefusal
from pyharness.jobs import RED_JOBS_KEPT, SMALL_MODEL_BYTES, ArmRecord, parallel_workers, run_jobs
from pyharness.plan import Request, Suite, Workload, again, build
from pyharness.tests.fake_arms import NEW, OLD, FakeLibrary, FakeRunner, broken, lacking
from pyharness.values import ArmPlan, ArmResult, JobStatus, ModelSpec
from pyharness.verdict import JobVerdict

TINY = ModelSpec("synthetic", "gdn", "tiny")


def suite(**changes: Any) -> Suite:
    chosen = {
        "mt": (2, 4),
        "rb": (2,),
        "libs_mt": (2,),
        "libs_rb": (2,),
        "prefixes": (3,),
        **changes,
    }
    return build([Workload(TINY, 16)], Request(**chosen))


def run(
    tmp_path: Path,
    baseline: FakeLibrary = OLD,
    candidate: FakeLibrary = NEW,
    workers: int = 2,
    batch: int = 1,
    **changes: Any,
) -> tuple[dict[str, JobVerdict], tuple[ArmRecord, ...], FakeRunner]:
    runner = FakeRunner()
    libraries: Any = {"baseline": baseline, "candidate": candidate}
    verdicts, records = run_jobs(
        suite(**changes), libraries, runner, tmp_path, workers=workers, batch=batch
    )
    return {v.id.rsplit("/", 1)[1]: v for v in verdicts}, records, runner


def reds(verdicts: dict[str, JobVerdict]) -> dict[str, str]:
    return {name: v.status.value for name, v in verdicts.items() if v.status is not JobStatus.SAME}


@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch", [1, 5, 100])
def test_a_sound_library_passes(tmp_path: Path, prefix: int, workers: int, batch: int) -> None:
    verdicts, _, _ = run(tmp_path, workers=workers, batch=batch, prefixes=(prefix,))
    assert not reds(verdicts) and {"m1", "mt2", "mt4-nan", "rb2-keep1", "libs-rb2"} <= set(verdicts)


def test_each_distinct_run_is_made_once_and_twice_where_it_must_repeat_itself(
    tmp_path: Path,
) -> None:
    _, records, runner = run(tmp_path)
    assert len(runner.ran) == len(set(runner.ran)) == len(records)
    singles = [
        p for p, lib in runner.ran if lib == "old" and {op.kind for op in p.script} == {"step"}
    ]
    assert Counter(p.role for p in singles) == {"arm": 2, "again": 2}  # two sizes of the context


def test_wrong_rows(tmp_path: Path) -> None:
    verdicts, _, _ = run(tmp_path, candidate=broken("rows"))
    wrong = [
        job.id.rsplit("/", 1)[1]
        for job in suite().jobs
        if any(op.kind == "step_m" and op.recorded == op.tokens for op in job.candidate.script)
    ]
    assert {"mt2", "mt4", "mt4-mixed", "rb2-then-rows", "libs-mt2"} <= set(wrong)
    assert reds(verdicts) == dict.fromkeys(wrong, "differs")
    comparison = verdicts["mt4"].comparison
    assert comparison is not None
    (d,) = comparison.differences
    assert (d.file, d.index, d.different) == ("logits.npy", (3, 3), 1)


def test_wrong_state_after_right_rows(tmp_path: Path) -> None:
    verdicts, _, _ = run(tmp_path, candidate=broken("after"))
    right = ("m1", "m1-refused", "rb2-singles")
    assert set(reds(verdicts)) == {n for n in verdicts if n not in right}
    comparison = verdicts["mt2"].comparison
    assert comparison is not None and [d.file for d in comparison.differences] == [
        "state.safetensors"
    ]


def test_rollback_that_does_nothing(tmp_path: Path) -> None:
    verdicts, _, _ = run(tmp_path, candidate=broken("stuck"))
    assert set(reds(verdicts)) == {n for n in verdicts if "rb" in n}


def test_rollback_that_does_nothing_in_both_libraries_is_red_all_the_same(tmp_path: Path) -> None:
    """Both agree and the control differs by nothing: the control is what sees it."""
    stuck = FakeLibrary("old", frozenset({"stuck"}))
    verdicts, _, _ = run(tmp_path, baseline=stuck, candidate=broken("stuck"))
    assert verdicts["libs-rb2"].status is JobStatus.INDISTINCT
    assert verdicts["rb2"].status is JobStatus.DIFFERS


def test_a_row_that_knows_a_later_token(tmp_path: Path) -> None:
    both = {"baseline": FakeLibrary("old", frozenset({"leak"})), "candidate": broken("leak")}
    verdicts, _, _ = run(tmp_path, **both)  # type: ignore[arg-type]
    assert verdicts["libs-mt2"].status is JobStatus.DIFFERS
    assert verdicts["libs-mt2"].reason == "row 0 depends on the token of the later row 1"
    assert verdicts["mt2"].status is JobStatus.DIFFERS


@pytest.mark.parametrize("fault", ["deaf", "deaf-logits", "deaf-state"])
def test_outputs_that_do_not_depend_on_the_tokens_prove_nothing(tmp_path: Path, fault: str) -> None:
    both = {"baseline": FakeLibrary("old", frozenset({fault})), "candidate": broken(fault)}
    verdicts, _, _ = run(tmp_path, **both)  # type: ignore[arg-type]
    assert {v.status for v in verdicts.values()} == {JobStatus.INDISTINCT}


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_a_library_that_differs_from_itself(tmp_path: Path, arm: str) -> None:
    library = FakeLibrary("old" if arm == "baseline" else "new", frozenset({"random"}))
    verdicts, _, _ = run(tmp_path, **{arm: library})  # type: ignore[arg-type]
    assert {v.status for v in verdicts.values()} == {JobStatus.NONDETERMINISTIC}
    assert all(f"the {arm} differs from itself" in v.reason for v in verdicts.values())


def test_an_old_library_without_the_optional_entries(tmp_path: Path) -> None:
    verdicts, _, runner = run(tmp_path, baseline=lacking("step_m", "mark", "rollback"))
    assert reds(verdicts) == {"libs-mt2": "unsupported", "libs-rb2": "unsupported"}
    assert verdicts["libs-mt2"].missing == ("vcuda_dev_model_step_m",)
    assert "vcuda_dev_model_mark" in verdicts["libs-rb2"].reason
    tried = [
        p for p, lib in runner.ran if lib == "old" and any(op.kind != "step" for op in p.script)
    ]
    assert {p.role for p in tried} == {"arm"}  # not a second time


def test_a_library_that_crashes(tmp_path: Path) -> None:
    verdicts, _, runner = run(tmp_path, candidate=broken("crash"))
    assert {v.status for v in verdicts.values()} == {JobStatus.FAILED}
    assert "killed by SIGSEGV" in verdicts["m1"].reason
    assert {p.role for p, lib in runner.ran if lib == "new"} == {"arm"}


@pytest.mark.parametrize("fault", ["crash-again", "crash-control"])
def test_a_crash_beside_the_arm_itself(tmp_path: Path, fault: str) -> None:
    verdicts, _, _ = run(tmp_path, candidate=broken(fault))
    assert {v.status for v in verdicts.values()} == {JobStatus.FAILED}


def test_a_crash_hides_no_difference_and_other_jobs_go_on(tmp_path: Path) -> None:
    verdicts, _, _ = run(tmp_path, candidate=broken("crash-rows"))
    assert verdicts["m1"].status is verdicts["rb2-singles"].status is JobStatus.SAME
    assert verdicts["mt2"].status is JobStatus.FAILED


def folders(root: Path) -> set[str]:
    # os.walk passes over what another thread is removing
    found = [Path(folder) for folder, _, names in os.walk(root) if "h_out.npy" in names]
    return {str(folder.relative_to(root)) for folder in found}


def test_of_a_green_run_the_first_jobs_dumps_stay(tmp_path: Path) -> None:
    _, records, _ = run(tmp_path)
    kept = {r.folder for r in records if r.folder}
    assert folders(tmp_path) == kept
    assert kept == {
        "baseline/gdn-tiny.p3.m1.arm",
        "baseline/gdn-tiny.p3.m1.again",
        "candidate/gdn-tiny.p3.m1.arm",
        "candidate/gdn-tiny.p3.m1.again",
        "candidate/gdn-tiny.p3.m1.control",
    }
    assert all(len(r.result.files) == 3 for r in records)


def test_of_jobs_that_could_not_run_nothing_stays(tmp_path: Path) -> None:
    """Half a job's dumps show nothing, and would take the place of a red job's."""
    candidate = lacking("step_m", name="new")
    verdicts, records, _ = run(tmp_path, candidate=candidate, mt=(2,), rb=(), libs_mt=())
    assert {"mt2", "mt2-mixed", "mt2-refused"} <= set(reds(verdicts))
    kept = {r.folder for r in records if r.folder}
    assert kept == folders(tmp_path) and all(".m1." in folder for folder in kept)


@pytest.mark.parametrize(("budget", "last"), [(0, 5), (1, 5), (1 << 20, 8)])
def test_dumps_of_red_jobs_stay_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, last: int
) -> None:
    monkeypatch.setattr(jobs, "RED_BYTES_KEPT", budget)
    verdicts, records, _ = run(tmp_path, candidate=broken("after"), mt=(2, 3, 4, 5, 6, 7, 8))
    assert len(reds(verdicts)) > RED_JOBS_KEPT
    kept = {r.folder for r in records if r.folder}
    assert folders(tmp_path) == kept
    for m in range(2, 9):
        for role in ("arm", "again", "control"):
            assert (f"candidate/gdn-tiny.p3.mt{m}.{role}" in kept) is (m <= last)


def test_disk_is_bounded_while_the_suite_runs(tmp_path: Path) -> None:
    most = 0

    class Watching(FakeRunner):
        def run(self, plan: ArmPlan, library: Any, out: Path) -> ArmResult:
            nonlocal most
            most = max(most, len(folders(tmp_path)))
            return super().run(plan, library, out)

    libraries = {"baseline": OLD, "candidate": NEW}
    everything = suite(mt=tuple(range(2, 17)), rb=(), libs_mt=(), libs_rb=())
    run_jobs(everything, libraries, Watching(), tmp_path, batch=1)  # type: ignore[arg-type]
    assert most <= 5 + 3 * 5  # the first job's, and of at most a few jobs the rest


class Batches(FakeRunner):
    """Keeps the runs that were handed over together."""

    made: list[list[ArmPlan]]

    def run_batch(self, library: Any, items: Any) -> Iterator[ArmResult]:
        with self.lock:
            self.made.append([plan for plan, _ in items])
        for plan, out in items:
            yield self.run(plan, library, out)


def test_runs_of_several_jobs_share_a_process_and_are_repeated_in_the_opposite_order(
    tmp_path: Path,
) -> None:
    runner = Batches()
    made: list[list[ArmPlan]] = []
    runner.made = made
    libraries: Any = {"baseline": OLD, "candidate": NEW}
    everything = suite(prefixes=(0,))
    verdicts, records = run_jobs(everything, libraries, runner, tmp_path, workers=2, batch=100)
    assert {v.status for v in verdicts} == {JobStatus.SAME}
    for together in made:
        assert len({(p.arm, p.role, p.environment) for p in together}) == 1
        assert not any(p.alone for p in together)
    first = next(b for b in made if (b[0].arm, b[0].role) == ("candidate", "arm"))
    second = next(b for b in made if (b[0].arm, b[0].role) == ("candidate", "again"))
    assert [again(p) for p in reversed(first)] == second and len(first) > 20
    assert any(p.plan.alone for job in everything.jobs for p in [job.control])
    assert len(records) > sum(len(together) for together in made)  # `fresh` ran by itself


def test_an_error_in_a_shared_process_reaches_every_job(tmp_path: Path) -> None:
    class Refusing(FakeRunner):
        def run_batch(self, library: Any, items: Any) -> Iterator[ArmResult]:
            raise GateRefusal("expected this, found that")

    libraries: Any = {"baseline": OLD, "candidate": NEW}
    with pytest.raises(GateRefusal, match="expected this"):
        run_jobs(suite(), libraries, Refusing(), tmp_path, batch=9)


def test_jobs_are_told_in_order_and_arms_are_counted(tmp_path: Path) -> None:
    told: list[str] = []
    counts: list[tuple[int, int]] = []
    lock = threading.Lock()

    def arm(done: int, total: int) -> None:
        with lock:
            counts.append((done, total))

    made = suite()
    run_jobs(
        made, {"baseline": OLD, "candidate": NEW}, FakeRunner(), tmp_path, workers=3,
        on_job=lambda v: told.append(v.id), on_arm=arm,
    )  # fmt: skip
    assert told == [job.id for job in made.jobs]
    assert len(counts) == counts[0][1] and max(counts)[0] == counts[0][1]


def test_a_refusal_of_the_worker_ends_the_run(tmp_path: Path) -> None:
    class Refusing(FakeRunner):
        def run(self, plan: ArmPlan, library: Any, out: Path) -> ArmResult:
            raise GateRefusal("expected this, found that")

    with pytest.raises(GateRefusal, match="expected this"):
        run_jobs(suite(), {"baseline": OLD, "candidate": NEW}, Refusing(), tmp_path, workers=2)


def test_two_workers_only_for_small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"x" * 100)
    checkpoint, pack = (
        ModelSpec("checkpoint", path=str(tmp_path)),
        ModelSpec("pack", path=str(weights)),
    )
    assert parallel_workers([TINY, checkpoint, pack]) == 2
    assert parallel_workers([TINY, ModelSpec("synthetic", "gdn", "mid")]) == 1
    os.truncate(weights, SMALL_MODEL_BYTES + 1)
    assert parallel_workers([checkpoint]) == parallel_workers([pack]) == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert parallel_workers([TINY]) == 1
