"""How the archived libraries grew, and how long a single step took in the run each was accepted
for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from pyharness.archive import layout
from pyharness.archive.fsck import history, open_archive
from pyharness.archive.tree import Tree
from pyharness.files import sha256_bytes
from pyharness.values import Digest


def trajectory(archive: Path, pin: Path) -> list[dict[str, Any]]:
    """The libraries of the verified archive, oldest first. GateRefusal or InputError without
    one.
    """
    with open_archive(archive, pin) as (tree, snapshot):
        records = {e.library: e.record for e in snapshot.entries if e.record}
        return [
            {
                "label": line.label,
                "digest": str(line.digest),
                "size_bytes": line.size_bytes,
                "time": line.time,
                "why": line.why,
                "backend": line.backend,
                "accepted": list(line.accepted),
                "baseline": line.baseline,
                **_speed(tree, records.get(line.digest)),
            }
            for line in history(snapshot)
        ]


def _speed(tree: Tree, record: Digest | None) -> dict[str, Any]:
    """Of the record kept with a library; nothing where it has a form that is not known here."""
    if record is None:
        return {}
    data = tree.read(layout.blob_path(record))
    try:
        whole = json.loads(data) if sha256_bytes(data) == record else {}
        machine = whole["machine"]
        gpu = {"gpu": str(machine["gpu"])} if "gpu" in machine else {}
        return {"step_ns": step_ns(whole), "cpu": str(machine["cpu"]), **gpu}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return {}


def step_ns(record: Mapping[str, Any]) -> dict[str, float]:
    """By model and prefix: median nanoseconds of one of the candidate's single steps."""
    found: dict[str, list[float]] = {}
    arms = {(a["job"], a["arm"], a["role"]): a for a in record["arms"]}
    for job in record["suite"]["jobs"]:
        arm = arms.get((job["id"], "candidate", "arm"))
        if job["kind"] != "m1" or arm is None or arm["result"]["status"] != "done":
            continue
        calls = zip(job["candidate"]["script"], arm["result"]["step_ns"], strict=True)
        for op, ns in calls:
            if op["kind"] == "step" and op["record"]:
                found.setdefault(job["id"].rpartition("/")[0], []).append(ns / len(op["tokens"]))
    return {name: round(median(values), 1) for name, values in found.items()}
