"""A runner without processes: a toy model whose rows follow from the tokens in its state, and
planted faults by library.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyharness.dumps import file_facts
from pyharness.values import ArmPlan, ArmResult, Digest, LibraryFacts

HIDDEN, VOCAB = 8, 16
OPTIONAL = {
    "step_m": "vcuda_dev_model_step_m",
    "mark": "vcuda_dev_model_mark",
    "rollback": "vcuda_dev_model_rollback",
    "rollback_to": "vcuda_dev_model_rollback_to",
    "poison": "vcuda_dev_poison",
}


@dataclass(frozen=True)
class FakeLibrary:
    """``faults``: what this library does wrong; see ``FakeRunner``."""

    name: str
    faults: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    origin: str = "/somewhere/lib.so"
    fd: int = -1
    size_bytes: int = 1000

    @property
    def digest(self) -> Digest:
        return Digest(hashlib.sha256(self.name.encode()).hexdigest())


OLD, NEW = FakeLibrary("old"), FakeLibrary("new")


def broken(*faults: str) -> FakeLibrary:
    return FakeLibrary("new", frozenset(faults))


def lacking(*kinds: str, name: str = "old") -> FakeLibrary:
    return FakeLibrary(name, lacks=frozenset(kinds))


@dataclass
class FakeRunner:
    """Remembers each plan that it ran. Faults:

    rows: the last row of an M-row step is wrong in one bit. after: the state is wrong after an
    M-row step. stuck: rollback does nothing. leak: row 0 of an M-row step depends on the last
    token. deaf: nothing depends on the tokens. deaf-logits, deaf-state: the same for one file.
    random: no two runs are equal. crash, crash-again, crash-control, crash-rows: an arm fails.
    hang, hang-again, hang-control, hang-rows: it takes longer than its time.
    """

    ran: list[tuple[ArmPlan, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    counter: itertools.count[int] = field(default_factory=itertools.count)

    def run(self, plan: ArmPlan, library: Any, out: Path) -> ArmResult:
        with self.lock:
            self.ran.append((plan, library.name))
        assert not out.exists()
        kinds: set[str] = {op.what or op.kind for op in plan.script}
        missing = tuple(OPTIONAL[k] for k in OPTIONAL if k in kinds & library.lacks)
        facts = LibraryFacts(
            library.digest, library.size_bytes, 1, {"backend": "fake"}, ("a",), missing
        )
        if missing:
            return ArmResult("unsupported", "lacks", missing, library=facts)
        if reason := _crash(plan, library.faults, kinds):
            return ArmResult("failed", reason, timed_out=reason.startswith("timed out"))
        return self._toy(plan, library.faults, out, facts)

    def _toy(
        self, plan: ArmPlan, faults: frozenset[str], out: Path, facts: LibraryFacts
    ) -> ArmResult:
        salt = str(next(self.counter)) if "random" in faults else ""
        rows: list[tuple[np.ndarray, np.ndarray]] = []
        state: list[int] = []
        mark: list[int] = []
        bent = False
        for op in plan.script:
            if op.kind == "mark":
                mark = list(state)
            elif op.kind in ("rollback", "rollback_to") and "stuck" not in faults:
                state = state[: len(mark) + op.number]
            elif op.kind == "reset":
                state = []
            elif op.kind == "refused":
                continue
            batch = op.kind == "step_m"
            bent = bent or (batch and "after" in faults)
            for i, token in enumerate(op.tokens):
                state.append(token)
                seen = [0] if "deaf" in faults else state
                if batch and i == 0 and "leak" in faults:
                    seen = [*seen, op.tokens[-1]]
                h, logits = _numbers(salt, seen, HIDDEN), _numbers(salt, seen, VOCAB)
                if batch and i == len(op.tokens) - 1 and "rows" in faults:
                    logits.view("<u4")[3] ^= 1
                if "deaf-logits" in faults:
                    logits[:] = 1
                if i < len(op.recorded):
                    rows.append((h, logits))
        seen = [0] if faults & {"deaf", "deaf-state"} else [*state, -1] if bent else state
        _write(out, rows, _numbers(salt, seen, 12), len(seen))
        return ArmResult("done", files=file_facts(out), rows=len(rows), library=facts, wall_s=0.01)


def _write(
    out: Path, rows: list[tuple[np.ndarray, np.ndarray]], s: np.ndarray, position: int
) -> None:
    out.mkdir(parents=True)
    np.save(out / "h_out.npy", np.stack([h for h, _ in rows]))
    np.save(out / "logits.npy", np.stack([logits for _, logits in rows]))
    header = json.dumps(
        {
            "layers.0.S": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
            "position": {"dtype": "I64", "shape": [1], "data_offsets": [48, 56]},
        }
    ).encode()
    data = len(header).to_bytes(8, "little") + header + s.tobytes() + position.to_bytes(8, "little")
    (out / "state.safetensors").write_bytes(data)


def _crash(plan: ArmPlan, faults: frozenset[str], kinds: set[str]) -> str:
    ends = {"crash": "killed by SIGSEGV", "hang": f"timed out after {plan.timeout_s:g} s"}
    places = {"", "-again" * (plan.role == "again"), "-control" * (plan.role == "control")}
    places.add("-rows" * ("step_m" in kinds))
    return next((said for kind, said in ends.items() for p in places if kind + p in faults), "")


def _numbers(salt: str, tokens: Sequence[int], count: int) -> np.ndarray:
    """[count] float32 that follow from the tokens."""
    digest = hashlib.sha256(f"{salt}/{count}/{list(tokens)}".encode()).digest()
    return np.random.default_rng(list(digest)).normal(size=count).astype("<f4")
