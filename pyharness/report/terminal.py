"""What a person sees while a run goes on: a line for each finished group of jobs, and a bar of arms
where there is a terminal; at the end the verdict, and where the rest is.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pyharness.messages import printable
from pyharness.report.grouping import FEW, Gathering, Group
from pyharness.report.text import print_group, print_summary
from pyharness.values import JobStatus
from pyharness.verdict import JobVerdict, Verdict


class Terminal:
    """Verdicts go to stdout unless that carries JSON; the bar is always on stderr. ``full``: every
    red job with all that is known of it, not the first few.
    """

    def __init__(self, *, results_to_stderr: bool = False, full: bool = False) -> None:
        self._bar: Progress | None = None
        self._gathering = Gathering(None if full else FEW)
        self._in_short = 0  # jobs that differ
        errors = Console(stderr=True, highlight=False)
        self._results = errors if results_to_stderr else Console(highlight=False)
        if errors.is_terminal and not errors.is_dumb_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(),
                MofNCompleteColumn(), TimeElapsedColumn(),
                console=errors, transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._task = self._bar.add_task("arms", total=None)
            if sys.stdout.isatty() or results_to_stderr:
                self._results = errors  # the same screen: lines must go through what draws the bar

    def __enter__(self) -> Terminal:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def job(self, verdict: JobVerdict) -> None:
        for group in self._gathering.add(verdict):
            self._print(group)
        self._results.file.flush()

    def arm(self, done: int, total: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=done, total=total)

    def summary(self, verdict: Verdict, *lines: str) -> None:
        self._print_rest()
        print_summary(self._results, verdict)
        self.say(*lines)

    def run_folder(self, folder: Path) -> None:
        """The last line, or before a line that says how to see what was told in short."""
        self.say(f"run {folder}")
        if self._in_short:
            command = shlex.join(["run-ab", "show", str(folder), "--full"])
            what = "jobs that differ are" if self._in_short > 1 else "job that differs is"
            self.say(f"{self._in_short} {what} told in short; in full: {command}")

    def say(self, *lines: str) -> None:
        self._print_rest()
        for line in lines:
            self._results.print(Text(printable(line)), soft_wrap=True)

    def _print(self, group: Group) -> None:
        if group.status is JobStatus.DIFFERS and not group.full:
            self._in_short += len(group.jobs)
        print_group(self._results, group)

    def _print_rest(self) -> None:
        for group in self._gathering.rest():
            self._print(group)
