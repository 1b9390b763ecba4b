"""When a run stops asking a library for runs that it does not give.

A library that hangs costs a time-out in each job, and one that cannot be loaded the reading of the
weights: hours for what the first three runs have told. A crash in some jobs only is no reason to
stop: it costs little, and the other jobs are worth having.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pyharness.values import NOT_RUN, ArmPlan, ArmResult

MOST = 3  # time-outs in all, or failures before the first run that did not fail
_NOUN = {"arm": "runs", "again": "repeated runs", "control": "controls"}


class Patience:
    """Counts by library and role: repetitions may hang where the runs that they repeat do not. The
    threads of the pool share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: Counter[tuple[str, str]] = Counter()
        self._timed_out: Counter[tuple[str, str]] = Counter()
        self._answered: set[tuple[str, str]] = set()
        self._over: dict[str, str] = {}  # role -> why no further run of it is made

    def results(self, plans: Sequence[ArmPlan], made: Iterable[ArmResult]) -> Iterator[ArmResult]:
        """The results of these runs, in their order. ``made``: those of the runner, which starts a
        process when the next one is asked for and after a failure; that one is not started any
        more, and its runs are left out.
        """
        source, between = iter(made), True  # between: no process is in progress
        for plan in plans:
            if between and (why := self._why_over(plan)):
                yield ArmResult("failed", why)
                continue
            result = next(source)
            between = result.status == "failed"
            self._note(plan, result)
            yield result

    def _note(self, plan: ArmPlan, result: ArmResult) -> None:
        kind = plan.arm, plan.role
        with self._lock:
            if result.status != "failed":
                self._answered.add(kind)
                return
            self._failed[kind] += 1
            self._timed_out[kind] += result.timed_out
            whose = f"{_NOUN[plan.role]} of the {plan.arm}"
            if self._timed_out[kind] == MOST:
                more = f"--timeout S gives each more than {plan.timeout_s:g} s"
                self._over.setdefault(plan.role, f"{NOT_RUN}{MOST} {whose} timed out; {more}")
            elif self._failed[kind] == MOST and kind not in self._answered:
                self._over.setdefault(plan.role, f"{NOT_RUN}the first {MOST} {whose} failed")

    def _why_over(self, plan: ArmPlan) -> str:
        """Why this run is not made, "" if it is. Without arms, repetitions or controls no further
        job can be proved, so no new arm is run; arms that ended well are still repeated.
        """
        with self._lock:
            if plan.role == "arm":
                return next(iter(self._over.values()), "")
            return self._over.get(plan.role, "")
