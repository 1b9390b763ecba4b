"""The tests' oracle against the golden data: logits, hidden states, layers, states, caches."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pyharness.inputs.layout import EMBEDDING, Model
from pyharness.inputs.model import load_model, model_spec
from pyharness.tests.goldens import NAMES, array, golden
from pyharness.tests.reference import Gdn, Reference

EXACT = 1e-9


@cache
def golden_model(name: str) -> Model:
    return load_model(model_spec(golden(name)))


@cache
def finished(name: str) -> tuple[Reference, np.ndarray, np.ndarray]:
    """After all tokens of tokens.npy: the decoder, hidden states, logits."""
    reference = Reference(golden_model(name), exact_rotary=True)
    return reference, *reference.run(array(name, "tokens"))


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_hidden_states(name: str) -> None:
    _, hidden, logits = finished(name)
    assert np.abs(logits - array(name, "logits_f64")).max() < EXACT
    assert np.abs(hidden - array(name, "final_hidden_f64")).max() < EXACT


@pytest.mark.parametrize("name", NAMES)
def test_long_input(name: str) -> None:
    reference = Reference(golden_model(name), exact_rotary=True)
    _, logits = reference.run(array(name, "tokens_long"))
    assert np.abs(logits - array(name, "logits_long_f64")).max() < EXACT


@pytest.mark.parametrize("name", NAMES)
def test_states_and_caches(name: str) -> None:
    """The golden ones are rounded to float32."""
    reference, _, _ = finished(name)
    gdn = [s for s in reference.states if "S" in s]
    attention = [s for s in reference.states if "keys" in s]
    files = {
        "state_rec": [s["S"] for s in gdn],
        "state_conv": [s["conv"] for s in gdn],
        "cache_k": [s["keys"] for s in attention],
        "cache_v": [s["values"] for s in attention],
    }
    compared = 0
    for file, parts in files.items():
        if parts:
            expected = array(name, file)
            if file == "state_conv":
                expected = expected[:, :, 1:]  # the oldest of its four columns is never read
            found = np.stack(parts)
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() < 1e-6 * max(1.0, np.abs(expected).max())
            compared += 1
    assert compared == {"tiny-hybrid": 4, "tiny-gdn": 2, "tiny-attn": 2}[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_layer(name: str) -> None:
    """The residual stream of the first positions; the golden run is a float32 one."""
    reference = Reference(golden_model(name), exact_rotary=True)
    expected = array(name, "layer_hidden")
    for position, token in enumerate(array(name, "tokens")[:8]):
        reference.step(int(token))
        found = np.stack(reference.residual)
        assert np.abs(found - expected[:, position]).max() < 2e-4


@pytest.mark.parametrize("name", ["tiny-hybrid", "tiny-attn"])
def test_rotary_frequencies_in_float32_are_close(name: str) -> None:
    """float32 frequencies, as the library has them, stay far inside the bound for its logits."""
    _, logits = Reference(golden_model(name)).run(array(name, "tokens"))
    error = np.abs(logits - array(name, "logits_f64")).max()
    assert 0 < error < 5e-5


def test_a_wrong_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution that forgets the token before it is far out."""
    original = Gdn.__call__

    def late_history(self: Gdn, h: np.ndarray) -> np.ndarray:
        before = self.history
        out = original(self, h)
        self.history = before
        return out

    monkeypatch.setattr(Gdn, "__call__", late_history)
    _, logits = Reference(golden_model("tiny-gdn")).run(array("tiny-gdn", "tokens")[:8])
    assert np.abs(logits - array("tiny-gdn", "logits_f64")[:8]).max() > 0.1


def test_a_token_reads_its_own_row() -> None:
    reference = Reference(golden_model("tiny-gdn"))
    reference.step(7)
    assert np.array_equal(reference.residual[0], reference.w[EMBEDDING][7])
    assert np.abs(reference.residual[0]).max() < 2.0**-7  # the deliberately small row
