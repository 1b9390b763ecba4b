"""The part of the page about jobs that are not the same: where bits differ, and what could not be
told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyharness.report import svg
from pyharness.report.markup import anchor, code, esc, figure, letter, more, pairs, table
from pyharness.report.svg import Line
from pyharness.values import JobStatus

Job = Mapping[str, Any]
SHOWN = 6  # red jobs told in full; the others are lines of a table


def differing(jobs: Sequence[Job]) -> str:
    """Jobs with pictures first, then the others, then a table."""
    red = [job for job in jobs if job["status"] == JobStatus.DIFFERS]
    ranked = sorted(red, key=lambda job: "grids" not in job)
    full = [job for job in red if job in ranked[:SHOWN]]
    rest = [job for job in red if job not in full]
    told = "".join(_article(job) for job in full)
    if rest:
        told += more(f"{len(rest)} more jobs that differ", _short(rest))
    return told


def _article(job: Job) -> str:
    comparison = job["comparison"] or {"differences": (), "bytes_compared": 0}
    lines = [f"<p>{esc(job['reason'])}</p>"] if job["reason"] else []
    lines += [_difference(d) for d in comparison["differences"]]
    pictures = "".join(_pictures(job))
    if pictures:
        lines.append(f'<div class="pictures">{pictures}</div>{_legend()}')
    if folders := [d["folder"] for d in job.get("dumps", {}).values() if d["folder"]]:
        lines.append(f"<p class='soft'>Dumps: {', '.join(map(code, folders))}</p>")
    return (
        f'<article class="card" id="{anchor(job["id"])}"><h3>{letter(job["status"])} '
        f"{esc(job['id'])}</h3>{''.join(lines)}</article>"
    )


def _difference(d: Mapping[str, Any]) -> str:
    share = 100 * d["different"] / max(1, d["total"])
    count = f"{d['different']} of {d['total']} elements differ ({_percent(share)})"
    name = code(d["file"]) + (f" {code(d['tensor'])}" if d["tensor"] else "")
    if d["note"]:
        return f'<div class="difference"><p>{name}: {esc(d["note"])}; {count}</p></div>'
    ours, theirs = _marked(d["baseline_bits"], d["candidate_bits"])
    return (
        f'<div class="difference"><p>{name}: {count}. First at '
        f"<strong>{esc(place(d))}</strong>:</p>"
        + pairs(
            [
                ("baseline", f"{ours} <span class='soft'>{esc(d['baseline_value'])}</span>"),
                ("candidate", f"{theirs} <span class='soft'>{esc(d['candidate_value'])}</span>"),
            ]
        )
        + "</div>"
    )


def place(d: Mapping[str, Any]) -> str:
    """Coordinates of the first differing element, with the names of the axes where they have
    one.
    """
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


def _marked(ours: str, theirs: str) -> tuple[str, str]:
    """Bit patterns with the hexadecimal digits that differ set off."""
    if len(ours) != len(theirs):
        return code(ours), code(theirs)

    def marked(text: str) -> str:
        digits = (
            f"<mark>{esc(c)}</mark>" if ours[i] != theirs[i] else esc(c) for i, c in enumerate(text)
        )
        return f"<code>{''.join(digits)}</code>"

    return marked(ours), marked(theirs)


def _percent(share: float) -> str:
    return f"{share:.1f} %" if share >= 0.1 else "less than 0.1 %"


def _short(jobs: Sequence[Job]) -> str:
    rows = []
    for job in jobs:
        comparison = job["comparison"] or {"differences": ()}
        told = [
            f"{code(d['file'])} {esc(d['tensor'])} {esc(d['note'] or place(d))}"
            for d in comparison["differences"]
        ]
        rows.append((_named(job), "<br>".join(told) or esc(job["reason"])))
    return table(("job", "first differing element"), rows, caption="Further jobs that differ")


def _named(job: Job) -> str:
    return f'<span id="{anchor(job["id"])}">{letter(job["status"])} {esc(job["id"])}</span>'


# ---- pictures ------------------------------------------------------------------------------------


def _pictures(job: Job) -> Iterator[str]:
    grids = job.get("grids", ())
    for grid in grids:
        if not grid["tensor"]:
            yield _rows_by_columns(job, grid)
    layers = [g for g in grids if g["tensor"]]
    if layers:
        yield _layers(job, layers)


def _rows_by_columns(job: Job, grid: Mapping[str, Any]) -> str:
    rows, columns = grid["shape"]
    step = grid["step"][0]
    shares = _shares(grid)
    count = -(-rows // step)
    batch = _batch_rows(job)
    lines = [
        Line(_range(i * step, step, rows), shares[i] if shares else (), i * step < batch)
        for i in range(count)
    ]
    title = f"{job['id']}: {grid['file']}, rows by columns"
    told = f"{_differing(grid)} of {rows * columns * grid['unit']} elements differ"
    picture = svg.heat_map(
        f"{anchor(job['id'])}-{re.sub('[^a-z]', '', grid['file'])}",
        title,
        f"{told}; {rows} recorded rows from top to bottom, {columns} columns from left to right.",
        lines,
        [(0.0, "column 0"), (1.0, str(columns - 1))],
    )
    note = f"; bar: rows of one step with M = {batch}" if batch else ""
    return figure(picture, f"{code(grid['file'])} rows by columns{esc(note)}")


def _batch_rows(job: Job) -> int:
    """How many of the recorded rows, from the first on, come from one M-row step."""
    batched = job.get("kind") in ("mt", "libs-mt") or job.get("case") == "then-rows"
    return int(job["m"]) if batched else 0


def _layers(job: Job, grids: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for grid in grids:
        shares = _shares(grid)
        label = grid["tensor"].removeprefix("layers.").replace(".", " ")
        lines.append(Line(label, shares[0] if shares else ()))
    told = [g["tensor"] for g in grids if g["different"]]
    picture = svg.heat_map(
        f"{anchor(job['id'])}-state",
        f"{job['id']}: state.safetensors, layers by heads, channels or positions",
        f"{len(told)} of {len(grids)} parts of the state differ. {' '.join(told)}",
        lines,
        [(0.0, "first"), (0.5, "head, channel or position"), (1.0, "last")],
    )
    return figure(picture, f"{code('state.safetensors')} by layer")


def _shares(grid: Mapping[str, Any]) -> list[list[float]]:
    """Share of differing elements in each cell; the last cell of an axis may be a smaller one."""
    (rows, columns), (high, wide), unit = grid["shape"], grid["step"], grid["unit"]
    return [
        [
            n / (min(high, rows - i * high) * min(wide, columns - j * wide) * unit)
            for j, n in enumerate(line)
        ]
        for i, line in enumerate(grid["different"])
    ]


def _differing(grid: Mapping[str, Any]) -> int:
    return sum(map(sum, grid["different"]))


def _range(first: int, step: int, end: int) -> str:
    last = min(first + step, end) - 1
    return str(first) if last == first else f"{first}-{last}"


def _legend() -> str:
    items = (
        f'<li><span class="swatch q{i}"></span>{esc(name)}</li>'
        for i, name in enumerate(svg.LEVEL_NAMES)
    )
    return f'<ul class="legend" aria-label="share of differing elements">{"".join(items)}</ul>'


# ---- the others ----------------------------------------------------------------------------------


def untold(jobs: Sequence[Job]) -> str:
    """Jobs that are neither the same nor different, by status and reason: one cause, one line."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        if job["status"] not in (JobStatus.SAME, JobStatus.DIFFERS):
            groups.setdefault((job["status"], job["reason"]), []).append(job)
    rows = []
    for (status, reason), found in groups.items():
        names = ", ".join(f'<span id="{anchor(j["id"])}">{esc(j["id"])}</span>' for j in found)
        told = f'<span class="jobs">{names}</span>'
        if len(found) > 4:
            told = more(f"{len(found)} jobs", told)
        rows.append((f"{letter(status)} {esc(status)}", esc(reason), told))
    return table(("status", "why", "jobs"), rows, caption="Jobs without a result") if rows else ""
