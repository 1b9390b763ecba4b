"""``archive recompute``: the runs of an accepted library, done again by another library, here.

What an acceptance on a GPU proved is in its record: the digests of the three files of every run. A
library of any backend gives the same bytes or is wrong, so the CPU can hold itself against it.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyharness import commands, device, gate, jobs, record, replay
from pyharness.archive.entry import LogEntry
from pyharness.config import Settings
from pyharness.errors import InputError, NothingProved
from pyharness.inputs.model import input_facts, model_spec
from pyharness.jobs import ArmRecord
from pyharness.patience import Patience
from pyharness.plan import Suite
from pyharness.record import Record
from pyharness.runner.base import Runner, SealedLibrary, run_batch
from pyharness.runner.local import LocalRunner
from pyharness.selection import select
from pyharness.values import NOT_RUN, ArmPlan, Digest, ModelSpec

LINES_TOLD = 20  # of what differs


@dataclasses.dataclass(frozen=True)
class Again:
    """A recorded run, and its plan as it is done here; None: its model is not here."""

    recorded: ArmRecord
    model: ModelSpec
    plan: ArmPlan | None


def recompute(
    reference: str,
    models: Sequence[Path],
    only: Sequence[str],
    settings: Settings,
    *,
    as_json: bool = False,
    runner: Runner | None = None,
) -> int:
    """Exits 0 when every run that was asked for gave its recorded digests again."""
    for path in models:
        if not path.exists():
            raise InputError(f"{path}: there is no such model")
    entry, data = gate.open_record(
        settings["archive"], settings["pin"], reference, settings["backend"]
    )
    before = _parse(entry, data)
    runs = list(_runs(before, select(before.suite, only), models, settings))
    if not runs:
        raise NothingProved(f"the record of {entry.label} holds no digest of {_named(only)}")
    with commands.open_candidate(settings) as library:
        device.require(library.backend, f"candidate {library.origin}")
        after = _run(runs, library, runner or LocalRunner(), settings)
        origin = library.origin
    recorded = [run.recorded for run in runs]
    code = replay.exit_code(recorded, after)
    changes = replay.changes([a for a in recorded if a.key in {b.key for b in after}], after)
    lines = _lines(runs, changes, models)
    on = ", driver ".join(str(before.machine[k]) for k in ("gpu", "driver") if k in before.machine)
    made = sum(not arm.result.reason.startswith(NOT_RUN) for arm in after)
    told = (
        f"{made} of {len(runs)} runs of {entry.label}{f' ({on})' if on else ''} again on "
        f"{origin}; exit {int(code)}"
    )
    if as_json:
        whole = {"schema": "ab-recompute/1", "exit_code": int(code), "library": str(entry.library)}
        print(json.dumps(whole | {"changes": changes, "models": lines, "summary": told}, indent=1))
    else:
        print("\n".join([*lines, *(f"  {line}" for line in changes[:LINES_TOLD]), told]))
    return code


def _parse(entry: LogEntry, data: bytes) -> Record:
    before = record.parse_record(data, f"the record of {entry.label}")
    replay.check_plans(before)
    library = before.libraries.get("candidate")
    if library is None or library.digest != entry.library:
        raise InputError(f"the record of {entry.label} is not of a run of {entry.library}")
    return before


def _runs(
    before: Record, chosen: Suite, models: Sequence[Path], settings: Settings
) -> Iterator[Again]:
    """The candidate's runs that ended well; how many threads or which path of the CPU library is
    up to this machine, as it never changes a bit.
    """
    plans = {job.id: job.candidate for job in chosen.jobs}
    here: dict[str, ModelSpec | None] = {}
    for arm in before.arms:
        recorded = arm.arm == "candidate" and arm.role == "arm" and arm.result.status == "done"
        if not recorded or not arm.result.files or arm.job not in plans:
            continue
        plan = plans[arm.job]
        name = plan.model.name
        if name not in here:
            here[name] = _find(plan.model, before, models)
        found = here[name]
        if found is None:
            yield Again(arm, plan.model, None)
            continue
        plan = dataclasses.replace(
            plan,
            model=dataclasses.replace(found, context=plan.model.context),
            threads=settings["threads"] or 1,
            timeout_s=settings["timeout"],
            environment=commands.plan_environment(settings),
        )
        yield Again(arm, found, plan)


def _find(spec: ModelSpec, before: Record, models: Sequence[Path]) -> ModelSpec | None:
    """The model on this machine: the one with the recorded bytes, wherever it lies."""
    if spec.kind == "synthetic":
        return spec
    wanted = _digests(spec, before)
    for path in (*models, Path(spec.path)):
        if path.exists():
            found = model_spec(path)
            facts = {_below(f.name, found.path): f.sha256 for f in input_facts(found)}
            if facts and facts == wanted:
                return found
    return None


def _digests(spec: ModelSpec, before: Record) -> dict[str, Digest]:
    facts = ((_below(f.name, spec.path), f.sha256) for f in before.inputs)
    return {name: digest for name, digest in facts if name is not None}


def _below(name: str, path: str) -> str | None:
    """A file's name within a model's folder; "" for the file itself, None for one elsewhere."""
    if name == path:
        return ""
    return name.removeprefix(f"{path}/") if name.startswith(f"{path}/") else None


def _run(
    runs: Sequence[Again], library: SealedLibrary, runner: Runner, settings: Settings
) -> list[ArmRecord]:
    """Several runs a process and several processes, as ``jobs`` does it; the dumps go at once."""
    ready = [(run, run.plan) for run in runs if run.plan is not None]
    models = {plan.model for _, plan in ready}
    size = jobs.jobs_per_process(models)
    batches: list[list[tuple[Again, ArmPlan]]] = []
    for item in ready:
        if item[1].alone or not batches or len(batches[-1]) >= size or batches[-1][-1][1].alone:
            batches.append([])
        batches[-1].append(item)

    patience = Patience()

    def do(batch: list[tuple[Again, ArmPlan]]) -> list[ArmRecord]:
        with tempfile.TemporaryDirectory(prefix="vllm-cuda-") as folder:
            items = [(plan, Path(folder) / str(i)) for i, (_, plan) in enumerate(batch)]
            made = run_batch(runner, library, items)
            results = list(patience.results([plan for _, plan in batch], made))
        return [
            dataclasses.replace(run.recorded, folder="", result=result)
            for (run, _), result in zip(batch, results, strict=True)
        ]

    workers = settings["workers"] or jobs.parallel_workers(models)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="arm")
    try:
        return [made for batch in pool.map(do, batches) for made in batch]
    except BaseException:
        if stop := getattr(runner, "stop", None):
            stop()  # arms in progress end now, not at their time-out
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _lines(runs: Sequence[Again], changes: Sequence[str], models: Sequence[Path]) -> list[str]:
    """One a model."""
    lines = []
    for name in dict.fromkeys(run.model.name for run in runs):
        mine = [run for run in runs if run.model.name == name]
        slug = mine[0].model.slug
        if any(run.plan is None for run in mine):
            why = "none of the given models has its bytes" if models else "it is not here"
            lines.append(f"{'not run':<12} {slug:<16} {len(mine)} runs: {why}: --model says where")
            continue
        jobs_of = {run.recorded.job for run in mine}
        red = sum(line.partition(" ")[0] in jobs_of for line in changes)
        word = f"{red} changes, " if red else ""
        files = sum(len(run.recorded.result.files) for run in mine)
        lines.append(
            f"{'differs' if red else 'same':<12} {slug:<16} {word}{len(mine)} runs, {files} files"
        )
    return lines


def _named(only: Sequence[str]) -> str:
    return ", ".join(only) or "a run"
