"""The part of the page about jobs that are not the same: where bits differ, and what could not be
told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyharness.report import svg
from pyharness.report.explained import (
    classes_of,
    divergence,
    first_elements,
    per_group,
    where,
)
from pyharness.report.markup import anchor, code, esc, figure, letter, marked, more, pairs, table
from pyharness.report.svg import Line
from pyharness.values import JobStatus

Job = Mapping[str, Any]
SHOWN = 6  # red jobs told in full; the others are lines of a table


def differing(jobs: Sequence[Job]) -> str:
    """The first jobs in full, those with pictures before others; the rest as a table."""
    red = [job for job in jobs if job["status"] == JobStatus.DIFFERS]
    ranked = sorted(red, key=lambda job: "grids" not in job)
    full = [job for job in red if job in ranked[:SHOWN]]
    rest = [job for job in red if job not in full]
    told = "".join(_article(job, i == 0) for i, job in enumerate(full))
    if any("grids" in job for job in full):
        told = f"{_legend()}{told}"
    return told + (_short(rest) if rest else "")


def _article(job: Job, is_open: bool) -> str:
    """Folded away but for the first; a link to the place inside unfolds it."""
    comparison = job["comparison"] or {"differences": ()}
    told = [f"<p>{esc(job['reason'])}</p>"] if job["reason"] else []
    told.append(divergence(job))
    columns = [_spread(job), *(_file(job, d) for d in comparison["differences"])]
    if any(columns):
        told.append(f'<div class="pictures">{"".join(columns)}</div>')
    if folders := [d["folder"] for d in job.get("dumps", {}).values() if d["folder"]]:
        told.append(f'<p class="soft">Dumps: {", ".join(map(code, folders))}</p>')
    first = f'<span class="soft">{esc(where(job))}</span>'
    return (
        f'<details class="card red"{" open" if is_open else ""}><summary>{letter(job["status"])} '
        f'<strong>{esc(job["id"])}</strong> {first}</summary><article id="{anchor(job["id"])}">'
        f"{''.join(told)}</article></details>"
    )


def _file(job: Job, d: Mapping[str, Any]) -> str:
    """One file that differs: its picture, how much, where first, what is known beyond that."""
    grids = [g for g in job.get("grids", ()) if g["file"] == d["file"]]
    explained: Mapping[str, Any] = next(
        (e for e in job.get("explanations", ()) if e["file"] == d["file"]), {}
    )
    told = [_picture(job, grids) if grids else f"<p>{code(d['file'])}</p>"]
    count = f"<strong>{d['different']}</strong> of {d['total']} elements differ"
    if d["note"]:
        told.append(f"<p>{esc(d['note'])}; {count}</p>")
    else:
        tensor = f"{code(d['tensor'])}, " if d["tensor"] else ""
        ours, theirs = marked(d["baseline_bits"], d["candidate_bits"])
        told.append(f"<p>{count}; first {tensor}{esc(place(d))}:</p>")
        told.append(
            pairs(
                [
                    ("baseline", f'{ours} <span class="soft">{esc(d["baseline_value"])}</span>'),
                    (
                        "candidate",
                        f'{theirs} <span class="soft">{esc(d["candidate_value"])}</span>',
                    ),
                ]
            )
        )
    told += [classes_of(explained), per_group(explained), first_elements(explained)]
    return f'<div class="difference">{"".join(told)}</div>'


def place(d: Mapping[str, Any]) -> str:
    """Coordinates of an element, with the names of the axes where they have one."""
    index = d["index"]
    if not d["tensor"] and len(index) == 2:
        return f"row {index[0]}, column {index[1]}"
    part = d["tensor"].rpartition(".")[2]
    axes = {
        "S": ("value head", "key dimension", "value dimension"),
        "conv": ("channel", "tap"),
        "keys": ("KV head", "position", "column"),
        "values": ("KV head", "position", "column"),
    }.get(part, ())
    if len(axes) == len(index):
        return ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=True))
    return f"[{', '.join(map(str, index))}]"


def _short(jobs: Sequence[Job]) -> str:
    rows = []
    for job in jobs:
        comparison = job["comparison"] or {"differences": ()}
        told = [
            f"{code(d['file'])} {esc(d['tensor'])} {esc(d['note'] or place(d))}"
            for d in comparison["differences"]
        ]
        name = f'<span id="{anchor(job["id"])}">{letter(job["status"])} {esc(job["id"])}</span>'
        rows.append((name, "<br>".join(told) or esc(job["reason"])))
    head = ("job", "first differing element of each file")
    return table(head, rows, caption=f"{len(rows)} more jobs that differ")


# ---- pictures ------------------------------------------------------------------------------------


def _picture(job: Job, grids: Sequence[Mapping[str, Any]]) -> str:
    return _layers(job, grids) if grids[0]["tensor"] else _rows_by_columns(job, grids[0])


def _rows_by_columns(job: Job, grid: Mapping[str, Any]) -> str:
    rows, columns = grid["shape"]
    step = grid["step"][0]
    batches = job.get("batches", ())
    marked = {row for first, count in batches for row in range(first, first + count)}
    cells = grid["distance"]
    lines = [
        Line(_range(i * step, step, rows), cells[i] if cells else (), i * step in marked)
        for i in range(-(-rows // step))
    ]
    count = sum(map(sum, grid["different"]))
    picture = svg.heat_map(
        f"{anchor(job['id'])}-{re.sub('[^a-z]', '', grid['file'])}",
        f"{job['id']}: {grid['file']}, rows by columns",
        f"{count} of {grid['elements']} elements differ; {rows} recorded rows from top to bottom, "
        f"{columns} columns from left to right.",
        lines,
        [(0.0, "column 0"), (1.0, str(columns - 1))],
    )
    note = f"; bar: rows of {_steps(batches)}" if batches else ""
    return figure(picture, f"{code(grid['file'])} rows by columns{esc(note)}")


def _steps(batches: Sequence[Sequence[int]]) -> str:
    if len(batches) > 1:
        return f"{len(batches)} M-row steps"
    return f"one step with M = {batches[0][1]}"


def _layers(job: Job, grids: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        Line(
            grid["tensor"].removeprefix("layers.").replace(".", " "),
            grid["distance"][0] if grid["distance"] else (),
        )
        for grid in grids
    ]
    told = [g["tensor"] for g in grids if g["different"]]
    axes = sorted({g["axes"][1] for g in grids})
    picture = svg.heat_map(
        f"{anchor(job['id'])}-state",
        f"{job['id']}: state.safetensors by layer",
        f"{len(told)} of {len(grids)} parts differ: {', '.join(told)}. "
        f"Lines are layers and parts; across: {', '.join(axes)}.",
        lines,
        [(0.0, "0"), (0.5, ", ".join(axes)), (1.0, "last")],
    )
    return figure(picture, f"{code('state.safetensors')} by layer")


def _spread(job: Job) -> str:
    """Rows by layers, from the traces of the two arms: where the difference begins, where it
    goes.
    """
    divergence = job.get("divergence") or {}
    found = divergence.get("spread")
    if not found:
        return ""
    layers = len(found["layers"][0])
    lines = [
        Line(
            str(position),
            [*(_share(n, found["operations"]) for n in row), 0, *(4 * o for o in out)],
        )
        for position, row, out in zip(
            found["positions"], found["layers"], found["outputs"], strict=True
        )
    ]
    width = layers + 3
    picture = svg.heat_map(
        f"{anchor(job['id'])}-spread",
        f"{job['id']}: rows by layers",
        f"Steps from {found['positions'][0]} on, from top to bottom; layers 0 to {layers - 1} from "
        "left to right, then h_out and logits. The more of a layer's operations differ, the "
        "stronger the colour.",
        lines,
        [(0.0, "layer 0"), ((layers - 0.5) / width, str(layers - 1)), (1.0, "h_out, logits")],
    )
    caption = (
        f"steps by layers; colour: how many of a layer's {found['operations']} operations differ"
    )
    return f'<div class="difference">{figure(picture, esc(caption))}</div>'


def _share(count: int, total: int) -> int:
    """Shade of the number of a layer's operations that differ; q5 stays for what is not finite."""
    return 0 if not count else 1 + (4 * count - 1) // total


