"""Which library is which: one under two names, and what the operating system really mapped."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from pyharness.errors import GateRefusal, UsageError
from pyharness.plan import Suite
from pyharness.record import LibraryRecord
from pyharness.runner.base import SealedLibrary
from pyharness.values import Arm


def check_pair(suite: Suite, libraries: Mapping[Arm, SealedLibrary], asked_for: bool) -> Suite:
    """UsageError where a job would run one script twice on one library: it could only be equal.

    M rows and rollbacks against single steps are another matter: they hold within one library too.
    """
    digests = {library.digest for library in libraries.values()}
    if len(digests) > 1:
        return suite
    (digest,) = digests
    empty = [job.id for job in suite.jobs if job.baseline.script == job.candidate.script]
    if empty and not asked_for:
        raise UsageError(
            f"baseline and candidate are one library, {digest}, so {empty[0]} would compare it "
            "with itself: build the change, name another --baseline, ask for --mt and --rb alone, "
            "or say --same-library"
        )
    note = f"baseline and candidate are one library, {digest}: nothing is said of another one"
    return dataclasses.replace(suite, notes=(*suite.notes, note))


def check_loaded(libraries: Mapping[str, LibraryRecord]) -> None:
    """GateRefusal unless each worker loaded, and the system mapped, the library of the record."""
    for arm, library in libraries.items():
        facts = library.facts
        if facts is None:
            continue
        named = re.match(r"/memfd:vllm_cuda-([0-9a-f]{12})\b", facts.mapped)
        if facts.sha256 != library.digest or (named and named[1] != library.digest.short):
            loaded = f"{facts.sha256}, mapped from {facts.mapped or 'an unknown file'}"
            raise GateRefusal(f"{arm}: expected {library.digest}, its workers loaded {loaded}")
