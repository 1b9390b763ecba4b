"""The library against outputs of an independent implementation: single steps and every M, two
inputs, three models.
"""

from __future__ import annotations

import numpy as np
import pytest

from pyharness.host.abi import StateKind
from pyharness.host.session import Session
from pyharness.inputs.layout import LayerKind, Model
from pyharness.inputs.model import load_model
from pyharness.tests.goldens import HIDDEN_BOUND, LOGITS_BOUND, NAMES, STATE_BOUND, array, golden
from pyharness.tests.library.sessions import session
from pyharness.values import ModelSpec

INPUTS = {"tokens": "logits_f64", "tokens_long": "logits_long_f64"}


def model_of(name: str) -> Model:
    return load_model(ModelSpec("checkpoint", path=str(golden(name))))


def outputs(opened: Session, tokens: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """h_out and logits of all tokens, M at a time; the rest that fills no M-row step one by one."""
    hidden, logits = [], []
    for begin in range(0, len(tokens), m):
        part = [int(t) for t in tokens[begin : begin + m]]
        steps = [part] if len(part) == m and m > 1 else [[t] for t in part]
        for step in steps:
            rows = opened.step_m(step) if len(step) > 1 else opened.step(step[0])
            hidden.append(rows.h_out.copy())
            logits.append(rows.logits.copy())
    return np.concatenate(hidden), np.concatenate(logits)


def assert_close(got: np.ndarray, expected: np.ndarray, bound: float, what: str) -> None:
    error = np.abs(got - expected).max()
    assert error <= bound, f"{what}: largest error {error:.2e}, bound {bound:.0e}"


@pytest.mark.parametrize("m", range(1, 9))
@pytest.mark.parametrize("tokens", INPUTS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_argmax(name: str, tokens: str, m: int) -> None:
    expected = array(name, INPUTS[tokens])
    with session(model_of(name), mmax=8 if m > 1 else 0) as opened:
        hidden, logits = outputs(opened, array(name, tokens), m)
    assert_close(logits, expected, LOGITS_BOUND, "logits")
    assert (logits.argmax(1) == expected.argmax(1)).all()
    if tokens == "tokens":
        assert_close(hidden, array(name, "final_hidden_f64"), HIDDEN_BOUND, "final hidden")


@pytest.mark.parametrize("m", [1, 5, 8])
@pytest.mark.parametrize("name", NAMES)
def test_states_and_caches(name: str, m: int) -> None:
    model = model_of(name)
    kinds = model.config.layer_kinds
    gdn = [i for i, kind in enumerate(kinds) if kind == LayerKind.GDN]
    attention = [i for i, kind in enumerate(kinds) if kind == LayerKind.ATTENTION]
    with session(model, mmax=8) as opened:
        outputs(opened, array(name, "tokens"), m)

        def compare(layers: list[int], part: StateKind, expected: np.ndarray) -> None:
            for layer, wanted in zip(layers, expected, strict=True):
                got = opened.state_read(layer, part).reshape(wanted.shape)
                assert_close(got, wanted, STATE_BOUND, f"layer {layer} {part.name}")

        if gdn:
            compare(gdn, StateKind.S, array(name, "state_rec"))
            compare(gdn, StateKind.CONV, array(name, "state_conv")[:, :, 1:])  # newest K - 1
        if attention:
            compare(attention, StateKind.KEYS, array(name, "cache_k"))
            compare(attention, StateKind.VALUES, array(name, "cache_v"))


def test_the_bounds_catch_a_wrong_token() -> None:
    tokens = array("tiny-hybrid", "tokens").copy()
    tokens[3] ^= 1
    with session(model_of("tiny-hybrid")) as opened:
        _, logits = outputs(opened, tokens, 1)
    with pytest.raises(AssertionError, match="largest error"):
        assert_close(logits, array("tiny-hybrid", "logits_f64"), LOGITS_BOUND, "logits")
