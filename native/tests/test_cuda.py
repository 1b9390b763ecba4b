"""The CUDA library against the CPU library: every output and the whole state, by bytes.

    python native/tests/test_cuda.py CPU_LIBRARY CUDA_LIBRARY [--sizes tiny,mid] [--golden FOLDER]

Both libraries live in this process and get the same calls: single steps, M rows, marks and rollbacks, at
cursors around the edges of chunks. Exit status 0: every byte equal; 1: a difference, named.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyharness.host import abi
from pyharness.host.session import Session
from pyharness.inputs.layout import LayerKind, Model
from pyharness.inputs.model import load_model
from pyharness.inputs.synthetic import synthetic_model
from pyharness.values import ModelSpec

PARTS = {
    LayerKind.GDN: (abi.StateKind.S, abi.StateKind.CONV),
    LayerKind.ATTENTION: (abi.StateKind.KEYS, abi.StateKind.VALUES),
}


class Different(Exception):
    pass


def same(what: str, cpu: np.ndarray, gpu: np.ndarray) -> None:
    if cpu.tobytes() == gpu.tobytes():
        return
    a, b = cpu.view(np.uint32).ravel(), gpu.view(np.uint32).ravel()
    where = np.flatnonzero(a != b)
    i = int(where[0])
    raise Different(
        f"{what}: {len(where)} of {len(a)} values differ, first at {i}: "
        f"cpu {cpu.ravel()[i]!r} ({a[i]:08x}), gpu {gpu.ravel()[i]!r} ({b[i]:08x})"
    )


class Pair:
    """The same model on both libraries; every call is made on both and compared."""

    def __init__(self, name: str, bounds: list[abi.Bound], model: Model, mmax: int, context: int) -> None:
        self.name, self.model, self.calls = name, model, 0
        self.sessions = [Session(b, model, mmax, context=context) for b in bounds]
        for session in self.sessions:
            session.load()

    def step(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        cpu, gpu = (
            s.step(tokens[0]) if len(tokens) == 1 else s.step_m(tokens) for s in self.sessions
        )
        position = self.position() - len(tokens)
        what = f"{self.name}: position {position}, M = {len(tokens)}"
        same(f"{what}: h_out", cpu.h_out, gpu.h_out)
        same(f"{what}: logits", cpu.logits, gpu.logits)
        self.calls += 1
        return cpu.h_out.copy(), cpu.logits.copy()

    def state(self) -> None:
        for layer, kind in enumerate(self.model.config.layer_kinds):
            for part in PARTS[kind]:
                cpu, gpu = (s.state_read(layer, part) for s in self.sessions)
                same(f"{self.name}: position {self.position()}: layer {layer} {part.name.lower()}", cpu, gpu)

    def each(self, call: str, *arguments: int) -> None:
        for session in self.sessions:
            getattr(session, call)(*arguments)

    def position(self) -> int:
        return self.sessions[0].info().position

    def close(self) -> None:
        self.each("close")


def check(pair: Pair, prefixes: list[int], rows: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)

    def draw(n: int) -> list[int]:
        return [int(t) for t in random.integers(0, pair.model.config.vocab, n)]

    most = max(rows)
    for prefix in prefixes:
        if pair.position() > prefix:
            pair.each("reset")
        while (left := prefix - pair.position()) > 0:
            pair.step(draw(min(most, left)))
        tokens = draw(most)
        pair.each("mark")
        singles = [pair.step([t]) for t in tokens]
        pair.state()
        pair.each("rollback")
        pair.state()
        for m in (m for m in rows if m > 1):
            pair.each("mark")
            h, logits = pair.step(tokens[:m])
            for i in range(m):
                what = f"{pair.name}: prefix {prefix}, M = {m} against single steps: row {i}"
                same(f"{what} h_out", singles[i][0][0], h[i])
                same(f"{what} logits", singles[i][1][0], logits[i])
            pair.step(draw(1))
            if m == most:
                pair.state()
            pair.each("rollback")
        if hasattr(Session, "rollback_to") and most > 2:
            pair.each("mark")
            pair.step(tokens)
            pair.each("rollback_to", most - 2)
            pair.state()
            h, logits = pair.step(tokens[most - 2 : most - 1])
            same(f"{pair.name}: prefix {prefix}: after rollback_to", singles[most - 2][1][0], logits[0])
    pair.state()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cpu")
    parser.add_argument("cuda")
    parser.add_argument("--sizes", default="tiny")
    parser.add_argument("--families", default="hybrid,gdn,attn")
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--prefixes", default="0,1,5,17,63,64,65,200,1000")
    parser.add_argument("--rows", default="1,2,3,4,5,6,7,8")
    options = parser.parse_args()
    bounds = [abi.bind(ctypes.CDLL(str(Path(p).resolve()))) for p in (options.cpu, options.cuda)]
    prefixes = [int(p) for p in options.prefixes.split(",")]
    rows = [int(m) for m in options.rows.split(",")]
    models: list[tuple[str, Model]] = []
    for size in filter(None, options.sizes.split(",")):
        for family in options.families.split(","):
            models.append((f"{size} {family}", synthetic_model(family, size, 7)))
    if options.golden:
        for folder in sorted(p for p in options.golden.iterdir() if p.is_dir()):
            models.append((folder.name, load_model(ModelSpec("checkpoint", path=str(folder)))))
    failed = 0
    for name, model in models:
        begin = time.monotonic()
        try:
            pair = Pair(name, bounds, model, max(2, *rows), max(prefixes) + 2 * max(rows) + 1)
            check(pair, prefixes, rows, 3)
            pair.close()
            print(f"{name}: {pair.calls} steps equal, {time.monotonic() - begin:.1f} s", flush=True)
        except Different as e:
            failed += 1
            print(f"DIFFERS {e}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
