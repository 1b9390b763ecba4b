"""Runs the arms of a suite, a few processes at a time, and judges each job as soon as its arms have
ended.

Equal runs are made once and shared. Where a step takes less time than the start of a process, one
process makes the runs of several jobs, each on a device and a model of its own; the repetitions are
made in the opposite order, so that what one run leaves behind cannot pass for its right result.
Dumps live only as long as a job needs them: those of the first job and of red ones stay for a
reader, as long as they are few or small; of the rest the digests are enough.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyharness import compare, rows
from pyharness.differences.twins import twin_layers
from pyharness.patience import Patience
from pyharness.plan import Job, Suite, again, arm_key
from pyharness.runner.base import Runner, SealedLibrary, run_batch
from pyharness.values import NOT_RUN, Arm, ArmPlan, ArmResult, Comparison, JobStatus, ModelSpec
from pyharness.verdict import Facts, JobVerdict, RowChange, judge

RED_JOBS_KEPT = 4  # red jobs whose dumps stay however large; at 27B one arm's is about 0.2 GB
RED_BYTES_KEPT = 256 << 20  # and further ones until so much is kept
ARMS = ("baseline", "candidate")
SMALL_MODEL_BYTES = 64 << 20
Look = Callable[[Job, JobVerdict, Callable[[ArmPlan], Path]], JobVerdict]
JOBS_AHEAD = 2  # jobs whose arms may run before the job in turn is judged; bounds the dumps on disk
BATCH = 15  # jobs of small models whose runs share a process


@dataclass(frozen=True)
class ArmRecord:
    """One run that was made: its plan's key, how it ended, where its dump lies ("" where it was
    dropped).
    """

    key: str
    arm: Arm
    role: str
    job: str  # the first job that needs it
    folder: str  # relative to the run
    result: ArmResult


@dataclass(frozen=True)
class _Run:
    plan: ArmPlan
    first: Future[ArmResult] | None  # the arm that it repeats
    future: Future[ArmResult]


class Arms:
    """Each distinct run of a suite, started on demand and kept until its last user is done."""

    def __init__(
        self, suite: Suite, libraries: Mapping[Arm, SealedLibrary], runner: Runner, root: Path
    ) -> None:
        self._libraries, self._runner, self._root = libraries, runner, root
        self._keys: dict[ArmPlan, str] = {}
        self._futures: dict[str, Future[ArmResult]] = {}
        self._records: dict[str, tuple[ArmPlan, str, str]] = {}
        self._kept: set[str] = set()
        self._patience = Patience()
        for job in suite.jobs:
            for plan in job.arms():
                folder = f"{plan.arm}/{job.id.replace('/', '.')}.{plan.role}"
                self._records.setdefault(self.key(plan), (plan, job.id, folder))
        self._users = Counter(self.key(plan) for job in suite.jobs for plan in job.arms())
        self.total = len(self._records)

    def key(self, plan: ArmPlan) -> str:
        if plan not in self._keys:
            self._keys[plan] = arm_key(plan, self._libraries[plan.arm].digest)
        return self._keys[plan]

    def folder(self, plan: ArmPlan) -> Path:
        return self._root / self._records[self.key(plan)][2]

    def start(
        self, jobs: Iterable[Job], pool: ThreadPoolExecutor, done: Callable[[], None]
    ) -> None:
        """Queue what no job has queued before: one task of the pool for all runs of one library,
        role and environment. Repeats and controls wait for the arms that they repeat.
        """
        groups: dict[tuple[object, ...], list[_Run]] = {}
        for job in jobs:
            for plan in job.arms():
                if self.key(plan) in self._futures:
                    continue
                first = None
                if plan.role != "arm":
                    first = self.future(job.baseline if plan.arm == "baseline" else job.candidate)
                made = self._futures[self.key(plan)] = Future()
                place = plan.role != "arm", plan.arm, plan.role, plan.environment
                group: tuple[object, ...] = (*place, self.key(plan) if plan.alone else "")
                groups.setdefault(group, []).append(_Run(plan, first, made))
        for group in sorted(groups, key=lambda place: bool(place[0])):  # arms first
            pool.submit(self._run, groups[group], done)

    def future(self, plan: ArmPlan) -> Future[ArmResult]:
        return self._futures[self.key(plan)]

    def _run(self, runs: list[_Run], done: Callable[[], None]) -> None:
        # The pool takes tasks in order, so those waited for are already in a thread: no deadlock.
        try:
            ready = [run for run in runs if self._ready(run, done)]
            if ready and ready[0].plan.role == "again":
                ready.reverse()
            library = self._libraries[runs[0].plan.arm]
            items = [(run.plan, self.folder(run.plan)) for run in ready]
            made = run_batch(self._runner, library, items)
            results = self._patience.results([run.plan for run in ready], made)
            for run, result in zip(ready, results, strict=True):
                run.future.set_result(result)
                done()
        except BaseException as e:
            for run in runs:
                if not run.future.done():
                    run.future.set_exception(e)

    def _ready(self, run: _Run, done: Callable[[], None]) -> bool:
        """Whether it is worth a run: not when the arm that it repeats did not end well."""
        if run.first is None or (ended := run.first.result()).status == "done":
            return True
        reason = NOT_RUN + ended.reason.removeprefix(NOT_RUN)
        run.future.set_result(ArmResult(ended.status, reason, ended.missing))
        done()
        return False

    def release(self, job: Job, keep: bool) -> int:
        """The job is judged: drop the dumps that nobody else needs. How many bytes stay for it."""
        stay = 0
        for plan in job.arms():
            key = self.key(plan)
            if keep and key not in self._kept:
                self._kept.add(key)
                stay += sum(file.size_bytes for file in self._futures[key].result().files)
            self._users[key] -= 1
            if not self._users[key] and key not in self._kept:
                shutil.rmtree(self.folder(plan), ignore_errors=True)
        return stay

    def records(self) -> tuple[ArmRecord, ...]:
        made = []
        for key, (plan, job, folder) in self._records.items():
            result = self._futures[key].result()
            where = folder if (self._root / folder).is_dir() and key in self._kept else ""
            made.append(ArmRecord(key, plan.arm, plan.role, job, where, result))
        return tuple(made)


def run_jobs(
    suite: Suite,
    libraries: Mapping[Arm, SealedLibrary],
    runner: Runner,
    root: Path,
    *,
    workers: int = 1,
    batch: int = 0,
    on_job: Callable[[JobVerdict], None] = lambda verdict: None,
    on_arm: Callable[[int, int], None] = lambda done, total: None,
    look: Look = lambda job, verdict, folder: verdict,
) -> tuple[tuple[JobVerdict, ...], tuple[ArmRecord, ...]]:
    """Every job's verdict, in the order of the suite, and every run that was made for them.
    ``look`` explains a red job while its dumps are there. ``batch``: how many jobs are started
    together; 0: what suits the models.
    """
    arms = Arms(suite, libraries, runner, root)
    batch = batch or jobs_per_process({job.candidate.model for job in suite.jobs})
    finished: list[None] = []

    def arm_done() -> None:
        finished.append(None)
        on_arm(len(finished), arms.total)

    verdicts: list[JobVerdict] = []
    kept = Counter[bool]()  # jobs whose dumps stay, by whether they are green
    red_bytes = 0
    pool = ThreadPoolExecutor(workers, thread_name_prefix="arm")
    try:
        started = 0
        for i, job in enumerate(suite.jobs):
            while started < min(i + 1 + max(JOBS_AHEAD, batch), len(suite.jobs)):
                arms.start(suite.jobs[started : started + batch], pool, arm_done)
                started += batch
            verdict = judge(job, observe(job, arms))
            green = verdict.status is JobStatus.SAME
            few = kept[green] < (1 if green else RED_JOBS_KEPT)
            small = not green and red_bytes < RED_BYTES_KEPT
            keep = _worth_keeping(verdict.status) and (few or small)
            kept[green] += keep
            if verdict.status is JobStatus.DIFFERS:
                verdict = look(job, verdict, arms.folder)
            verdicts.append(verdict)
            stay = arms.release(job, keep)
            red_bytes += 0 if green else stay
            on_job(verdict)
        return tuple(verdicts), arms.records()
    except BaseException:
        stop = getattr(runner, "stop", None)
        if stop:
            stop()  # arms in progress end now, not at their time-out
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _worth_keeping(status: JobStatus) -> bool:
    return status not in (JobStatus.UNSUPPORTED, JobStatus.FAILED)


def observe(job: Job, arms: Arms) -> Facts:
    """Wait for the five runs and compare those that ended well."""
    plans = _named(job)
    result = {name: arms.future(plan).result() for name, plan in plans.items()}
    folder = {name: arms.folder(plan) for name, plan in plans.items()}

    def done(*names: str) -> bool:
        return all(result[name].status == "done" for name in names)

    def compared(a: str, b: str) -> Comparison | None:
        if not done(a, b):
            return None
        return compare.compare_dumps(folder[a], folder[b])

    unlike = ""
    if done(*ARMS):
        unlike = rows.unlike(*((plans[arm].script, result[arm].row_digests) for arm in ARMS))
    change = None
    if done("candidate", "control"):
        change = row_change(folder["control"], folder["candidate"])
    return Facts(
        baseline=result["baseline"],
        candidate=result["candidate"],
        baseline_again=result["baseline again"],
        candidate_again=result["candidate again"],
        control=result["control"],
        baseline_repeat=compared("baseline", "baseline again"),
        candidate_repeat=compared("candidate", "candidate again"),
        comparison=compared("baseline", "candidate"),
        change=change,
        unlike=unlike,
        twins=next((f"{a}: {t}" for a in ARMS if done(a) and (t := twin_layers(folder[a]))), ""),
    )


def _named(job: Job) -> dict[str, ArmPlan]:
    return {
        "baseline": job.baseline,
        "candidate": job.candidate,
        "baseline again": again(job.baseline),
        "candidate again": again(job.candidate),
        "control": job.control.plan,
    }


def row_change(control: Path, candidate: Path) -> RowChange:
    """What a control changed against the candidate's own dump."""
    h_out, logits, state = compare.FILES
    return RowChange(
        compare.differing_rows(control / h_out, candidate / h_out),
        compare.differing_rows(control / logits, candidate / logits),
        not compare.same_file(control / state, candidate / state),
    )


def parallel_workers(models: Iterable[ModelSpec]) -> int:
    """Two processes at a time where one step cannot use the cores; else one that has them all."""
    return min(2, os.cpu_count() or 1) if all(_is_small(model) for model in models) else 1


def jobs_per_process(models: Iterable[ModelSpec]) -> int:
    """More than one where a step takes less time than the start of a process."""
    return BATCH if all(_is_small(model) for model in models) else 1


def _is_small(model: ModelSpec) -> bool:
    if model.kind == "synthetic":
        return model.size == "tiny"
    path = Path(model.path)
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) <= SMALL_MODEL_BYTES
