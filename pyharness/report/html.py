"""One page for people: the verdict first, then where bits differ, then what it rests on.

Self-contained: no address outside of it, no script to read it; the document lies in it as JSON.
What ``run-ab speed`` measured after the verdict has a section of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pyharness.errors import Exit
from pyharness.report import svg
from pyharness.report.differences import differing, place, untold
from pyharness.report.explained import where
from pyharness.report.markup import code, command, esc, figure, more, pairs, section, table
from pyharness.report.matrix import legend, matrix
from pyharness.report.speed import speed_fact, speed_section
from pyharness.report.text import size
from pyharness.speed.timing import Timing
from pyharness.values import JobStatus

STYLE_FILE = Path(__file__).with_name("report.css")
Document = Mapping[str, Any]


def page(document: Document, timing: Timing | None = None) -> str:
    jobs = document["jobs"]
    parts = [
        _head(document, timing),
        section("Speed", speed_section(timing)) if timing else "",
        section("Jobs", legend(jobs), matrix(jobs)),
        section("Where bits differ", told) if (told := differing(jobs)) else "",
        section("Without a result", told) if (told := untold(jobs)) else "",
        section("Libraries", _libraries(document)),
        section("Archive", told) if (told := _archive(document)) else "",
        section("Do it again", _again(document)),
    ]
    title = f"run-ab: {verdict_sentence(document)}"
    style = STYLE_FILE.read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{esc(title)}</title><style>\n{style}</style></head><body><main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main><footer><p>run-ab {esc(document.get('harness', ''))}, run "
        f"{esc(document['run'])}. This page holds its verdict.json in the element "
        "<code>#verdict</code>.</p></footer>\n"
        f'<script type="application/json" id="verdict">{_embedded(document)}</script>\n'
        "</body></html>\n"
    )


def _embedded(document: Document) -> str:
    """JSON that no HTML parser takes for a tag or a comment."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# ---- the verdict ---------------------------------------------------------------------------------


def verdict_sentence(document: Document) -> str:
    jobs = document["jobs"]

    def count(*statuses: JobStatus) -> int:
        return sum(job["status"] in statuses for job in jobs)

    total = f"{len(jobs)} job{'s' if len(jobs) != 1 else ''}"
    match document["exit_code"]:
        case Exit.SAME:
            same = count(JobStatus.SAME)
            said = (
                f"{same} of {total}" if same < len(jobs) else f"all {total}" if same > 1 else total
            )
            return f"Every bit that was compared is equal: {said}."
        case Exit.DIFFERS:
            return f"Bits differ in {count(JobStatus.DIFFERS)} of {total}."
        case Exit.FAILED:
            return f"A library could not run: {count(JobStatus.FAILED)} of {total} failed."
        case _ if count(JobStatus.SAME):
            return f"Not everything was proved: {count(JobStatus.SAME)} of {total} are the same."
        case _:
            return f"Nothing was proved: {document['summary']}."


def _head(document: Document, timing: Timing | None) -> str:
    kinds = {Exit.SAME: "same", Exit.DIFFERS: "differs", Exit.FAILED: "failed"}
    kind = kinds.get(document["exit_code"], "unproved")
    libraries = document["libraries"]
    names = [
        f"{arm} {code(libraries[arm]['digest'][7:19])}"
        for arm in ("candidate", "baseline")
        if arm in libraries
    ]
    told = [" against ".join(names)]
    if first := _first(document["jobs"]):
        told.insert(0, f"First difference: {first}")
    facts = [
        ("jobs", esc(document["summary"])),
        ("compared", size(sum(_compared(job) for job in document["jobs"]))),
        ("took", _duration(document)),
        ("speed", speed_fact(timing) if timing else ""),
        ("on", esc(document.get("machine", {}).get("cpu", ""))),
        ("at", esc(document.get("started", "")[:16].replace("T", " ") + " UTC")),
        ("exit code", esc(document["exit_code"])),
    ]
    return (
        f'<header class="verdict v-{kind}"><p class="run">run-ab {esc(document["run"])}</p>'
        f"<h1>{esc(verdict_sentence(document))}</h1>"
        + "".join(f"<p>{line}</p>" for line in told if line)
        + pairs((k, v) for k, v in facts if v and v != " UTC")
        + "".join(f'<p class="note">Note: {esc(n)}</p>' for n in dict.fromkeys(document["notes"]))
        + "</header>"
    )


