"""The command line called in this process, and what every one of its ends must look like."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyharness import archive_commands, cli, commands, record, replay
from pyharness.errors import Exit, HarnessError
from pyharness.messages import one_line
from pyharness.tests.fake_arms import NEW, OLD, FakeRunner

LONGEST_LINE = 5000  # characters; a message may quote what it found, never all of it


@contextlib.contextmanager
def bounded(more_bytes: int) -> Iterator[None]:
    """Whoever asks for more memory than this process has now and so much more gets a MemoryError,
    which no command survives without a defect.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass
class CountingRunner(FakeRunner):
    """The toy runner; ``started`` counts the arms of all of them."""

    started: list[str] = field(default_factory=list)

    def run(self, plan: Any, library: Any, out: Path) -> Any:
        self.started.append(plan.role)
        return super().run(plan, library if hasattr(library, "faults") else _Sealed(library), out)


class _Sealed:
    """A library that passed the gate, as the toy runner wants it."""

    faults: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()

    def __init__(self, library: Any) -> None:
        self.name, self.digest = str(library.digest), library.digest
        self.size_bytes = library.size_bytes


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What is wrong with the way it ended, "" when nothing is."""
        lines = [
            x for x in self.err.splitlines() if not x.startswith(("note: ", "Usage: ", "Try "))
        ]
        if "defect" in self.err or self.code in (Exit.DEFECT, Exit.INTERRUPTED):
            return f"a defect: {self.err[:400]}"
        if "Traceback" in self.err + self.out:
            return "a traceback"
        if self.code not in (Exit.SAME, Exit.DIFFERS, Exit.UNPROVED) and len(lines) != 1:
            return f"{len(lines)} lines of error: {self.err[:400]!r}"
        if any(len(line) > LONGEST_LINE for line in lines):
            return f"a line of {max(map(len, lines))} characters"
        shown = [] if self.out.startswith("{") else self.out.split("\n")  # JSON is for programs
        if obeyed := [line for line in (*shown, *lines) if not line.isprintable()]:
            return f"what a terminal obeys: {obeyed[0][:200]!r}"
        return ""


def call(arguments: Sequence[str | Path]) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run([str(a) for a in arguments])
    return Ended(int(code), out.getvalue(), err.getvalue())


def guarded(work: Any) -> Ended:
    """A call that is no command, ended as the command line would end it."""
    try:
        work()
    except HarnessError as e:
        return Ended(int(e.exit_code), "", f"run-ab: {one_line(str(e))}")
    return Ended(0, "", "")


@contextlib.contextmanager
def toy_runs(*, libraries: bool = True) -> Iterator[CountingRunner]:
    """Runs use one toy runner; ``libraries``: toy libraries too, past the gate."""
    sources, runner = record.sources_digest(), CountingRunner()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "sources_digest", lambda: sources)
        patch.setattr(record, "revision", lambda root: "")
        patch.setattr(commands, "LocalRunner", lambda: runner)
        patch.setattr(archive_commands, "probe_library", lambda library: None)
        if libraries:
            pair = {"baseline": OLD, "candidate": NEW}
            patch.setattr(commands, "open_pair", lambda stack, settings: pair)
            patch.setattr(replay, "open_libraries", lambda stack, before, settings: pair)
        yield runner


def vouch(run: Path) -> None:
    """Makes the verdict of a run name the record that lies beside it, as a forger would."""
    path = run / "verdict.json"
    whole = json.loads(path.read_bytes())
    digest = hashlib.sha256((run / "record.json").read_bytes()).hexdigest()
    whole.setdefault("files", {})["record.json"] = f"sha256:{digest}"
    path.write_text(json.dumps(whole))
