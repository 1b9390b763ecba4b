"""Sessions on the CPU library that ``make native`` builds, and what the tests of its bits read of
them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from pyharness.host import abi
from pyharness.host.session import Session
from pyharness.inputs.layout import LayerKind, Model

ROOT = Path(__file__).resolve().parents[3]
LIBRARY = ROOT / "build" / "cpu" / "libvllm_cuda.so"
ISA_VARIABLE = "VLLM_CUDA_CPU_ISA"
PARTS = {
    LayerKind.GDN: (abi.StateKind.S, abi.StateKind.CONV),
    LayerKind.ATTENTION: (abi.StateKind.KEYS, abi.StateKind.VALUES),
}


@cache
def library() -> abi.Bound:
    assert LIBRARY.exists(), f"{LIBRARY} is missing: run make native"
    return abi.bind(ctypes.CDLL(str(LIBRARY)))


@cache
def isas() -> tuple[str, ...]:
    """The instruction sets that this processor runs; portable always."""
    flags = (
        set(Path("/proc/cpuinfo").read_text().split()) if os.path.exists("/proc/cpuinfo") else set()
    )
    found = ["portable"]
    if {"avx2", "fma", "f16c"} <= flags:
        found.append("avx2")
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= flags:
        found.append("avx512")
    return tuple(found)


@contextmanager
def session(
    model: Model, *, mmax: int = 0, threads: int = 1, isa: str = "", context: int = 512
) -> Iterator[Session]:
    before = os.environ.pop(ISA_VARIABLE, None)
    if isa:
        os.environ[ISA_VARIABLE] = isa
    try:
        opened = Session(library(), model, mmax=mmax, threads=threads, context=context)
    finally:
        os.environ.pop(ISA_VARIABLE, None)
        if before is not None:
            os.environ[ISA_VARIABLE] = before
    with opened:
        opened.load()
        yield opened


def state(opened: Session, model: Model) -> bytes:
    """Every part of every layer's state, and the position."""
    parts = [str(opened.info().position).encode()]
    for layer, kind in enumerate(model.config.layer_kinds):
        parts += [opened.state_read(layer, part).tobytes() for part in PARTS[kind]]
    return b"|".join(parts)


def row_bytes(opened: Session, token: int) -> bytes:
    """One single step: h_out and logits."""
    rows = opened.step(token)
    return rows.h_out.tobytes() + rows.logits.tobytes()


def rows_bytes(opened: Session, tokens: Iterable[int]) -> list[bytes]:
    """One M-row step: h_out and logits of each row."""
    rows = opened.step_m([int(t) for t in tokens])
    return [
        h.tobytes() + logits.tobytes() for h, logits in zip(rows.h_out, rows.logits, strict=True)
    ]


def tokens_of(model: Model, count: int, seed: int = 7) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, model.config.vocab, count)]
