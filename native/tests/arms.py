"""Several libraries, or one library under several settings, that get the same calls: after each
call every output is the same bytes in all of them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyharness.host import abi
from pyharness.host.session import Session
from pyharness.inputs.layout import LayerKind, Model

PARTS = {
    LayerKind.GDN: (abi.StateKind.S, abi.StateKind.CONV),
    LayerKind.ATTENTION: (abi.StateKind.KEYS, abi.StateKind.VALUES),
}


class Different(Exception):
    """A byte that should be equal is not, or a call that must fail or succeed did otherwise."""


@contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """Variables for native code too, while they are needed."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def bind(library: Path) -> abi.Bound:
    return abi.bind(ctypes.CDLL(str(library.resolve())))


@dataclass(frozen=True)
class Arm:
    name: str
    bound: abi.Bound
    settings: dict[str, str] = field(default_factory=dict)  # of the environment, at open and load


def same(what: str, first: str, a: np.ndarray, second: str, b: np.ndarray) -> None:
    if a.tobytes() == b.tobytes():
        return
    x, y = a.view(np.uint32).ravel(), b.view(np.uint32).ravel()
    where = np.flatnonzero(x != y)
    i = int(where[0])
    raise Different(
        f"{what}: {len(where)} of {len(x)} values differ, first at {i}: "
        f"{first} {a.ravel()[i]!r} ({x[i]:08x}), {second} {b.ravel()[i]!r} ({y[i]:08x})"
    )


class Arms:
    def __init__(
        self, name: str, arms: Sequence[Arm], model: Model, mmax: int, context: int
    ) -> None:
        self.name, self.model, self.arms, self.calls = name, model, arms, 0
        self.sessions: list[Session] = []
        for arm in arms:
            with environment(arm.settings):
                session = Session(arm.bound, model, mmax, context=context)
                session.load()
            self.sessions.append(session)

    def _compare(self, what: str, values: Sequence[np.ndarray]) -> None:
        for arm, value in zip(self.arms[1:], values[1:], strict=True):
            same(f"{self.name}: {what}", self.arms[0].name, values[0], arm.name, value)

    def step(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        rows = [s.step(tokens[0]) if len(tokens) == 1 else s.step_m(tokens) for s in self.sessions]
        what = f"position {self.position() - len(tokens)}, M = {len(tokens)}"
        self._compare(f"{what}: h_out", [r.h_out for r in rows])
        self._compare(f"{what}: logits", [r.logits for r in rows])
        self.calls += 1
        return rows[0].h_out.copy(), rows[0].logits.copy()

    def state(self) -> None:
        for layer, kind in enumerate(self.model.config.layer_kinds):
            for part in PARTS[kind]:
                what = f"position {self.position()}: layer {layer} {part.name.lower()}"
                self._compare(what, [s.state_read(layer, part) for s in self.sessions])

    def taps(self) -> None:
        for layer in range(len(self.model.config.layer_kinds)):
            for kind in abi.TapKind:
                what = f"position {self.position()}: layer {layer} {kind.name.lower()}"
                self._compare(what, [s.tap_read(layer, kind) for s in self.sessions])

    def each(self, call: str, *arguments: int) -> None:
        for session in self.sessions:
            getattr(session, call)(*arguments)

    def position(self) -> int:
        return self.sessions[0].info().position

    def draw(self, random: np.random.Generator, n: int) -> list[int]:
        return [int(t) for t in random.integers(0, self.model.config.vocab, n)]

    def forward_to(self, position: int, random: np.random.Generator, rows: int) -> None:
        """From the start where the position is passed already."""
        if self.position() > position:
            self.each("reset")
        while (left := position - self.position()) > 0:
            self.step(self.draw(random, min(rows, left)))

    def close(self) -> None:
        self.each("close")