def _first(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Where the first red job differs first: as computed, or else as the files lie."""
    for job in jobs:
        if job["status"] == JobStatus.DIFFERS and (told := where(job)):
            return f"{esc(told)}, in {esc(job['id'])}"
        if job["status"] == JobStatus.DIFFERS and job["comparison"]:
            for d in job["comparison"]["differences"]:
                name = f"{code(d['file'])} {code(d['tensor'])}" if d["tensor"] else code(d["file"])
                spot = esc(d["note"]) if d["note"] else esc(place(d))
                return f"{name}, {spot}, in {esc(job['id'])}"
    return ""


def _compared(job: Mapping[str, Any]) -> int:
    return int(job["comparison"]["bytes_compared"]) if job["comparison"] else 0


def _duration(document: Document) -> str:
    try:
        begin, end = (datetime.fromisoformat(document[k]) for k in ("started", "finished"))
    except (KeyError, ValueError):
        return ""
    seconds = (end - begin).total_seconds()
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


# ---- what it rests on ----------------------------------------------------------------------------


def _libraries(document: Document) -> str:
    cards = []
    for arm, library in document["libraries"].items():
        built = library.get("build_info", {})
        facts = [
            ("digest", f'<code class="long">{esc(library["digest"])}</code>'),
            ("size", f"{size(library['size_bytes'])} ({library['size_bytes']} bytes)"),
            ("from", f'<code class="long">{esc(library["origin"])}</code>'),
            ("ABI", esc(library.get("abi_version", ""))),
            *((k.replace("_", " "), esc(_plain(v))) for k, v in built.items()),
            ("lacks", " ".join(code(n) for n in library.get("missing", ()))),
        ]
        symbols = " ".join(code(n) for n in library.get("symbols", ()))
        count = len(library.get("symbols", ()))
        tail = more(f"{count} symbols", f"<p>{symbols}</p>") if symbols else ""
        cards.append(f'<div class="card"><h3>{esc(arm)}</h3>{pairs(facts)}{tail}</div>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _archive(document: Document) -> str:
    lines = document.get("archive", [])
    if not lines:
        return ""
    rows = []
    before: dict[str, int] = {}  # of the last library of each backend
    for line in lines:
        last = before.get(line["backend"])
        change = "" if last is None else f"{line['size_bytes'] - last:+d}"
        before[line["backend"]] = line["size_bytes"]
        mark = "baseline" if line["baseline"] else "accepted before" if line["accepted"] else ""
        rows.append(
            (
                esc(line["label"]), esc(line["backend"]), code(line["digest"][7:19]),
                str(line["size_bytes"]), change, esc(line["time"][:10]), mark, esc(line["why"]),
            )
        )  # fmt: skip
    head = ("label", "backend", "library", "bytes", "change", "added", "", "why")
    return f'<div class="pictures">{"".join(_trends(document))}</div>' + table(
        head, rows, caption="Libraries of the archive, oldest first", kind="archive"
    )


def _trends(document: Document) -> Iterator[str]:
    """Of the candidate's backend: sizes, with this run's candidate at the end unless it is in the
    archive; step times of accepted libraries.
    """
    backend = document["libraries"].get("candidate", {}).get("build_info", {}).get("backend")
    known = [x for x in document["archive"] if (x["backend"] == "cuda") is (backend == "cuda")]
    lines = known[-24:]
    points = [(_short(x["label"]), float(x["size_bytes"]), size(x["size_bytes"])) for x in lines]
    candidate = document["libraries"].get("candidate")
    is_new = bool(candidate) and candidate["digest"] not in [
        x["digest"] for x in document["archive"]
    ]
    if candidate and is_new:
        points.append(("this run", float(candidate["size_bytes"]), size(candidate["size_bytes"])))
    yield figure(
        svg.trend(
            "trend-size", "Size of the archived libraries",
            "; ".join(f"{label} {told}" for label, _, told in points), points, is_new,
        ),
        "Size",
    )  # fmt: skip
    timed = [x for x in lines if x.get("step_ns")]
    for i, model in enumerate(dict.fromkeys(m for x in timed for m in x["step_ns"])):
        steps = [(_short(x["label"]), x["step_ns"][model]) for x in timed if model in x["step_ns"]]
        told = [(label, ns, f"{ns / 1000:.1f} µs") for label, ns in steps]
        devices = sorted({x.get("gpu") or x["cpu"] for x in timed if model in x["step_ns"]})
        yield figure(
            svg.trend(
                f"trend-step-{i}", f"One step of {model}",
                "; ".join(f"{label} {text}" for label, _, text in told), told, False,
            ),
            f"One single step of {esc(model)}, median of the run each was accepted for, on "
            f"{esc(', '.join(devices))}. No comparison: other load, other numbers.",
        )  # fmt: skip


def _short(label: str) -> str:
    return label if len(label) <= 16 else label[:15] + "…"


def _again(document: Document) -> str:
    machine = document.get("machine", {})
    facts = [
        ("asked for", code(document["command"]) if document.get("command") else ""),
        ("replay of", esc(document.get("replay_of", ""))),
        ("revision", code(document["revision"]) if document.get("revision") else ""),
        ("machine", esc(", ".join(f"{k} {v}" for k, v in machine.items()))),
    ]
    rows = [(esc(k), code(v)) for k, v in document.get("environment", {}).items()]
    environment = table(("name", "value"), rows, caption="Environment of every worker")
    held = [(n, d) for n, d in document.get("files", {}).items()]
    held += [(f["name"], f["sha256"]) for f in document.get("inputs", ())]
    digests = table(
        ("file", "digest"),
        [(esc(n), f'<code class="long">{esc(d)}</code>') for n, d in held],
        caption="Plan, record and inputs",
    )
    return (
        (command(document["replay"]) if document.get("replay") else "")
        + pairs(facts)
        + (more("Environment", environment) if rows else "")
        + (more("Files and their digests", digests) if held else "")
    )
