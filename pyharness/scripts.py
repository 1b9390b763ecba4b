"""Scripts: the calls of an arm, made from the tokens of a window. Pure functions.

A window is a prefix of P tokens and R recorded ones. Every script of a window ends with these
P + R tokens in the state and has recorded the rows of the last R, in order, however it came there:
so all of them can be compared with R single steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from pyharness.values import Op

POISON = {"nan": 0x7FC12345, "large": 0x7E967699}  # large: 1e38
MARK, BACK, RESET = Op("mark"), Op("rollback"), Op("reset")

# Cases of a kind of job; "" is the plain one. {n} stands for a number of accepted rows.
ROW_CASES = {
    "": "one M-row step, then single steps",
    "mixed": "single steps and M-row steps of changing M in turn",
    "refused": "calls that must be refused lie between, and the context is full at the end",
    "reset": "other tokens and a reset, twice",
    "nan": "unused memory is filled with NaN before each call",
    "large": "unused memory is filled with 1e38 before each call",
    "threads": "two threads against one",
    "fresh": "the first step of its process",
}
# What lies between mark and rollback, or after.
ROLLBACK_CASES = {
    "": "an M-row step",
    "singles": "M single steps",
    "mixed": "a single step, an M-row step, a single step",
    "twice": "an M-row step, twice in a row, each with its own mark",
    "changing": "M-row steps of two sizes",
    "then-rows": "an M-row step, and an M-row step follows the rollback",
    "after-rows": "an M-row step; a mark and an M-row step that is kept lie before",
    "refused": "an M-row step between calls that must be refused",
    "reset": "an M-row step after a mark that a reset forgot",
    "nan": "an M-row step; unused memory is filled with NaN before each call",
    "large": "an M-row step; unused memory is filled with 1e38 before each call",
    "accept{n}": "an M-row step of which n rows are right; they are made again one by one",
    "keep{n}": "an M-row step of which n rows are right; rollback_to(n)",
    "keep-twice": "the same, twice in a row",
    "keep-refused": "two M-row steps, then a single step, which rollback_to refuses",
    "schedule": "drafts of changing M; a changing number is right and made again one by one",
    "schedule-all": "drafts of M rows, all of them right",
    "schedule-none": "drafts of M rows, none of them right",
    "schedule-one": "drafts of M rows, one of them right",
    "keep-schedule": "drafts of changing M; rollback_to keeps those that are right",
    "keep-schedule-one": "drafts of M rows, rollback_to(1)",
}


@dataclass(frozen=True)
class Scripts:
    """Of one window."""

    prefix: tuple[int, ...]
    recorded: tuple[int, ...]
    vocab: int

    @property
    def start(self) -> tuple[Op, ...]:
        return (Op("step", self.prefix),) if self.prefix else ()

    def singles(self, case: str = "") -> tuple[Op, ...]:
        if case == "refused":
            two = self.recorded[:2]
            between = (
                self._strange_step(), Op("refused", two, what="step_m"),
                Op("refused", what="mark"), Op("refused", what="rollback"),
            )  # fmt: skip
            first, rest = self._steps(0, 1), self._steps(1, len(self.recorded))
            return (*self.start, *between, *first, *between, *rest, self._step_too_many())
        return (*self.start, *self._steps(0, len(self.recorded)))

    def rows(self, m: int, case: str = "") -> tuple[Op, ...]:
        """The recorded rows: the first M in one step, the rest one by one."""
        plain = (*self.start, *self._rows(m))
        if case == "mixed":
            return (*self.start, *self._mixed(m))
        if case == "refused":
            return self._rows_refused(m)
        if case == "reset":
            # an odd number of calls, then an even one: states may alternate between two places
            step, rows = Op("step", self.other(1, 0)), Op("step_m", self.other(m, m))
            return (step, RESET, step, rows, RESET, *plain)
        return poisoned(plain, POISON[case]) if case in POISON else plain

    def rollback(self, m: int, case: str) -> tuple[Op, ...]:
        if case in POISON:
            return poisoned(self.rollback(m, ""), POISON[case])
        if case.startswith(("schedule", "keep-schedule")):
            return (*self.start, *self._schedule(m, case))
        if case.startswith(("keep", "accept")):
            return (*self.start, *self._accepted(m, case))
        other, more = self.other(m, 0), self.other(m, m)
        neighbour = self.other(m - 1 if m > 2 else 3, m)
        rows = Op("step_m", other)
        plain = (MARK, rows, BACK)
        gone = Op("refused", what="rollback")
        wide, strange = self._too_wide(m), self._strange_rows(m)
        before: tuple[Op, ...] = self.start
        if case == "reset":
            before = (Op("step", more[:1]), MARK, Op("step_m", more), RESET, gone, *self.start)
        detour: tuple[Op, ...] = {
            "singles": (MARK, Op("step", other), BACK),
            "mixed": (MARK, Op("step", more[:1]), rows, Op("step", more[1:2]), BACK),
            "twice": (MARK, rows, BACK, MARK, Op("step_m", more), BACK),
            "changing": (MARK, rows, Op("step_m", neighbour), BACK),
            "after-rows": (MARK, *self._rows(m)[:1], MARK, Op("step_m", more), BACK),
            "refused": (gone, MARK, self._strange_step(), wide, rows, *strange, BACK, gone),
        }.get(case, plain)
        if case == "then-rows":
            return (*before, *detour, *self._rows(m))
        made = m if case == "after-rows" else 0
        return (*before, *detour, *self._steps(made, len(self.recorded)))

    # ---- parts -----------------------------------------------------------------------------------

    def _steps(self, first: int, end: int, record: bool = True) -> tuple[Op, ...]:
        tokens = self.recorded[first:end]
        return (Op("step", tokens, record=record),) if tokens else ()

    def _rows(self, m: int) -> tuple[Op, ...]:
        rows = Op("step_m", self.recorded[:m], record=True)
        return (rows, *self._steps(m, len(self.recorded)))

    def _mixed(self, m: int) -> Iterator[Op]:
        at, width = 0, m
        while at < len(self.recorded):
            yield from self._steps(at, at + 1)
            tokens = self.recorded[at + 1 : at + 1 + width]
            if tokens:
                yield Op("step_m" if len(tokens) > 1 else "step", tokens, record=True)
            at, width = at + 1 + width, width - 1 if width > 2 else m

    def _rows_refused(self, m: int) -> tuple[Op, ...]:
        """The context has room for the recorded rows and no more: a step of one row more than is
        left is refused, and the last rows fill it in one step.
        """
        end = len(self.recorded)
        full = Op("refused", self.other(m, 0), what="step_m")
        before = (self._strange_step(), self._too_wide(m), *self._strange_rows(m))
        rows, *rest = self._rows(m)
        if last := min(m - 1, end - m):
            over = Op("refused", self.other(last + 1, 0), what="step_m")
            tokens = self.recorded[end - last :]
            fills = Op("step_m" if last > 1 else "step", tokens, record=True)
            rest = [*self._steps(m, end - last), over, fills]
        return (*self.start, *before, rows, *before, *rest, full, self._step_too_many())

    def _accepted(self, m: int, case: str) -> Iterator[Op]:
        """Drafts of which the first n tokens are right."""
        if case == "keep-refused":
            refused = Op("refused", number=1, what="rollback_to")
            yield from (MARK, refused, Op("step_m", self.other(m, 0)))
            yield from (Op("step_m", self.other(m, m)), refused)
            yield from (Op("step", self.other(1, 2 * m)), refused, BACK, refused)
            yield from self._steps(0, len(self.recorded))
            return
        number = case.removeprefix("accept").removeprefix("keep")
        counts = [1, m - 1] if number == "-twice" else [int(number)]
        at = 0
        for i, n in enumerate(counts):
            yield from self._draft(at, m, n, keep=case.startswith("keep"), number=i)
            at += n
        yield from self._steps(at, len(self.recorded))

    def _draft(self, at: int, m: int, n: int, *, keep: bool, number: int) -> Iterator[Op]:
        right = self.recorded[at : at + n]
        yield MARK
        yield Op("step_m", (*right, *self.other(m - n, 16 * number)), record=n > 0, number=n)
        if keep:
            yield Op("rollback_to", number=n)
        elif n < m:
            yield BACK
            yield from self._steps(at, at + n, record=False)

    def _schedule(self, m: int, case: str) -> Iterator[Op]:
        """Draft, accept, go on, as speculative decoding does, to the end of the window."""
        at, number, end = 0, 0, len(self.recorded)
        fixed = {"all": m, "none": 0, "one": 1}.get(case.rsplit("-", 1)[-1])
        while end - at > 1:
            width = m if fixed is not None else max(2, m - number % m)
            width = min(width, end - at)
            n = min(width, number % (width + 1) if fixed is None else fixed)
            yield from self._draft(at, width, n, keep=case.startswith("keep"), number=number)
            at, number = at + n, number + 1
            if n == 0 or (fixed is None and number % 3 == 0):
                yield from self._steps(at, at + 1)
                at += 1
        yield from self._steps(at, end)

    # ---- calls that must be refused --------------------------------------------------------------

    def _strange_step(self) -> Op:
        return Op("refused", (self.vocab,), what="step")

    def _strange_rows(self, m: int) -> tuple[Op, Op]:
        """In the last row, below the vocabulary, and in the first, beyond it."""
        right = self.recorded[: m - 1]
        rows = (*right, -1), (self.vocab, *right)
        return Op("refused", rows[0], what="step_m"), Op("refused", rows[1], what="step_m")

    def _too_wide(self, m: int) -> Op:
        return Op("refused", self.other(m + 1, 0), what="step_m")

    def _step_too_many(self) -> Op:
        return Op("refused", self.other(1, 0), what="step")

    # ---- tokens ----------------------------------------------------------------------------------

    def other(self, count: int, offset: int) -> tuple[int, ...]:
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
            token = stream_number("other", 0, counter) % self.vocab
            counter += 1
            avoid = used if free > 0 else {self.recorded[0]}
            if token not in avoid or self.vocab == 1:
                chosen.append(token)
        return tuple(chosen)


def poisoned(script: tuple[Op, ...], word: int) -> tuple[Op, ...]:
    """Before each call, and so after each but the last; recorded single steps are told apart."""
    made: list[Op] = []
    for op in script:
        calls = [op]
        if op.kind == "step" and op.record:
            calls = [dataclasses.replace(op, tokens=(token,)) for token in op.tokens]
        for call in calls:
            made += [Op("poison", number=word), call]
    return tuple(made)


def last_rollback(script: tuple[Op, ...]) -> int:
    """Index of the last call that takes rows back, -1 where there is none."""
    width, found = 0, -1
    for i, op in enumerate(script):
        if op.kind in ("step", "step_m"):
            width = len(op.tokens)
        elif op.kind == "rollback" or (op.kind == "rollback_to" and op.number < width):
            found = i
    return found


def without_call(script: tuple[Op, ...], index: int) -> tuple[tuple[Op, ...], int]:
    """The script without that call, and the first row that this can change. Refused calls go too:
    without a rollback another one is no longer refused.
    """
    row = sum(len(op.recorded) for op in script[:index])
    kept = (op for i, op in enumerate(script) if i != index and op.kind != "refused")
    return tuple(kept), row


def with_row(script: tuple[Op, ...], row: int, token: int) -> tuple[Op, ...]:
    """The script with the token of one recorded row replaced."""
    changed, first = [], 0
    for op in script:
        at = row - first
        first += len(op.recorded)
        if 0 <= at < len(op.recorded):
            op = dataclasses.replace(op, tokens=(*op.tokens[:at], token, *op.tokens[at + 1 :]))
        changed.append(op)
    return tuple(changed)


def stream_number(stream: str, seed: int, counter: int) -> int:
    """64 bits of SHA-256 of (stream, seed, counter)."""
    text = f"{stream}/{seed}/{counter}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
