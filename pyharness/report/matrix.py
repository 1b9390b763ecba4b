"""The matrix of jobs: for each model and prefix a table of letters, kinds of jobs by M."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyharness.report.markup import LETTERS, anchor, esc, letter

Job = Mapping[str, Any]
_TOLD = ("differs", "nondeterministic", "indistinct", "failed", "unsupported")


def legend(jobs: Sequence[Job]) -> str:
    counts = Counter(job["status"] for job in jobs)
    items = (f"<li>{letter(s)} {counts[s]} {esc(s)}</li>" for s in LETTERS if counts[s])
    return f'<ul class="legend">{"".join(items)}</ul>'


def matrix(jobs: Sequence[Job]) -> str:
    models: dict[str, list[Job]] = {}
    for job in jobs:
        models.setdefault(job["id"].rpartition("/")[0], []).append(job)
    return f'<div class="matrix">{"".join(_model(n, found) for n, found in models.items())}</div>'


def _model(name: str, jobs: Sequence[Job]) -> str:
    rows: dict[str, dict[int, Job]] = {}
    for job in jobs:
        rows.setdefault(_family(job), {})[job.get("m", 0)] = job
    columns = sorted({m for row in rows.values() for m in row})
    head = "".join(f'<th scope="col">{m or ""}</th>' for m in columns)
    body = "".join(
        f'<tr><th scope="row">{esc(family)}</th>{"".join(_cell(row.get(m)) for m in columns)}</tr>'
        for family, row in rows.items()
    )
    return (
        f'<div class="card scroll" tabindex="0" role="region" aria-label="jobs of {esc(name)}">'
        f'<table class="letters"><caption>{esc(name)}</caption>'
        f'<thead><tr><th scope="col">job, by M</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _family(job: Job) -> str:
    """What jobs of one row have in common: everything but M."""
    if "kind" not in job:
        return str(job["id"].rpartition("/")[2])
    return f"{job['kind'].replace('-', ' ')} {job['case']}".strip()


def _cell(job: Job | None) -> str:
    if job is None:
        return "<td></td>"
    status = job["status"]
    shown = letter(status)
    name = f"{job['id']}: {status}"
    if status in _TOLD:
        return f'<td><a href="#{anchor(job["id"])}" title="{esc(name)}">{shown}</a></td>'
    return f'<td title="{esc(name)}">{shown}</td>'
