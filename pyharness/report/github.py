"""What a run says to GitHub Actions: annotations, the step's summary, its output.

GitHub shows ten annotations of a kind per step and drops the rest without a word, and it drops a
step's summary above 1 MiB as a whole: both limits are kept here, and what did not fit is counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pyharness.differences.findings import divergence_line
from pyharness.errors import Exit
from pyharness.report.document import verdict_of
from pyharness.report.grouping import Group
from pyharness.report.markup import LETTERS, plain
from pyharness.report.speed import speed_lines
from pyharness.report.text import difference_line, group_lines, meaning, size
from pyharness.speed.timing import Timing
from pyharness.values import JobStatus
from pyharness.verdict import JobVerdict

ANNOTATIONS = 10
SUMMARY_BYTES = 900_000


def announce(
    document: Mapping[str, Any], to_stderr: bool = False, timing: Timing | None = None
) -> None:
    """Annotations on stdout, or on stderr where stdout carries JSON; the runner reads both.
    Nothing outside of GitHub Actions.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for line in error_lines(document):
        print(line, file=sys.stderr if to_stderr else sys.stdout)
    room = SUMMARY_BYTES - _written("GITHUB_STEP_SUMMARY")
    _append("GITHUB_STEP_SUMMARY", summary(document, timing, room))
    _append("GITHUB_OUTPUT", f"verdict={Exit(document['exit_code']).name.lower()}\n")
    if timing:
        _append("GITHUB_OUTPUT", f"speed={timing.result.word.value.lower()}\n")


def refused(message: str, code: Exit) -> None:
    """A command that ended without a verdict: its line as an annotation, its code as the step's
    output.
    """
    print(_command("error", f"run-ab: {code.name.lower()}", message), file=sys.stderr)
    _append("GITHUB_OUTPUT", f"verdict={code.name.lower()}\n")


def _written(variable: str) -> int:
    """What the runner's file holds already, of commands before this one in the same step."""
    try:
        return os.path.getsize(os.environ.get(variable, ""))
    except OSError:
        return 0


def _append(variable: str, text: str) -> None:
    """To a file of the runner's. The verdict stands whether or not the runner can be told."""
    if path := os.environ.get(variable):
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as e:
            print(f"note: {variable}: {path}: {e.strerror}", file=sys.stderr)


# ---- annotations ---------------------------------------------------------------------------------


def error_lines(document: Mapping[str, Any]) -> list[str]:
    """One error for each job that is neither the same nor merely unsupported; at most ten."""
    jobs = verdict_of(document).jobs
    bad = _once([job for job in jobs if job.status is not JobStatus.SAME and not job.skipped])
    shown = bad if len(bad) <= ANNOTATIONS else bad[: ANNOTATIONS - 1]
    lines = [
        _command("error", _title(group), "\n".join(_details(group.jobs[0]))) for group in shown
    ]
    if rest := sum(len(group.jobs) for group in bad[len(shown) :]):
        told = f"{rest} more jobs; the summary of the step and report.html list all"
        lines.append(_command("error", f"and {rest} more", told))
    return lines


def _once(jobs: Sequence[JobVerdict]) -> list[Group]:
    """Each job by itself, and at the end, together, those that were not run for one reason."""
    groups = [Group([job], full=True) for job in jobs]
    left: dict[str, list[JobVerdict]] = {}
    for group in groups:
        if group.not_run:
            left.setdefault(group.jobs[0].reason, []).extend(group.jobs)
    return [*(g for g in groups if not g.not_run), *map(Group, left.values())]


def _title(group: Group) -> str:
    name = f"{len(group.jobs)} jobs" if len(group.jobs) > 1 else group.jobs[0].id
    return f"{group.status.value}: {name}"


def _details(job: JobVerdict) -> list[str]:
    differences = job.comparison.differences if job.comparison else ()
    first = [divergence_line(job.divergence)] if job.divergence else []
    told = [*([job.reason] if job.reason else []), *first, *map(difference_line, differences)]
    return told or [job.status.value]


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# ---- the step's summary --------------------------------------------------------------------------


def summary(
    document: Mapping[str, Any], timing: Timing | None = None, limit: int = SUMMARY_BYTES
) -> str:
    """Markdown: the verdict, the matrix, the red jobs, the libraries. What does not fit is
    counted.
    """
    verdict = verdict_of(document)
    head = [f"## run-ab: {meaning(verdict)}", "", f"{verdict.summary}.", ""]
    if timing:
        head += ["```text", *speed_lines(timing), "```", ""]
    tail = ["", "| | digest | size |", "|---|---|---|"]
    for arm, library in document["libraries"].items():
        tail.append(f"| {arm} | `{library['digest']}` | {size(library['size_bytes'])} |")
    if "replay" in document:
        tail += ["", f"Again: `{_cell(document['replay'])}`"]
    red = [job for job in verdict.jobs if job.status is not JobStatus.SAME]
    blocks = [_red_block(group) for group in _once(red)]
    parts = [*_matrix(verdict.jobs), ""]
    room = limit - sum(len(line.encode()) + 1 for line in (*head, *tail)) - 200
    kept: list[str] = []
    for i, line in enumerate(lines := [*parts, *blocks]):
        room -= len(line.encode()) + 1
        if room < 0:
            kept.append(f"\n{len(lines) - i} more lines do not fit; report.html has all.")
            break
        kept.append(line)
    return "\n".join([*head, *kept, *tail]) + "\n"


def _matrix(jobs: tuple[JobVerdict, ...]) -> list[str]:
    """A table of letters: a row for each job, a column for each model and prefix."""
    models = list(dict.fromkeys(j.id.rpartition("/")[0] for j in jobs))
    names = list(dict.fromkeys(j.id.rpartition("/")[2] for j in jobs))
    found = {j.id: LETTERS[j.status] for j in jobs}
    key = ", ".join(
        f"{LETTERS[s]} {s.value}" for s in JobStatus if any(j.status is s for j in jobs)
    )
    lines = ["| job | " + " | ".join(map(_cell, models)) + " |", "|---|" + ":-:|" * len(models)]
    for name in names:
        cells = [found.get(f"{model}/{name}", "") for model in models]
        lines.append(f"| {_cell(name)} | {' | '.join(_bold(c) for c in cells)} |")
    return [f"{key}.", "", *lines]


def _bold(letter: str) -> str:
    return letter if letter in ("", LETTERS[JobStatus.SAME]) else f"**{letter}**"


def _red_block(group: Group) -> str:
    first, *rest = group_lines(group)
    return "\n".join(
        [f"- {_code(' '.join(first.split()))}", *(f"  - {_code(r.strip())}" for r in rest)]
    )


def _code(text: str) -> str:
    return f"`{' '.join(plain(text).replace('`', chr(39)).split())}`"


def _cell(text: str) -> str:
    return " ".join(plain(text).replace("|", "\\|").replace("`", "'").replace("<", "&lt;").split())
