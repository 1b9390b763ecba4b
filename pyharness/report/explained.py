"""What is said beside a difference, where the document has it: the first operation that differs,
distances by class, further elements, tokens that flip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyharness.report.markup import esc, marked, more, table

Explanation = Mapping[str, Any]
# class of distances -> its name, and its colour among those of the heat maps
_CLASSES = {
    "sign_of_zero": ("sign of zero", 1),
    "ulp_1": ("1 ulp", 1),
    "ulp_2": ("2 ulp", 2),
    "ulp_3_to_10": ("3-10 ulp", 2),
    "ulp_11_to_100": ("11-100 ulp", 3),
    "ulp_more": ("over 100 ulp", 4),
    "infinite": ("infinite", 5),
    "nan": ("NaN", 5),
}


def where(job: Mapping[str, Any]) -> str:
    """Step, row, layer and operation of the first difference in the order of the computation; "" if
    the document does not say.
    """
    d = job.get("divergence")
    if not d:
        return ""
    told = [_step(d)]
    if d["layer"] >= 0:
        told.append(f"layer {d['layer']} ({d['layer_kind']})")
    told += [d["operation"] or "operation not known", *([d["part"]] if d["part"] else [])]
    return ", ".join(told)


def divergence(job: Mapping[str, Any]) -> str:
    d = job.get("divergence")
    if not d:
        return ""
    ours, theirs = marked(*d["bits"])
    element = f" element {list(d['index'])}" if d["index"] else ""
    names = [esc(arm) for arm in d["arms"]]
    bits = f"{names[0]} {ours}, {names[1]} {theirs}" if all(d["bits"]) else ""
    count = f"; {d['different']} of {d['total']} elements differ" if d["total"] else ""
    if d.get("also"):
        count += f"; so does the layer's state: {', '.join(d['also'])}"
    note = f' <span class="soft">({esc(d["note"])})</span>' if d["note"] else ""
    return (
        f'<p class="divergence"><strong>First difference: {esc(where(job))}.</strong>'
        f"<br>{esc(element.strip())} {bits}{esc(count)}{note}</p>"
    )


def _step(d: Mapping[str, Any]) -> str:
    if d["operation"].startswith("state"):
        after = {"step": "step", "step_m": f"{d['rows']}-row step"}.get(d["call"], d["call"])
        return f"after the {after} to position {d['position']}"
    row = f" (row {d['row']} of the {d['rows']}-row step)" if d["rows"] > 1 else ""
    return f"step {d['position']}{row}"


def classes_of(explained: Explanation) -> str:
    """How many elements are how far apart, and the greedy tokens that change with it."""
    if not explained:
        return ""
    if explained["note"]:
        return f'<p class="soft">{esc(explained["note"])}</p>'
    told = [
        f'<li><span class="swatch q{shade}"></span>{count} &times; {esc(name)}</li>'
        for key, (name, shade) in _CLASSES.items()
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
    used = [k for k in _CLASSES if any(g["distances"][k] for g in groups)]
    rows = [(esc(_group(g["name"])), *(str(g["distances"][k] or "") for k in used)) for g in groups]
    head = ("", *(_CLASSES[k][0] for k in used))
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
