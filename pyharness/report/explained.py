"""What is said beside a difference, where the document has it: the first operation that differs,
distances by class, further elements, tokens that flip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyharness.differences.findings import (
    CLASSES,
    Distances,
    Divergence,
    extent_of,
    place_of,
)
from pyharness.report.markup import esc, marked, more, table
from pyharness.report.svg import SHADES
from pyharness.values import from_json

Explanation = Mapping[str, Any]
_SHADES = dict(zip(Distances.__dataclass_fields__, SHADES, strict=True))


def where(job: Mapping[str, Any]) -> str:
    """Step, row, layer and operation of the first difference in the order of the computation; "" if
    the document does not say.
    """
    d = _divergence(job)
    return place_of(d) if d else ""


def divergence(job: Mapping[str, Any]) -> str:
    d = _divergence(job)
    if not d:
        return ""
    ours, theirs = marked(*d.bits)
    element = f"element {list(d.index)}" if d.index else ""
    bits = f"{esc(d.arms[0])} {ours}, {esc(d.arms[1])} {theirs}" if all(d.bits) else ""
    note = f' <span class="soft">({esc(d.note)})</span>' if d.note else ""
    return (
        f'<p class="divergence"><strong>First difference: {esc(place_of(d))}.</strong>'
        f"<br>{esc(element)} {bits}{esc(extent_of(d))}{note}</p>"
    )


def _divergence(job: Mapping[str, Any]) -> Divergence | None:
    found: Divergence | None = from_json(Divergence | None, job.get("divergence"))
    return found


def classes_of(explained: Explanation) -> str:
    """How many elements are how far apart, and the greedy tokens that change with it."""
    if not explained:
        return ""
    if explained["note"]:
        return f'<p class="soft">{esc(explained["note"])}</p>'
    told = [
        f'<li><span class="swatch q{_SHADES[key]}"></span>{count} &times; {esc(name)}</li>'
        for key, name in CLASSES.items()
        if (count := explained["distances"][key])
    ]
    flips = [
        f"row {f['row']}: {f['baseline_token']} becomes {f['candidate_token']}"
        for f in explained["flips"][:4]
    ]
    if rest := explained["flipped"] - len(flips):
        flips.append(f"{rest} more")
    flipped = f"<p>Largest logit, {esc('; '.join(flips))}</p>" if explained["flipped"] else ""
    return f'<ul class="legend">{"".join(told)}</ul>{flipped}'


def per_group(explained: Explanation) -> str:
    """By row, or by tensor of the state."""
    groups = explained.get("groups", ())
    if not groups:
        return ""
    used = [k for k in CLASSES if any(g["distances"][k] for g in groups)]
    rows = [(esc(_group(g["name"])), *(str(g["distances"][k] or "") for k in used)) for g in groups]
    head = ("", *(CLASSES[k] for k in used))
    count = explained["groups_differing"]
    caption = f"{len(rows)} of {count} that differ, elements by distance"
    return more(f"By {'row' if groups[0]['name'].isdecimal() else 'tensor'}: {count} differ",
                table(head, rows, caption=caption))  # fmt: skip


def _group(name: str) -> str:
    return f"row {name}" if name.isdecimal() else name


def first_elements(explained: Explanation) -> str:
    elements = explained.get("first", ())
    rows = []
    for e in elements:
        ours, theirs = marked(e["baseline_bits"], e["candidate_bits"])
        name = f"{e['tensor']} {list(e['index'])}".strip()
        values = esc(e["baseline_value"]), esc(e["candidate_value"])
        rows.append((esc(name), f"{ours} {values[0]}", f"{theirs} {values[1]}"))
    if not rows:
        return ""
    head = ("element", "baseline", "candidate")
    told = table(head, rows, caption="In the order of the file")
    return more(f"The first {len(rows)} elements", told)
