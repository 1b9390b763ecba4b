"""What a person sees while a run goes on: a line for each finished group of jobs, and a bar of arms
where there is a terminal.
"""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pyharness.messages import printable
from pyharness.report.grouping import Gathering
from pyharness.report.text import print_jobs, print_summary
from pyharness.verdict import JobVerdict, Verdict


class Terminal:
    """Verdicts go to stdout unless that carries JSON; the bar is always on stderr."""

    def __init__(self, *, results_to_stderr: bool = False) -> None:
        self._bar: Progress | None = None
        self._gathering = Gathering()
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
            print_jobs(self._results, group)
        self._results.file.flush()

    def arm(self, done: int, total: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=done, total=total)

    def summary(self, verdict: Verdict, *lines: str) -> None:
        self._print_rest()
        print_summary(self._results, verdict)
        self.say(*lines)

    def _print_rest(self) -> None:
        for group in self._gathering.rest():
            print_jobs(self._results, group)

    def say(self, *lines: str) -> None:
        self._print_rest()
        for line in lines:
            self._results.print(Text(printable(line)), soft_wrap=True)
