"""Which arms run, and what each job compares: pure functions from a request to a frozen ``Suite``.

Every arm starts from reset and a prefix of P single steps that are not recorded, then R recorded
rows. R does not depend on M, so one run of the baseline's single steps serves every job of a
prefix.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyharness.errors import InputError, UsageError
from pyharness.scripts import POISON, Scripts, last_rollback, stream_number, with_row, without_call
from pyharness.values import Arm, ArmPlan, Digest, ModelSpec, Op, to_json

Profile = Literal["quick", "full"]
Kind = Literal["m1", "mt", "rb", "libs-mt", "libs-rb"]
Role = Literal["arm", "again", "control"]

DEFAULT_MT = (2, 3, 4, 5, 6, 7, 8)
DEFAULT_RB = (2, 4, 8)
DEFAULT_CONTINUATION = 4
# The first recorded row then sees exactly 64 keys and the next one 65: every M-row step, M = 2
# included, straddles a border of the 64-key chunks in which attention sums.
DEFAULT_PREFIX = 63
SPAN_PREFIX = 1023  # likewise, of the spans of 16 chunks
FULL_PREFIXES = (0, 1, 5, 17, 64, 65, 200)  # of the full profile, beside the default one
# The C library of GNU fills what it hands out: what is read before it is written differs.
OTHER_MEMORY = ("MALLOC_PERTURB_", "165")
FULL_ROWS = 64  # recorded rows of the full profile


@dataclass(frozen=True)
class Control:
    """An arm that must differ: rows before ``row`` equal the candidate's, ``row`` itself is another
    one.
    """

    plan: ArmPlan
    row: int
    change: str  # what was changed, for people


@dataclass(frozen=True)
class Job:
    """One line of the verdict: two arms, and the control that shows that the comparison can turn
    red.
    """

    id: str
    kind: Kind
    m: int  # rows of the M-row step; 1 for m1
    case: str  # of ROW_CASES or ROLLBACK_CASES in scripts.py
    prefix: int  # P
    rows: int  # R, recorded rows
    requested: bool  # asked for by name: then `unsupported` is not a success
    baseline: ArmPlan
    candidate: ArmPlan
    control: Control

    def arms(self) -> Iterator[ArmPlan]:
        """All five runs, in the order in which they are started."""
        yield self.baseline
        yield self.candidate
        yield again(self.baseline)
        yield again(self.candidate)
        yield self.control.plan


@dataclass(frozen=True)
class Suite:
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()  # what a reader must know, e.g. that a default was reduced


@dataclass(frozen=True)
class Workload:
    """A model and the tokens it reads; ``given``: they are the user's, not generated."""

    model: ModelSpec
    vocab: int
    tokens: tuple[int, ...] = ()
    given: bool = False


@dataclass(frozen=True)
class Request:
    """What to compare. Prefixes and continuation None: the defaults, fitted to the tokens."""

    m1: bool = True
    mt: tuple[int, ...] = DEFAULT_MT
    rb: tuple[int, ...] = DEFAULT_RB
    libs_mt: tuple[int, ...] = DEFAULT_MT  # M rows of the old library against M rows of the new one
    libs_rb: tuple[int, ...] = DEFAULT_RB
    explicit: bool = False  # jobs were named by the user: then libs_rb too means every case
    prefixes: tuple[int, ...] | None = None
    continuation: int | Literal["all"] | None = None
    threads: int = 0
    timeout_s: float = 600.0
    environment: tuple[tuple[str, str], ...] = ()
    profile: Profile = "quick"

    @property
    def widest(self) -> int:
        """The largest M."""
        return max([1, *self.mt, *self.rb, *self.libs_mt, *self.libs_rb])


@dataclass(frozen=True)
class _Extent:
    """Of a window: P, R, and whether it is one of many (``few`` cases), costs much (``long``), or
    has nothing but the first step of a process (``fresh``).
    """

    prefix: int
    rows: int
    few: bool = False
    long: bool = False
    fresh: bool = False


def generated_tokens(seed: int, count: int, vocab: int) -> tuple[int, ...]:
    """Tokens for a synthetic model: SHA-256 in counter mode, so the n-th token does not depend on
    ``count``.
    """
    return tuple(stream_number("tokens", seed, i) % vocab for i in range(count))


def build(workloads: Iterable[Workload], request: Request) -> Suite:
    """Every job of every workload and prefix."""
    jobs: list[Job] = []
    notes: list[str] = []
    for workload in workloads:
        for extent in _windows(workload, request, notes):
            jobs.extend(_Window(workload, request, extent).jobs())
    if not jobs:
        raise UsageError("nothing to compare: name at least one job, e.g. --mt 2-8")
    return Suite(tuple(jobs), tuple(notes))


