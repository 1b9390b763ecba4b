"""Which arms run, and what each job compares: pure functions from a request to a frozen ``Suite``.

Every arm starts from reset and a prefix of P single steps that are not recorded, then R recorded
rows. R does not depend on M, so one run of the baseline's single steps serves every job of a
prefix.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyharness.errors import InputError, UsageError
from pyharness.values import Arm, ArmPlan, Digest, ModelSpec, Op, to_json

Kind = Literal["m1", "mt", "rb", "libs-mt", "libs-rb"]
Role = Literal["arm", "again", "control"]

DEFAULT_MT = (2, 3, 4, 5, 6, 7, 8)
DEFAULT_RB = (2, 4, 8)
DEFAULT_CONTINUATION = 4
# The first recorded row then sees exactly 64 keys and the next one 65: every M-row step, M = 2
# included, straddles a border of the 64-key chunks in which attention sums.
DEFAULT_PREFIX = 63

# What lies between mark and rollback, or after; "" is the plain case.
ROLLBACK_CASES = {
    "": "an M-row step",
    "singles": "M single steps",
    "mixed": "a single step, an M-row step, a single step",
    "twice": "an M-row step, twice in a row, each with its own mark",
    "changing": "M-row steps of two sizes",
    "then-rows": "an M-row step, and an M-row step follows the rollback",
}


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
    case: str  # of ROLLBACK_CASES
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

    @property
    def widest(self) -> int:
        """The largest M."""
        return max([1, *self.mt, *self.rb, *self.libs_mt, *self.libs_rb])


def generated_tokens(seed: int, count: int, vocab: int) -> tuple[int, ...]:
    """Tokens for a synthetic model: SHA-256 in counter mode, so the n-th token does not depend on
    ``count``.
    """
    return tuple(_number("tokens", seed, i) % vocab for i in range(count))


def build(workloads: Iterable[Workload], request: Request) -> Suite:
    """Every job of every workload and prefix."""
    jobs: list[Job] = []
    notes: list[str] = []
    for workload in workloads:
        for prefix, rows in _windows(workload, request, notes):
            jobs.extend(_Window(workload, request, prefix, rows).jobs())
    if not jobs:
        raise UsageError("nothing to compare: name at least one job, e.g. --mt 2-8")
    return Suite(tuple(jobs), tuple(notes))


def _windows(workload: Workload, request: Request, notes: list[str]) -> Iterator[tuple[int, int]]:
    """(P, R) of each prefix; an own default gives way to short input, a number of the user's does
    not.
    """
    widest = request.widest
    continuation = request.continuation
    if continuation is None and widest == 1:  # m1 alone: nothing bounds the rows but the tokens
        continuation = "all" if workload.given else 2 * DEFAULT_CONTINUATION
    shortest = widest + (continuation if isinstance(continuation, int) else DEFAULT_CONTINUATION)
    if not workload.given:
        if continuation == "all":
            raise UsageError("--continuation all needs tokens of your own: give --tokens or --text")
        for prefix in request.prefixes or (DEFAULT_PREFIX,):
            yield prefix, shortest
        return
    have = len(workload.tokens)
    prefixes = request.prefixes
    if prefixes is None:
        prefixes = (max(0, min(DEFAULT_PREFIX, have - shortest)),)
        if prefixes[0] < DEFAULT_PREFIX:
            notes.append(f"prefix {prefixes[0]} instead of {DEFAULT_PREFIX}: {have} tokens given")
    for prefix in prefixes:
        if have < prefix + shortest:
            raise InputError(
                f"{have} tokens are too few: prefix {prefix} + M {widest} + continuation "
                f"{shortest - widest} need {prefix + shortest}; give more tokens or smaller numbers"
            )
        rows = have - prefix if continuation == "all" else shortest
        if prefix + rows < have:
            notes.append(f"prefix {prefix}: the first {prefix + rows} of {have} tokens are used")
        yield prefix, rows


def again(plan: ArmPlan) -> ArmPlan:
    """The same run once more, in another process."""
    return dataclasses.replace(plan, role="again")


def arm_key(plan: ArmPlan, library: Digest) -> str:
    """Two runs with one key are one run. The role is part of it: `again` must really run again."""
    text = json.dumps([to_json(plan), str(library)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def model_slug(model: ModelSpec) -> str:
    """A short name for job ids and folders."""
    if model.kind == "synthetic":
        seed = f"-s{model.seed}" if model.seed else ""
        return f"{model.family}-{model.size}{seed}"
    stem = model.path.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stem).strip("._") or "model"


class _Window:
    """One model, one prefix: the tokens of every script, and the jobs made of them."""

    def __init__(self, workload: Workload, request: Request, prefix: int, rows: int) -> None:
        tokens = workload.tokens
        if not workload.given:
            tokens = generated_tokens(workload.model.seed, prefix + rows, workload.vocab)
        self.request, self.vocab = request, workload.vocab
        self.prefix, self.recorded = tokens[:prefix], tokens[prefix : prefix + rows]
        # Every arm gets the same cache, so that a result that depends on its size cannot pass for
        # one that depends on M. Beyond P + R a control that does not roll back needs room for the
        # longest detour.
        context = prefix + rows + 2 * request.widest + 2
        self.model = dataclasses.replace(workload.model, context=workload.model.context or context)
        self.name = f"{model_slug(workload.model)}/p{prefix}"

    def jobs(self) -> Iterator[Job]:
        request = self.request
        if request.m1:
            last = len(self.recorded) - 1
            yield self._job("m1", 1, "", self._singles(), last)
        for m in request.mt:
            yield self._job("mt", m, "", self._rows_then_singles(m), m - 1)
        for m in request.rb:
            for case in ROLLBACK_CASES:
                yield self._job("rb", m, case, self._rollback(m, case), 0)
        for m in request.libs_mt:
            yield self._job("libs-mt", m, "", self._rows_then_singles(m), m - 1)
        for m in request.libs_rb:
            for case in ROLLBACK_CASES if request.explicit else ("",):
                yield self._job("libs-rb", m, case, self._rollback(m, case), 0)

    def _job(self, kind: Kind, m: int, case: str, script: tuple[Op, ...], row: int) -> Job:
        both = kind.startswith("libs")
        candidate = self._plan("candidate", script)
        return Job(
            id=f"{self.name}/{kind}{m if kind != 'm1' else ''}{'-' + case if case else ''}",
            kind=kind,
            m=m,
            case=case,
            prefix=len(self.prefix),
            rows=len(self.recorded),
            requested=self.request.explicit,
            baseline=self._plan("baseline", script if both else self._singles()),
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

    # ---- scripts ---------------------------------------------------------------------------------

    def _start(self) -> tuple[Op, ...]:
        return (Op("step", self.prefix),) if self.prefix else ()

    def _singles(self) -> tuple[Op, ...]:
        return (*self._start(), Op("step", self.recorded, record=True))

    def _rows(self, m: int) -> tuple[Op, ...]:
        """The recorded rows: the first M in one step, the rest one by one."""
        rest = self.recorded[m:]
        return (
            Op("step_m", self.recorded[:m], record=True),
            *((Op("step", rest, record=True),) if rest else ()),
        )

    def _rows_then_singles(self, m: int) -> tuple[Op, ...]:
        return (*self._start(), *self._rows(m))

    def _rollback(self, m: int, case: str) -> tuple[Op, ...]:
        other, more = self._other_tokens(m, 0), self._other_tokens(m, m)
        neighbour = self._other_tokens(m - 1 if m > 2 else 3, m)
        mark, back = Op("mark"), Op("rollback")
        detour: tuple[Op, ...] = {
            "": (mark, Op("step_m", other), back),
            "singles": (mark, Op("step", other), back),
            "mixed": (mark, Op("step", more[:1]), Op("step_m", other), Op("step", more[1:2]), back),
            "twice": (mark, Op("step_m", other), back, mark, Op("step_m", more), back),
            "changing": (mark, Op("step_m", other), Op("step_m", neighbour), back),
            "then-rows": (mark, Op("step_m", other), back),
        }[case]
        after = self._rows(m) if case == "then-rows" else (self._singles()[-1],)
        return (*self._start(), *detour, *after)

    def _other_tokens(self, count: int, offset: int) -> tuple[int, ...]:
        """Tokens that the script does not use elsewhere, as long as the vocabulary has such.

        The control of a rollback job leaves the rollback out. With an empty prefix and attention
        only, its first row then differs because the cache holds other values: so a detour of the
        very tokens that follow would prove nothing.
        """
        used = {*self.prefix, *self.recorded}
        free = self.vocab - len(used & set(range(self.vocab)))
        chosen: list[int] = []
        counter = offset << 32  # one stream of numbers for each offset
        while len(chosen) < count:
            token = _number("other", 0, counter) % self.vocab
            counter += 1
            avoid = used if free > 0 else {self.recorded[0]}
            if token not in avoid or self.vocab == 1:
                chosen.append(token)
        return tuple(chosen)

    # ---- controls --------------------------------------------------------------------------------

    def _control(self, candidate: ArmPlan, row: int) -> Control:
        if any(op.kind == "rollback" for op in candidate.script):
            last = max(i for i, op in enumerate(candidate.script) if op.kind == "rollback")
            script = candidate.script[:last] + candidate.script[last + 1 :]
            plan = dataclasses.replace(candidate, role="control", script=script)
            return Control(plan, 0, "the last rollback is left out")
        token = self._other_tokens(row + 1, 0)[row] if self.vocab > 1 else self.recorded[row]
        if token == self.recorded[row]:
            token = (token + 1) % self.vocab
        plan = dataclasses.replace(
            candidate, role="control", script=_with_row(candidate.script, row, token)
        )
        return Control(plan, row, f"another token in row {row}")


def _with_row(script: tuple[Op, ...], row: int, token: int) -> tuple[Op, ...]:
    """The script with the token of one recorded row replaced."""
    changed, first = [], 0
    for op in script:
        if op.record:
            at = row - first
            if 0 <= at < len(op.tokens):
                op = dataclasses.replace(op, tokens=(*op.tokens[:at], token, *op.tokens[at + 1 :]))
            first += len(op.tokens)
        changed.append(op)
    return tuple(changed)


def _number(stream: str, seed: int, counter: int) -> int:
    """64 bits of SHA-256 of (stream, seed, counter)."""
    text = f"{stream}/{seed}/{counter}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
