"""Looks into a red job: how far the dumps are apart, and both scripts once more with taps on.

The first pass, in fresh workers, digests every operation of every row, prefix included, and every
state; a second one keeps the elements of the one operation where the two traces part. One pass
over all digests takes the place of a search by halves, which would need a run for each half and
miss a difference that does not last.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyharness.differences.divergence import (
    Floats,
    Place,
    described,
    differing,
    from_dumps,
    reproduces,
    states_beside,
    word_at,
)
from pyharness.differences.explain import explain
from pyharness.differences.findings import Divergence
from pyharness.differences.spread import spread
from pyharness.differences.traces import (
    CAPTURE,
    Capture,
    Site,
    Trace,
    TraceRequest,
    digest,
    read_trace,
)
from pyharness.errors import HarnessError
from pyharness.inputs.model import load_config
from pyharness.plan import Job
from pyharness.runner.base import Runner, SealedLibrary, TracingRunner
from pyharness.values import Arm, ArmPlan, Comparison
from pyharness.verdict import JobVerdict

TRACED_JOBS = 8  # of each M of a model and prefix the first red case: seldom has one other causes
TRACED_S = 300.0  # no further trace is begun after so long; a pass at 27B takes minutes
FOLDER = "first-difference"  # of a run: the two captures of each job that was looked into


class NoTrace(Exception):
    """Why an arm could not be traced, for a note."""


@dataclass(frozen=True)
class Side:
    """One arm of the search: whose plan, on whose library, and what it is called."""

    name: str
    plan: ArmPlan
    library: SealedLibrary
    dump: Path  # what the arm wrote without taps


class Investigator:
    """Explains a red job. One for a run: equal traces are made once."""

    def __init__(
        self,
        libraries: Mapping[Arm, SealedLibrary],
        runner: Runner,
        root: Path,
        *,
        trace: bool = True,
    ) -> None:
        self._libraries, self._root = libraries, root
        self._runner = runner if trace and isinstance(runner, TracingRunner) else None
        self._traces: dict[tuple[str, ArmPlan], Trace | NoTrace] = {}
        self._made = 0
        self._looked: set[str] = set()
        self._spent_s = 0.0

    def __call__(
        self, job: Job, verdict: JobVerdict, folder: Callable[[ArmPlan], Path]
    ) -> JobVerdict:
        """The verdict with a divergence and explanations; its status stays what it is."""
        comparison = verdict.comparison
        baseline, candidate = folder(job.baseline), folder(job.candidate)
        told = explain(baseline, candidate, comparison) if comparison else ()
        found = None
        group = job.id.removesuffix(f"-{job.case}")
        if group not in self._looked:
            began = time.monotonic()
            may_trace = len(self._looked) < TRACED_JOBS and self._spent_s < TRACED_S
            found = self._divergence(job, comparison, folder, may_trace)
            self._looked.add(group)
            self._spent_s += time.monotonic() - began
        return dataclasses.replace(verdict, divergence=found, explanations=told)

    def _divergence(
        self,
        job: Job,
        comparison: Comparison | None,
        folder: Callable[[ArmPlan], Path],
        may_trace: bool,
    ) -> Divergence | None:
        ours = self._side("baseline", job.baseline, folder)
        theirs = self._side("candidate", job.candidate, folder)
        if comparison is None or comparison.equal:  # a row of the control that should not change
            ours, theirs = theirs, self._side("control", job.control.plan, folder)
        note = ""
        if self._runner is not None and may_trace:
            try:
                return self._search(ours, theirs, self._root / FOLDER / job.id.replace("/", "."))
            except NoTrace as e:
                note = str(e)
        config = load_config(theirs.plan.model)
        names = (ours.name, theirs.name)
        note = f"layer and operation are not known: {note}" if note else ""
        return from_dumps(names, config, theirs.plan.script, (ours.dump, theirs.dump), note)

    def _side(self, name: str, plan: ArmPlan, folder: Callable[[ArmPlan], Path]) -> Side:
        return Side(name, plan, self._libraries[plan.arm], folder(plan))

    # ---- traces ----------------------------------------------------------------------------------

    def _search(self, ours: Side, theirs: Side, work: Path) -> Divergence:
        second, note = self._trace(theirs), ""
        try:
            first = self._trace(ours)
        except NoTrace as e:
            ours, first = self._stand_in(ours, theirs, e)
            note = f"{e}: its script on the {theirs.name}'s library, with its bits, stands in"
        same_script = ours.plan.script == theirs.plan.script
        sites = list(differing(first, second, same_script=same_script))
        if not sites:
            raise NoTrace("with taps on the two arms are equal: the fault needs taps to be off")
        site, (a, b) = sites[0]
        arrays = [
            self._capture(side, trace, place, site, work / f"{side.name}.npy")
            for side, trace, place in ((ours, first, a), (theirs, second, b))
        ]
        config = load_config(theirs.plan.model)
        names = (ours.name, theirs.name)
        found = described(names, config, second, site, b, arrays[0], arrays[1], note)
        also = states_beside(config, sites)
        return dataclasses.replace(found, also=also, spread=spread(second, sites))

    def _stand_in(self, ours: Side, theirs: Side, why: NoTrace) -> tuple[Side, Trace]:
        """The other library on this arm's script, where its bits are known to be this arm's."""
        other = dataclasses.replace(ours, library=theirs.library)
        try:
            return other, self._trace(other)
        except NoTrace:
            raise why from None

    def _trace(self, side: Side) -> Trace:
        """The side's trace, whose recorded rows are those of its dump."""
        key = str(side.library.digest), side.plan
        if key not in self._traces:
            try:
                self._traces[key] = self._make_trace(side)
            except NoTrace as e:
                self._traces[key] = e
        made = self._traces[key]
        if isinstance(made, NoTrace):
            raise made
        if not reproduces(made, side.dump):
            raise NoTrace(f"alone and with taps on the {side.name} gives other bits")
        return made

    def _make_trace(self, side: Side) -> Trace:
        folder = self._run(side, TraceRequest())
        try:
            return read_trace(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, side: Side, request: TraceRequest) -> Path:
        assert self._runner is not None
        self._made += 1
        folder = self._root / FOLDER / f".{self._made}"
        try:
            result = self._runner.trace(side.plan, side.library, folder, request)
        except HarnessError as e:
            raise NoTrace(f"the {side.name} could not be traced: {e}") from None
        if result.status == "unsupported":
            raise NoTrace(f"the {side.name} lacks {result.missing[0]}")
        if result.status == "failed":
            raise NoTrace(f"the {side.name} with taps on: {result.reason}")
        return folder

    def _capture(self, side: Side, trace: Trace, place: Place, site: Site, keep: Path) -> Floats:
        """The elements of a row of one operation, or of a part of the state, kept with the run."""
        capture = Capture(place.call, site.layer, site.kind, site.state, max(0, place.row))
        folder = self._run(side, TraceRequest(capture))
        keep.parent.mkdir(parents=True, exist_ok=True)
        (folder / CAPTURE).replace(keep)
        shutil.rmtree(folder, ignore_errors=True)
        array = np.load(keep, allow_pickle=False)
        if digest(array) != word_at(trace, place, site):
            raise NoTrace(f"with taps on the {side.name} differs from itself")
        return array
