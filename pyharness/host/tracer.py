"""An engine that runs a script with taps on and digests what each call left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyharness.differences.traces import (
    CAPTURE,
    INDEX,
    ROWS,
    START,
    STATES,
    Call,
    Capture,
    TraceRequest,
    digest,
    extend,
    parts_of,
)
from pyharness.dumps import partial_folder
from pyharness.errors import InputError, LibraryFailure
from pyharness.files import sha256_file
from pyharness.host.abi import StateKind, TapKind
from pyharness.host.session import Info, Rows, Session
from pyharness.inputs.layout import ModelConfig
from pyharness.values import FileFact, to_json


class Tracer:
    """Engine in front of a session; ``write`` leaves the trace. Call 0 is the reset."""

    def __init__(self, session: Session, config: ModelConfig, request: TraceRequest) -> None:
        self._session, self._config, self._capture = session, config, request.capture
        self._history = [START]  # after 0, 1, ... tokens
        self._mark: list[str] = []
        self._calls: list[Call] = []
        self._rows: list[list[int]] = []
        self._states: list[list[int]] = []
        self._captured: np.ndarray | None = None
        self.recording = 0  # how many rows of the next call are those of a dump

    # ---- calls of a script -----------------------------------------------------------------------

    def reset(self) -> None:
        self._session.reset()
        self._session.taps(True)
        self._history, self._mark = [START], []
        self._after("reset")

    def step(self, token: int) -> Rows:
        return self._stepped("step", (token,), self._session.step(token))

    def step_m(self, tokens: Sequence[int]) -> Rows:
        return self._stepped("step_m", tokens, self._session.step_m(tokens))

    def mark(self) -> None:
        self._session.mark()
        self._mark = list(self._history)
        self._after("mark")

    def rollback(self) -> None:
        self._session.rollback()
        self._history = list(self._mark)
        self._after("rollback")

    def rollback_to(self, n: int) -> None:
        self._session.rollback_to(n)
        self._history = self._history[: len(self._mark) + n]
        self._after("rollback_to")

    def poison(self, word: int) -> None:
        self._session.poison(word)
        self._after("poison")

    def state_read(self, layer: int, kind: StateKind) -> np.ndarray:
        return self._session.state_read(layer, kind)

    def info(self) -> Info:
        return self._session.info()

    def close(self) -> None:
        self._session.close()

    @property
    def native_ns(self) -> int:
        return self._session.native_ns

    # ---- what they left --------------------------------------------------------------------------

    def _stepped(self, kind: str, tokens: Sequence[int], rows: Rows) -> Rows:
        before = len(self._history)
        for token in tokens:
            self._history.append(extend(self._history[-1], token))
        if self._capture is None:
            self._rows += self._digests(len(tokens), rows)
        elif self._wants(state=False):
            self._captured = self._row(self._capture, len(tokens), rows)
        self._after(kind, tuple(self._history[before:]))
        return rows

    def _after(self, kind: str, rows: tuple[str, ...] = ()) -> None:
        if self._capture is None:
            self._states.append([digest(v) for v in self._parts()])
        elif self._wants(state=True):
            part = StateKind(parts_of(self._kind(self._capture.layer))[self._capture.kind])
            self._captured = self._session.state_read(self._capture.layer, part)
        position = len(self._history) - 1
        self._calls.append(Call(kind, position, self._history[-1], rows, self.recording))

    def _wants(self, *, state: bool) -> bool:
        """Whether the call in progress is the one to capture."""
        c = self._capture
        return c is not None and c.state == state and c.call == len(self._calls)

    def _kind(self, layer: int) -> Any:
        return self._config.layer_kinds[layer]

    def _parts(self) -> list[np.ndarray]:
        return [
            self._session.state_read(layer, StateKind(part))
            for layer, kind in enumerate(self._config.layer_kinds)
            for part in parts_of(kind)
        ]

    def _digests(self, m: int, rows: Rows) -> list[list[int]]:
        """[m][TAPS * layers + 2]"""
        columns = [
            [digest(row) for row in self._tap(layer, kind, m)]
            for layer in range(self._config.layers)
            for kind in TapKind
        ]
        columns += [[digest(row) for row in values] for values in (rows.h_out, rows.logits)]
        return [list(row) for row in zip(*columns, strict=True)]

    def _tap(self, layer: int, kind: TapKind, m: int) -> np.ndarray:
        """[m, columns]"""
        values = self._session.tap_read(layer, kind)
        if not values.size or values.size % m:
            raise LibraryFailure(
                f"vcuda_dev_model_tap_read: layers.{layer}.{kind.part} has {values.size} elements, "
                f"which are no {m} rows"
            )
        return values.reshape(m, -1)

    def _row(self, capture: Capture, m: int, rows: Rows) -> np.ndarray:
        if capture.layer < 0:
            return np.array((rows.h_out, rows.logits)[capture.kind][capture.row])
        return self._tap(capture.layer, TapKind(capture.kind), m)[capture.row]

    # ---- files -----------------------------------------------------------------------------------

    def write(self, out: Path, owner: int) -> tuple[FileFact, ...]:
        """Makes the folder ``out`` with the files of the request."""
        if self._capture is not None:
            if self._captured is None:
                raise LibraryFailure("the call to capture was not made")
            arrays = {CAPTURE: self._captured.astype("<f4", copy=False)}
        else:
            arrays = {ROWS: np.array(self._rows, "<u8"), STATES: np.array(self._states, "<u8")}
        partial = partial_folder(out, owner)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            names = list(arrays)
            for name, array in arrays.items():
                np.save(partial / name, array)
            if self._capture is None:
                names.insert(0, INDEX)
                (partial / INDEX).write_text(json.dumps(to_json(tuple(self._calls))))
            facts = tuple(FileFact(name, *sha256_file(partial / name)) for name in names)
            partial.rename(out)
        except OSError as e:
            raise InputError(f"{out}: cannot be written: {e.strerror or e}") from None
        return facts
