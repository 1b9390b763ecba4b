"""What the green jobs of a run exercised: which kinds of job, on which kinds of layer, for which M.

Equal bits on GDN layers say nothing of attention, and single steps nothing of rollbacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pyharness.differences.places import KIND_NAMES
from pyharness.host.script import needed_entries
from pyharness.inputs.layout import LayerKind
from pyharness.inputs.model import load_config
from pyharness.plan import Job
from pyharness.values import JobStatus, ModelSpec, Op
from pyharness.verdict import JobVerdict

# What a library has to show before it is accepted: kinds of job, and the calls that they make.
DEMANDED: dict[str, tuple[Op, ...]] = {
    "m1": (),
    "mt": (Op("step_m"),),
    "rb": (Op("step_m"), Op("mark"), Op("rollback")),
}


@dataclass(frozen=True)
class ModelCoverage:
    """One model of a run, and its green jobs."""

    model: str
    layers: dict[str, int]  # kind, as in ``KIND_NAMES`` -> how many of its layers
    jobs: dict[str, int]  # kind of job -> how many were green
    rows: tuple[int, ...]  # every M among them
    prefixes: tuple[int, ...]

    @property
    def line(self) -> str:
        layers = ", ".join(f"{count} {kind}" for kind, count in self.layers.items())
        jobs = ", ".join(f"{count} {kind}" for kind, count in self.jobs.items()) or "none"
        rows = f"; M {', '.join(map(str, self.rows))}" if self.rows else ""
        prefixes = f"; prefix {', '.join(map(str, self.prefixes))}" if self.prefixes else ""
        return f"{self.model} ({layers}): same: {jobs}{rows}{prefixes}"


def coverage_of(
    jobs: Sequence[Job],
    verdicts: Sequence[JobVerdict],
    layers: Mapping[str, dict[str, int]] = MappingProxyType({}),
) -> tuple[ModelCoverage, ...]:
    """Model by model, in the order of the suite. ``layers``: of models whose files are elsewhere,
    by name.
    """
    models = {job.candidate.model.name: job.candidate.model for job in jobs}
    green: dict[str, list[Job]] = {name: [] for name in models}
    for job, verdict in zip(jobs, verdicts, strict=True):
        if verdict.status is JobStatus.SAME:
            green[job.candidate.model.name].append(job)
    return tuple(
        _of_model(model, green[name], layers.get(name) or _layers_of(model))
        for name, model in models.items()
    )


def _layers_of(model: ModelSpec) -> dict[str, int]:
    kinds = Counter(load_config(model).layer_kinds)
    return {KIND_NAMES[kind]: kinds[kind] for kind in LayerKind if kinds[kind]}


def _of_model(model: ModelSpec, green: Sequence[Job], layers: dict[str, int]) -> ModelCoverage:
    return ModelCoverage(
        model=model.name,
        layers=layers,
        jobs=dict(Counter(str(job.kind) for job in green)),
        rows=tuple(sorted({job.m for job in green if job.kind != "m1"})),
        prefixes=tuple(sorted({job.prefix for job in green})),
    )


def gaps(coverage: Iterable[ModelCoverage], missing: Collection[str]) -> tuple[str, ...]:
    """What was never shown of a library that lacks these optional entries, e.g. "mt on attention
    layers".
    """
    coverage = tuple(coverage)
    found = []
    for kind, calls in DEMANDED.items():
        if calls and not set(needed_entries(calls)).isdisjoint(missing):
            continue
        seen = {layer for model in coverage if model.jobs.get(kind) for layer in model.layers}
        unseen = [layer for layer in KIND_NAMES.values() if layer not in seen]
        if unseen:
            found.append(f"{kind} on {' and '.join(unseen)} layers")
    return tuple(found)
