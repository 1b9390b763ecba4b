"""Documents to render: every status, hostile text, and any number of red jobs.

``python -m pyharness.tests.report.samples`` writes the golden files anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyharness.report.attestation import attestation
from pyharness.report.document import document, dumps
from pyharness.report.github import error_lines, summary
from pyharness.report.junit import junit_xml
from pyharness.report.svg import Line, heat_map
from pyharness.values import Comparison, Difference, JobStatus
from pyharness.verdict import JobVerdict, conclude

GOLDEN = Path(__file__).with_name("golden")
HOSTILE = (
    '</script><script>alert(1)</script> % :, \n & "quotes" \x1b[31m \u202e http://evil.example'
)


def digest(n: int) -> str:
    return f"sha256:{n:064x}"


LOGITS = Difference(
    "logits.npy", "", (3, 17), "0x3f800000", "0x3f800001", "1.0", "1.0000001", 5, 96
)
STATE = Difference(
    "state.safetensors", "layers.0.S", (1, 2, 3), "0x00000000", "0x80000000", "0.0", "-0.0", 1, 24
)
SHAPES = Difference("h_out.npy", "", (), "", "", "", "", 64, 64, "baseline F32 [2], candidate none")


def jobs(text: str = "stays the same") -> list[JobVerdict]:
    """One of each status, and a red one of each kind of difference."""
    same = Comparison(True, 1234)
    return [
        JobVerdict(
            "gdn-tiny/p63/m1", JobStatus.SAME, "", False, same, control="1 of 8 rows differ"
        ),
        JobVerdict("gdn-tiny/p63/mt2", JobStatus.DIFFERS, "", False, red(LOGITS, STATE)),
        JobVerdict("gdn-tiny/p63/mt4", JobStatus.DIFFERS, "", False, red(SHAPES)),
        JobVerdict(
            "gdn-tiny/p63/rb2", JobStatus.UNSUPPORTED, "baseline lacks vcuda_dev_model_mark", False
        ),
        JobVerdict(
            "attn-tiny/p63/mt2",
            JobStatus.UNSUPPORTED,
            "candidate lacks vcuda_dev_model_step_m",
            True,
        ),
        JobVerdict("attn-tiny/p63/mt4", JobStatus.FAILED, f"candidate: {text}", False),
        JobVerdict("attn-tiny/p63/rb2", JobStatus.NONDETERMINISTIC, "differs from itself", False),
        JobVerdict("attn-tiny/p63/rb4", JobStatus.INDISTINCT, text, False, same),
    ]


def red(*differences: Difference) -> Comparison:
    return Comparison(False, 1234, differences)


def many(count: int, reason: str = "") -> list[JobVerdict]:
    return [
        JobVerdict(f"gdn-tiny/p63/mt{m}", JobStatus.DIFFERS, reason, False, red(LOGITS))
        for m in range(2, 2 + count)
    ]


def grid(file: str, tensor: str, shape: tuple[int, int]) -> dict[str, Any]:
    cells = [[(r + c) % 3 for c in range(shape[1])] for r in range(shape[0])]
    axes = ["part", "value head"] if tensor else ["row", "column"]
    return {
        "file": file, "tensor": tensor, "axes": axes, "shape": list(shape), "step": [1, 1],
        "elements": shape[0] * shape[1], "different": cells, "distance": cells,
    }  # fmt: skip


def details(job: JobVerdict) -> dict[str, Any]:
    """What ``gather`` tells of a job beside its verdict."""
    model, prefix, name = job.id.split("/")
    files = [{"name": "h_out.npy", "sha256": digest(1), "size_bytes": 5}]
    files.append({"name": "logits.npy", "sha256": digest(100 + len(name)), "size_bytes": 6})
    told: dict[str, Any] = {
        "model": model, "kind": name.rstrip("0123456789") if name != "m1" else "m1",
        "m": int(name.lstrip("mtrb")), "case": "", "prefix": int(prefix[1:]), "rows": 8,
        "batches": [[0, 2], [4, 3]],
        "seconds": 0.25,
        "dumps": {arm: {"folder": f"{arm}/{name}", "files": files}
                  for arm in ("baseline", "candidate")},
    }  # fmt: skip
    if job.id == "gdn-tiny/p63/mt2":
        told["grids"] = [grid("logits.npy", "", (8, 12)), grid(STATE.file, STATE.tensor, (1, 4))]
    return told


def whole(made: list[JobVerdict] | None = None, text: str = "a note") -> dict[str, Any]:
    """A document with every member."""
    chosen = jobs() if made is None else made
    libraries = {
        arm: {
            "digest": digest(n), "size_bytes": 1000 * n, "origin": f"/lib/{arm} {text}.so",
            "abi_version": 1, "build_info": {"backend": "cpu", "compiler": text, "dirty": False},
            "symbols": ["vcuda_abi_version"], "missing": ["vcuda_dev_poison"], "mapped": "/memfd:x",
        }
        for n, arm in ((7, "baseline"), (8, "candidate"))
    }  # fmt: skip
    archived = [
        {
            "label": f"v{n}", "digest": digest(n), "size_bytes": 900 * n, "why": text,
            "time": "2026-11-29T12:00:00Z", "backend": "cpu", "accepted": [], "baseline": n == 7,
            "step_ns": {"gdn-tiny/p63": 60000.0 - n}, "cpu": "some CPU",
        }
        for n in (6, 7)
    ]  # fmt: skip
    facts = {
        "started": "2026-11-29T12:00:00.000+00:00", "finished": "2026-11-29T12:00:09.500+00:00",
        "harness": "0.1.0", "revision": "0123abcd", "command": f"run-ab --text {text!r}",
        "replay": "run-ab replay run-1", "replay_of": "",
        "machine": {"cpu": "some CPU", "cores": 2},
        "environment": {"LANG": "C.UTF-8"},
        "inputs": [{"name": "/tokens.npy", "sha256": digest(9), "size_bytes": 12}],
        "files": {"plan.json": digest(10), "record.json": digest(11)}, "archive": archived,
    }  # fmt: skip
    more = {job.id: details(job) for job in chosen}
    made_of = document(conclude(chosen), "run-1", libraries, (text,), jobs=more, facts=facts)
    again: dict[str, Any] = json.loads(dumps(made_of))
    return again


def golden() -> dict[str, str]:
    told = whole()
    lines = [Line("0", [0, 1, 2, 5], True), Line("1", [])]
    return {
        "annotations.txt": "\n".join(error_lines(told)) + "\n",
        "summary.md": summary(told),
        "junit.xml": junit_xml(told).decode(),
        "attestation.json": dumps(attestation(told)).decode(),
        "heat.svg": heat_map("g", "a title", "told <more>", lines, [(0.0, "first"), (1.0, "last")])
        + "\n",
    }


if __name__ == "__main__":
    for name, content in golden().items():
        (GOLDEN / name).write_text(content, encoding="utf-8")