def _range(first: int, step: int, end: int) -> str:
    last = min(first + step, end) - 1
    return str(first) if last == first else f"{first}-{last}"


def _legend() -> str:
    items = (
        f'<li><span class="swatch q{i}"></span>{esc(name)}</li>'
        for i, name in enumerate(svg.SHADE_NAMES)
    )
    return (
        '<p class="soft">Colour: how far apart the farthest elements of a cell are, in units in '
        f'the last place.</p><ul class="legend">{"".join(items)}</ul>'
    )


# ---- the others ----------------------------------------------------------------------------------


def untold(jobs: Sequence[Job]) -> str:
    """Jobs that are neither the same nor different, by status and reason: one cause, one line."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        if job["status"] not in (JobStatus.SAME, JobStatus.DIFFERS):
            groups.setdefault((job["status"], job["reason"]), []).append(job)
    rows = list(_grouped(groups))
    head = ("status", "why", "jobs")
    return table(head, rows, caption="Jobs without a result", kind="quiet") if rows else ""


def _grouped(groups: Mapping[tuple[str, str], Sequence[Job]]) -> Iterator[tuple[str, str, str]]:
    for (status, reason), found in groups.items():
        names = ", ".join(f'<span id="{anchor(j["id"])}">{esc(j["id"])}</span>' for j in found)
        told = more(f"{len(found)} jobs", f"<p>{names}</p>") if len(found) > 4 else names
        yield f"{letter(status)} {esc(status)}", esc(reason), told
