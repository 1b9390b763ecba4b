"""Partial rollback, poisoned memory and taps: state is exactly what the accepted tokens make,
whatever else was tried.
"""

from __future__ import annotations

import numpy as np
import pytest

from pyharness.host.abi import TapKind
from pyharness.host.session import CallFailed
from pyharness.inputs.model import load_model
from pyharness.tests.goldens import HIDDEN_BOUND, array, golden
from pyharness.tests.library.sessions import (
    isas,
    row_bytes,
    rows_bytes,
    session,
    state,
    tokens_of,
)
from pyharness.values import ModelSpec

POISONS = {"NaN": 0x7FC12345, "large": 0x7E967699}  # large: 1e38


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("family", ["hybrid", "gdn", "attn"])
def test_rollback_to_keeps_the_first_rows(family: str, poison: str) -> None:
    """Every n of every M, the rejected rows being other tokens, unused memory poisoned around each
    call.
    """
    model = load_model(ModelSpec("synthetic", family=family, size="tiny", seed=3))
    tokens, word = tokens_of(model, 24), POISONS[poison]
    with session(model, mmax=8) as opened, session(model) as singles:
        rows, states = [], [state(singles, model)]
        for token in tokens:
            rows.append(row_bytes(singles, token))
            states.append(state(singles, model))
        for m in range(2, 9):
            for n in range(m + 1):
                for prefix in (0, 1, 2, 5):
                    end = prefix + n
                    rejected = [(t + 1) % 512 for t in tokens[end : prefix + m]]
                    opened.reset()
                    for token in tokens[:prefix]:
                        opened.step(token)
                    opened.poison(word)
                    opened.mark()
                    opened.poison(word)
                    got = rows_bytes(opened, tokens[prefix:end] + rejected)
                    assert got[:n] == rows[prefix:end], (m, n, prefix)
                    opened.poison(word)
                    opened.rollback_to(n)
                    opened.poison(word)
                    assert state(opened, model) == states[end], (m, n, prefix)
                    assert row_bytes(opened, tokens[end]) == rows[end], (m, n, prefix)


def test_rollback_to_refuses_what_it_cannot_replay() -> None:
    model = load_model(ModelSpec("synthetic", family="gdn", size="tiny", seed=3))
    with session(model, mmax=4) as opened:
        for script, reason in (
            ([], "no mark"),
            (["mark"], "only step since the mark"),
            (["mark", "step"], "only step since the mark"),
            (["mark", "rows", "step"], "only step since the mark"),
            (["mark", "step", "rows"], "only step since the mark"),
            (["mark", "rows", "rows"], "only step since the mark"),
            (["mark", "rows", "rollback"], "no mark"),
        ):
            opened.reset()
            for call in script:
                if call == "rows":
                    opened.step_m([1, 2, 3])
                elif call == "step":
                    opened.step(4)
                else:
                    getattr(opened, call)()
            before = state(opened, model)
            with pytest.raises(CallFailed, match=reason):
                opened.rollback_to(1)
            assert state(opened, model) == before
        opened.mark()
        opened.step_m([1, 2, 3])
        before = state(opened, model)
        for n in (-1, 4):
            with pytest.raises(CallFailed, match=f"n is {n}, must be 0 to 3"):
                opened.rollback_to(n)
        assert state(opened, model) == before
        opened.rollback_to(3)
        assert state(opened, model) == before


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_taps_cost_no_bit_and_rows_equal_singles(isa: str) -> None:
    if isa not in isas():
        pytest.skip(f"this processor lacks {isa}")
    model = load_model(ModelSpec("synthetic", family="hybrid", size="tiny", seed=3))
    tokens, layers = tokens_of(model, 12), range(model.config.layers)
    with session(model, mmax=8, isa=isa) as opened, session(model) as singles:
        with pytest.raises(CallFailed, match="taps: they are off"):
            opened.tap_read(0, TapKind.MIXER)
        opened.taps(True)
        expected = [row_bytes(singles, t) for t in tokens]
        by_row = []
        for token, row in zip(tokens, expected, strict=True):
            assert row_bytes(opened, token) == row
            by_row.append({(i, k): opened.tap_read(i, k) for i in layers for k in TapKind})
        opened.reset()
        assert rows_bytes(opened, tokens[:5]) + rows_bytes(opened, tokens[5:12]) == expected
        for i in layers:
            for kind in TapKind:
                got = opened.tap_read(i, kind).reshape(7, -1)
                for taps, values in zip(by_row[5:], got, strict=True):
                    assert taps[i, kind].tobytes() == values.tobytes(), (i, kind)
        with pytest.raises(CallFailed, match="no layer 8"):
            opened.tap_read(8, TapKind.MIXER)


@pytest.mark.parametrize("name", ["tiny-hybrid", "tiny-gdn", "tiny-attn"])
def test_residual_stream_of_the_golden_models(name: str) -> None:
    """Layer by layer against the independent implementation: names the first wrong layer."""
    model = load_model(ModelSpec("checkpoint", path=str(golden(name))))
    expected = array(name, "layer_hidden")  # [L + 1, 8, H], the embeddings first
    with session(model, mmax=8) as opened:
        opened.taps(True)
        opened.step_m([int(t) for t in array(name, "tokens")[:8]])
        for layer in range(model.config.layers):
            got = opened.tap_read(layer, TapKind.RESIDUAL).reshape(8, -1)
            error = np.abs(got - expected[layer + 1]).max()
            assert error <= HIDDEN_BOUND, f"layer {layer}: largest error {error:.2e}"
