"""Lines for people. Each M has a line, and each job that is not equal; ``rich`` colours them where
a terminal is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyharness.differences.findings import Explanation, divergence_line, explanation_line
from pyharness.errors import Exit
from pyharness.messages import printable
from pyharness.report.grouping import Group, case_names, group_name
from pyharness.values import NOT_RUN, Comparison, Difference, JobStatus
from pyharness.verdict import JobVerdict, Verdict

if TYPE_CHECKING:
    from rich.console import Console

STYLE = {
    JobStatus.SAME: "green",
    JobStatus.DIFFERS: "bold red",
    JobStatus.FAILED: "bold red",
    JobStatus.UNSUPPORTED: "yellow",
    JobStatus.NONDETERMINISTIC: "magenta",
    JobStatus.INDISTINCT: "magenta",
}
MEANING = {
    Exit.SAME: "everything that was compared is equal, bit for bit",
    Exit.DIFFERS: "at least one bit differs",
    Exit.FAILED: "a library could not run",
    Exit.UNPROVED: "nothing was proved",
}
_WIDTH = max(len(s.value) for s in JobStatus)


def job_lines(job: JobVerdict) -> list[str]:
    """The job's line; under it where the arms part, then each file that differs."""
    lines = [
        f"{job.status.value:<{_WIDTH}}  {job.id}" + (f"  {told}" if (told := _told(job)) else "")
    ]
    indent = f"{'':<{_WIDTH}}    "
    if job.divergence:
        lines.append(indent + divergence_line(job.divergence))
    if job.comparison:
        lines += [indent + line for line in _differences(job.comparison, job.explanations)]
    return lines


def _differences(comparison: Comparison, explanations: Sequence[Explanation]) -> list[str]:
    """Each file that differs, and how its elements do."""
    explained = {e.file: explanation_line(e) for e in explanations}
    lines = []
    for d in comparison.differences:
        lines.append(difference_line(d))
        if line := explained.get(d.file):
            lines.append(f"  {line}")
    return lines


def group_lines(group: Group) -> list[str]:
    """One line, or of a job that is told in full all that is known of it."""
    jobs = group.jobs
    if group.full:
        return job_lines(jobs[0])
    first, name = jobs[0], group_name(jobs) if len(jobs) > 1 else jobs[0].id
    if group.not_run:
        name, told = f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}", first.reason
    elif first.status is JobStatus.DIFFERS:
        told = first.reason or f"in {', '.join(_files(jobs))}"
    elif first.status is JobStatus.SAME and len(jobs) > 1:
        count = sum(job.comparison.bytes_compared for job in jobs if job.comparison)
        told = f"{size(count)} equal, every control differs"
    else:
        told = _told(first)
    cases = len(jobs) > 1 and not group.not_run and first.status is not JobStatus.UNSUPPORTED
    return [f"{first.status.value:<{_WIDTH}}  {name}  {told}{f': {case_names(jobs)}' * cases}"]


def _files(jobs: Sequence[JobVerdict]) -> list[str]:
    """Those in which any of the jobs differs."""
    found = [d.file for job in jobs if job.comparison for d in job.comparison.differences]
    return list(dict.fromkeys(found))


def _told(job: JobVerdict) -> str:
    if job.reason:
        return job.reason
    if job.status is JobStatus.SAME and job.comparison:
        return f"{size(job.comparison.bytes_compared)} equal; control: {job.control}"
    return ""


def difference_line(d: Difference) -> str:
    """File, first differing element, both bit patterns and values, how many differ."""
    where = f"{d.file}{' ' + d.tensor if d.tensor else ''}"
    count = f"{d.different} of {d.total} elements differ"
    if d.note:
        return f"{where}: {d.note}; {count}"
    index = ", ".join(map(str, d.index))
    return (
        f"{where} [{index}]: baseline {d.baseline_bits} ({d.baseline_value}), "
        f"candidate {d.candidate_bits} ({d.candidate_value}); {count}"
    )


def comparison_lines(comparison: Comparison, explanations: Sequence[Explanation] = ()) -> list[str]:
    """Of ``compare DIR DIR``."""
    if comparison.equal:
        return [f"same: {size(comparison.bytes_compared)} equal"]
    return ["differs", *(f"  {line}" for line in _differences(comparison, explanations))]


def summary_line(verdict: Verdict) -> str:
    jobs = f"{len(verdict.jobs)} job{'s' if len(verdict.jobs) != 1 else ''}: {verdict.summary}"
    return f"{jobs}; exit {verdict.exit_code}: {meaning(verdict)}"


def meaning(verdict: Verdict) -> str:
    """What the exit code says. Beside proved jobs a 5 names those that were not."""
    code = Exit(verdict.exit_code)
    if code is Exit.SAME:
        return "; ".join([MEANING[code], *_never_run(verdict.jobs)])
    if code is not Exit.UNPROVED or all(j.status is not JobStatus.SAME for j in verdict.jobs):
        left = sum(job.reason.startswith(NOT_RUN) for job in verdict.jobs)
        return MEANING[code] + (f"; {left} of the jobs were not run" if left else "")
    open_: dict[str, list[str]] = {}
    for job in verdict.jobs:
        if job.status is not JobStatus.SAME and not job.skipped:
            open_.setdefault(job.status.value, []).append(job.id)
    told = [f"{status}: {_some(ids)}" for status, ids in open_.items()]
    return f"asked for and not proved: {'; '.join(told)}"


def _never_run(jobs: Sequence[JobVerdict]) -> list[str]:
    """What a green run is not about: kinds of job that neither library could run at all."""
    told = []
    for kind, what in (("mt", "steps of M rows"), ("rb", "rollbacks")):
        of_kind = [job for job in jobs if re.match(rf"{kind}\d", job.id.rpartition("/")[2])]
        if of_kind and all(job.skipped for job in of_kind):
            told.append(f"nothing was shown of {what}: {of_kind[0].reason}")
    return told


def _some(names: list[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def size(count: int) -> str:
    """Bytes for people, decimal units."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def print_group(console: Console, group: Group) -> None:
    """Never wrapped, so that one line stays one line in a log."""
    from rich.text import Text

    for i, line in enumerate(group_lines(group)):
        text = Text(printable(line))
        if i == 0:
            text.stylize(STYLE[group.status], 0, _WIDTH)
        console.print(text, soft_wrap=True)


def print_summary(console: Console, verdict: Verdict) -> None:
    from rich.text import Text

    style = "bold green" if verdict.exit_code == Exit.SAME else "bold red"
    console.print(Text(summary_line(verdict), style=style), soft_wrap=True)
