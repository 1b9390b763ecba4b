"""The folders of runs that are over."""

from __future__ import annotations

from pyharness import commands, identity, record
from pyharness.config import Settings
from pyharness.report import document
from pyharness.report.speed import speed_lines
from pyharness.report.terminal import Terminal
from pyharness.speed import timing


def show(run: str, settings: Settings, json_path: str | None, *, full: bool = False) -> int:
    """The verdict of a finished run, with its exit code, and what was timed after it."""
    folder = record.find_run(settings["out"], run)
    verdict, whole, made = record.read_run(folder)
    identity.check_loaded(made.libraries)
    timed = timing.read(folder)
    if json_path == "-":
        commands.write(json_path, document.dumps(whole))
        return verdict.exit_code
    with Terminal(full=full) as terminal:
        for job in verdict.jobs:
            terminal.job(job)
        lines = speed_lines(timed) if timed else ()
        terminal.summary(verdict, *lines, *commands.library_lines(whole))
        terminal.run_folder(folder)
    commands.write(json_path, document.dumps(whole))
    return verdict.exit_code
