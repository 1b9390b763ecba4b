"""``--only``: some jobs of a suite, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pyharness.errors import UsageError
from pyharness.plan import Job, Suite


def select(suite: Suite, patterns: Sequence[str]) -> Suite:
    """The jobs whose whole name or last part matches a pattern; all of them without a pattern."""
    if not patterns:
        return suite
    for pattern in patterns:
        if not any(_matches(job, pattern) for job in suite.jobs):
            parts = dict.fromkeys(job.id.rsplit("/", 1)[-1] for job in suite.jobs)
            known = ", ".join(list(parts)[:12]) + (", ..." if len(parts) > 12 else "")
            raise UsageError(f"--only {pattern}: no job of that name; there are {known}")
    kept = (job for job in suite.jobs if any(_matches(job, p) for p in patterns))
    return dataclasses.replace(suite, jobs=tuple(kept))


def _matches(job: Job, pattern: str) -> bool:
    return fnmatchcase(job.id, pattern) or fnmatchcase(job.id.rsplit("/", 1)[-1], pattern)