def _windows(workload: Workload, request: Request, notes: list[str]) -> Iterator[_Extent]:
    """An own default gives way to short input, a number of the user's does not."""
    widest, full = request.widest, request.profile == "full"
    continuation = request.continuation
    if continuation is None and widest == 1:  # m1 alone: nothing bounds the rows but the tokens
        continuation = "all" if workload.given else 2 * DEFAULT_CONTINUATION
    shortest = widest + (continuation if isinstance(continuation, int) else DEFAULT_CONTINUATION)
    rows = max(shortest, FULL_ROWS) if full and continuation is None else shortest
    have = len(workload.tokens) if workload.given else 0
    if not workload.given:
        if continuation == "all":
            raise UsageError("--continuation all needs tokens of your own: give --tokens or --text")
        for prefix in request.prefixes or (DEFAULT_PREFIX,):
            yield _Extent(prefix, rows)
        if request.prefixes is None:
            yield from _further_windows(workload.model, request, shortest)
        return
    if full:
        rows = min(rows, max(shortest, have // 2))
    prefixes = request.prefixes
    if prefixes is None:
        prefixes = (max(0, min(DEFAULT_PREFIX, have - rows)),)
        if prefixes[0] < DEFAULT_PREFIX:
            notes.append(f"prefix {prefixes[0]} instead of {DEFAULT_PREFIX}: {have} tokens given")
    for prefix in prefixes:
        if have < prefix + shortest:
            raise InputError(
                f"{have} tokens are too few: prefix {prefix} + M {widest} + continuation "
                f"{shortest - widest} need {prefix + shortest}; give more tokens or smaller numbers"
            )
        made = have - prefix if continuation == "all" else min(rows, have - prefix)
        if prefix + made < have:
            notes.append(f"prefix {prefix}: the first {prefix + made} of {have} tokens are used")
        yield _Extent(prefix, made)


def _further_windows(model: ModelSpec, request: Request, rows: int) -> Iterator[_Extent]:
    """With fewer cases: the first step of a process, other borders of chunks and spans."""
    if request.profile == "full":
        for prefix in FULL_PREFIXES:
            yield _Extent(prefix, rows, few=True)
    elif model.size == "tiny" and not request.explicit:
        yield _Extent(0, rows, few=True, fresh=True)
    if model.size == "tiny" and model.family in (
        ("attn", "hybrid") if request.profile == "full" else ("attn",)
    ):
        yield _Extent(SPAN_PREFIX, rows, few=True, long=True)


def again(plan: ArmPlan) -> ArmPlan:
    """The same run once more, in another process, where fresh memory holds another value."""
    return dataclasses.replace(plan, role="again", environment=(*plan.environment, OTHER_MEMORY))


def arm_key(plan: ArmPlan, library: Digest) -> str:
    """Two runs with one key are one run. The role is part of it: `again` must really run again."""
    text = json.dumps([to_json(plan), str(library)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Window:
    """One model, one prefix: the tokens of every script, and the jobs made of them."""

    def __init__(self, workload: Workload, request: Request, extent: _Extent) -> None:
        prefix, rows = extent.prefix, extent.rows
        tokens = workload.tokens
        if not workload.given:
            tokens = generated_tokens(workload.model.seed, prefix + rows, workload.vocab)
        self.request, self.extent = request, extent
        self.full = request.profile == "full" and not extent.few
        self.scripts = Scripts(tokens[:prefix], tokens[prefix : prefix + rows], workload.vocab)
        # Every arm gets the same cache, so that a result that depends on its size cannot pass for
        # one that depends on M. Beyond P + R a control that does not roll back needs room for the
        # longest detour.
        context = prefix + rows + 2 * request.widest + 2
        self.model = dataclasses.replace(workload.model, context=workload.model.context or context)
        self.name = f"{workload.model.slug}/p{prefix}"

    def jobs(self) -> Iterator[Job]:
        request, scripts = self.request, self.scripts
        if self.extent.fresh:
            for m in request.mt[-1:]:
                yield self._job("mt", m, "fresh", scripts.rows(m, "fresh"), m - 1)
            return
        if request.m1:
            for case in self._single_cases():
                last = len(scripts.recorded) - 1
                yield self._job("m1", 1, case, scripts.singles(case), last)
        kinds: tuple[tuple[Kind, tuple[int, ...]], ...] = (
            ("mt", request.mt), ("rb", request.rb),
            ("libs-mt", request.libs_mt), ("libs-rb", request.libs_rb),
        )  # fmt: skip
        for kind, rows in kinds:
            for m in rows[-1:] if self.extent.long else rows:
                yield from self._jobs_of(kind, m, rows)

    def _jobs_of(self, kind: Kind, m: int, rows: tuple[int, ...]) -> Iterator[Job]:
        """Of one M: every case, or of the two libraries against each other the plain one unless
        they were asked for.
        """
        back, scripts = kind.endswith("rb"), self.scripts
        cases: Iterable[str] = (self._rollback_cases if back else self._row_cases)(m, rows)
        for case in cases if self.request.explicit or not kind.startswith("libs") else ("",):
            if back:
                yield self._job(kind, m, case, scripts.rollback(m, case), m - 1)
            else:
                row = min(m if case == "mixed" else m - 1, len(scripts.recorded) - 1)
                yield self._job(kind, m, case, scripts.rows(m, case), row)

    # ---- which cases -----------------------------------------------------------------------------

    def _single_cases(self) -> tuple[str, ...]:
        if self.extent.few:
            return ("",)
        return ("", "refused", "threads") if self.full else ("", "refused")

    def _row_cases(self, m: int, rows: tuple[int, ...]) -> Iterator[str]:
        """Every M plainly; the rest for the widest M, and for every M in the full profile."""
        yield ""
        if self.extent.prefix == 0 and m == rows[-1]:
            yield "fresh"
        if self.extent.few:
            return
        if m == rows[-1] or self.full:
            yield from ("mixed", "refused", "reset", *POISON)
        if self.full:
            yield "threads"

    def _rollback_cases(self, m: int, rows: tuple[int, ...]) -> Iterator[str]:
        counts = sorted({1, m - 1})
        if self.extent.few:
            yield from ("", *(f"keep{n}" for n in counts))
            return
        yield from ("", "singles", "mixed", "twice", "changing", "then-rows")
        if m == rows[-1] or self.full:
            yield from ("refused", "reset", *POISON, "schedule", "keep-schedule", "keep-refused")
            if len(self.scripts.recorded) > m:  # a row must follow the last rollback
                yield from ("after-rows", "keep-twice")
        if self.full:
            yield from (f"schedule-{name}" for name in ("all", "none", "one"))
            yield "keep-schedule-one"
        yield from (f"accept{n}" for n in (range(1, m + 1) if self.full else (m // 2,)))
        yield from (f"keep{n}" for n in (range(m + 1) if self.full else counts))

    # ---- what they are made of -------------------------------------------------------------------

    def _job(self, kind: Kind, m: int, case: str, script: tuple[Op, ...], row: int) -> Job:
        both, scripts = kind.startswith("libs"), self.scripts
        baseline = self._plan("baseline", script if both else scripts.singles())
        candidate = self._plan("candidate", script)
        if case == "threads":
            baseline = dataclasses.replace(baseline, threads=1)
            candidate = dataclasses.replace(candidate, threads=2)
        if case == "refused" and not kind.endswith("rb"):  # then the context is full at the end
            end = len(scripts.prefix) + len(scripts.recorded)
            model = dataclasses.replace(self.model, context=end)
            baseline, candidate = (
                dataclasses.replace(plan, model=model) for plan in (baseline, candidate)
            )
        candidate = dataclasses.replace(candidate, alone=case == "fresh")
        optional = any({op.kind, op.what} & {"rollback_to", "poison"} for op in script)
        return Job(
            id=f"{self.name}/{kind}{m if kind != 'm1' else ''}{'-' + case if case else ''}",
            kind=kind,
            m=m,
            case=case,
            prefix=len(scripts.prefix),
            rows=len(scripts.recorded),
            requested=self.request.explicit and not optional,
            baseline=baseline,
            candidate=candidate,
            control=self._control(candidate, row),
        )

    def _plan(self, arm: Arm, script: tuple[Op, ...]) -> ArmPlan:
        rows = [len(op.tokens) for op in script if op.kind == "step_m"]
        marks = any(op.kind == "mark" for op in script)
        return ArmPlan(
            arm=arm,
            role="arm",
            model=self.model,
            script=script,
            mmax=max([2 if marks else 0, *rows]),
            threads=self.request.threads,
            timeout_s=self.request.timeout_s,
            environment=self.request.environment,
        )

    def _control(self, candidate: ArmPlan, row: int) -> Control:
        """Without the last rollback; where there is none, with another token in that row."""
        if (last := last_rollback(candidate.script)) >= 0:
            script, row = without_call(candidate.script, last)
            change = "the last rollback is left out"
        else:
            recorded, vocab = self.scripts.recorded, self.scripts.vocab
            token = self.scripts.other(row + 1, 0)[row] if vocab > 1 else recorded[row]
            if token == recorded[row]:
                token = (token + 1) % vocab
            script, change = with_row(candidate.script, row, token), f"another token in row {row}"
        return Control(dataclasses.replace(candidate, role="control", script=script), row, change)
