"""One arithmetic: the same bits from every instruction set, thread count, M, prefix and detour."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from pyharness.host.abi import StateKind
from pyharness.inputs.layout import LayerKind, Model
from pyharness.inputs.model import load_model
from pyharness.inputs.synthetic import config_of, described_model, generate
from pyharness.tests.library.sessions import (
    isas,
    row_bytes,
    rows_bytes,
    session,
    state,
    tokens_of,
)
from pyharness.tests.reference import Reference
from pyharness.values import ModelSpec

FAMILIES = ("hybrid", "gdn", "attn")
PREFIXES = (0, 1, 5, 17, 63, 64, 65, 200)
CONTINUATION = 3
CONFIGURATIONS = [(isa, threads) for isa in ("portable", "avx2", "avx512") for threads in (1, 2)]


@cache
def synthetic(family: str) -> Model:
    return load_model(ModelSpec("synthetic", family=family, size="tiny", seed=11))


@cache
def singles(family: str, isa: str, threads: int) -> tuple[list[bytes], dict[int, bytes]]:
    """Outputs of each single step, M rows not enabled, and the states at the positions where the
    tests look.
    """
    model = synthetic(family)
    tokens = tokens_of(model, max(PREFIXES) + 8 + CONTINUATION)
    wanted = {p + m + c for p in PREFIXES for m in range(9) for c in (0, CONTINUATION)}
    rows, states = [], {}
    with session(model, isa=isa, threads=threads) as opened:
        states[0] = state(opened, model)
        for i, token in enumerate(tokens):
            rows.append(row_bytes(opened, token))
            if i + 1 in wanted:
                states[i + 1] = state(opened, model)
    return rows, states


def need(isa: str) -> None:
    if isa not in isas():
        pytest.skip(f"this processor lacks {isa}")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("isa", "threads"), CONFIGURATIONS[1:])
def test_instruction_sets_and_threads(family: str, isa: str, threads: int) -> None:
    need(isa)
    assert singles(family, isa, threads) == singles(family, "portable", 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("isa", "threads"), CONFIGURATIONS)
def test_rows_equal_singles(family: str, isa: str, threads: int) -> None:
    """M = 2..8 at every prefix, with continuation; a rollback takes each batch back."""
    need(isa)
    model = synthetic(family)
    rows, states = singles(family, "portable", 1)
    tokens = tokens_of(model, len(rows))
    with session(model, isa=isa, threads=threads, mmax=8) as opened:
        for position in range(max(PREFIXES) + 1):
            for m in range(2, 9) if position in PREFIXES else ():
                opened.mark()
                end = position + m
                assert rows_bytes(opened, tokens[position:end]) == rows[position:end], (position, m)
                assert state(opened, model) == states[end], (position, m)
                for i in range(end, end + CONTINUATION):
                    assert row_bytes(opened, tokens[i]) == rows[i], (position, m, i)
                assert state(opened, model) == states[end + CONTINUATION], (position, m)
                opened.rollback()
                assert state(opened, model) == states[position], (position, m)
            assert row_bytes(opened, tokens[position]) == rows[position]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_singles_without_a_mark(family: str) -> None:
    """The same from a reset each time: nothing above depends on the rollback being right."""
    model = synthetic(family)
    rows, states = singles(family, "portable", 1)
    tokens = tokens_of(model, len(rows))
    with session(model, mmax=8) as opened:
        for prefix in PREFIXES:
            for m in (2, 7, 8):
                opened.reset()
                for token in tokens[:prefix]:
                    opened.step(token)
                end = prefix + m
                assert rows_bytes(opened, tokens[prefix:end]) == rows[prefix:end], (prefix, m)
                assert state(opened, model) == states[end], (prefix, m)


def test_more_than_eight_rows() -> None:
    model = synthetic("hybrid")
    rows, _ = singles("hybrid", "portable", 1)
    tokens = tokens_of(model, len(rows))
    with session(model, mmax=64) as opened:
        for m in (9, 16, 17, 64):
            opened.reset()
            assert rows_bytes(opened, tokens[:m]) == rows[:m]


@pytest.mark.parametrize("family", FAMILIES)
def test_random_schedules(family: str) -> None:
    """Any mix of steps, marks and rollbacks ends where the accepted tokens alone end."""
    model = synthetic(family)
    rows, _ = singles(family, "portable", 1)
    tokens = tokens_of(model, len(rows))
    chance = random.Random(5)
    with session(model, mmax=8, threads=2) as opened:
        at, marked = 0, None
        for _ in range(150):
            what = chance.choice(["step", "rows", "rows", "mark", "detour", "rollback"])
            if what == "mark":
                opened.mark()
                marked = at
            elif what == "rollback" and marked is not None:
                opened.rollback()
                at, marked = marked, None
            elif what == "detour":  # other tokens, taken back at once
                opened.mark()
                rows_bytes(opened, [(t + 1) % 512 for t in tokens[at : at + 4]])
                opened.step(3)
                opened.rollback()
                marked = None
            elif what == "rows" and at + 8 < len(tokens):
                m = chance.randrange(2, 9)
                assert rows_bytes(opened, tokens[at : at + m]) == rows[at : at + m]
                at += m
            elif what == "step" and at + 1 < len(tokens):
                assert row_bytes(opened, tokens[at]) == rows[at]
                at += 1
            if at + 9 > len(tokens):
                opened.reset()
                at, marked = 0, None


def test_spans_of_a_long_context() -> None:
    """Past 1024 keys attention merges spans: every row of an M-row step across that edge, and
    float64 agrees.
    """
    config = dataclasses.replace(config_of("attn", "tiny"), layer_kinds=(LayerKind.ATTENTION,))
    model = described_model(config, 4)
    tokens = tokens_of(model, 1100)
    reference = Reference(model)
    with session(model, mmax=8, context=2048, threads=2) as opened:
        rows = [row_bytes(opened, t) for t in tokens]
        opened.reset()
        batched: list[bytes] = []
        for begin in range(0, len(tokens), 8):
            part = tokens[begin : begin + 8]
            batched += rows_bytes(opened, part)
        assert batched == rows[: len(batched)]
        logits = np.frombuffer(rows[-1], np.float32)[config.hidden :]
    _, expected = reference.run(tokens)
    assert np.abs(logits - expected[-1]).max() < 1e-4


SHAPES: dict[str, dict[str, Any]] = {
    "the 27B's heads": {
        "head_dim": 256, "rotary_dim": 64, "q_heads": 6, "kv_heads": 1,
        "gdn_k_heads": 2, "gdn_v_heads": 6, "gdn_k_dim": 128, "gdn_v_dim": 128,
    },
    "odd sizes": {
        "hidden": 96, "intermediate": 224, "vocab": 301, "head_dim": 48, "rotary_dim": 48,
        "q_heads": 6,
        "kv_heads": 3, "gdn_k_heads": 3, "gdn_v_heads": 6, "gdn_k_dim": 48, "gdn_v_dim": 16,
        "conv_kernel": 2,
    },
    "more groups than lanes": {
        "hidden": 1056, "intermediate": 2080, "rotary_dim": 2, "conv_kernel": 7,
        "layer_kinds": (LayerKind.GDN, LayerKind.ATTENTION),
    },
}  # fmt: skip
# Of the bits contract, version 1: float64 alone does not see another order of a sum.
DIGESTS = {
    "the 27B's heads": "3d317218788366f46f85510d48e7dccedbcc02aa9fb1c776bc68eb64f40a2fac",
    "odd sizes": "83173871a0bf9a020ce0ff3987e0a253097df174f716f2d67acbbd881e5a09d8",
    "more groups than lanes": "cc97651fe52935d1e68652403c988a9c3dab038803d24f8651f6dd215dc21231",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_other_dimensions(shape: str) -> None:
    """Against float64, every instruction set against the others and all against a digest, at
    dimensions that leave remainders everywhere; the last rows lie beyond a border of chunks.
    """
    config = dataclasses.replace(config_of("hybrid", "tiny"), **SHAPES[shape])
    model = described_model(config, 2)
    tokens = tokens_of(model, 72)
    outcomes = []
    for isa in isas():
        with session(model, isa=isa, mmax=8, threads=2) as opened:
            rows = [row_bytes(opened, t) for t in tokens[:8]]
            rows += rows_bytes(opened, tokens[8:13]) + rows_bytes(opened, tokens[13:21])
            rows += [row_bytes(opened, t) for t in tokens[21:59]]
            rows += rows_bytes(opened, tokens[59:67]) + rows_bytes(opened, tokens[67:])
            outcomes.append((rows, state(opened, model)))
            keys = opened.state_read(config.layer_kinds.index(LayerKind.ATTENTION), StateKind.KEYS)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert hashlib.sha256(b"".join(outcomes[0][0]) + outcomes[0][1]).hexdigest() == DIGESTS[shape]
    reference = Reference(model)
    _, expected = reference.run(tokens)
    got = np.stack([np.frombuffer(r, np.float32)[config.hidden :] for r in outcomes[0][0]])
    assert np.abs(got - expected).max() < 2e-4
    wanted = reference.states[config.layer_kinds.index(LayerKind.ATTENTION)]["keys"]
    assert np.abs(keys.reshape(wanted.shape) - wanted).max() < 5e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_weights_are_the_harness_s_too(family: str) -> None:
    """A model handed over as bytes that numpy generated equals one that the library generated."""
    model = synthetic(family)
    as_bytes = dataclasses.replace(model, tensors=[generate(t) for t in model.tensors])
    rows, states = singles(family, "portable", 1)
    tokens = tokens_of(model, 20)
    with session(as_bytes) as opened:
        assert [row_bytes(opened, t) for t in tokens] == rows[:20]
        assert state(opened, as_bytes) != states[0]


def test_tied_head() -> None:
    """Without lm_head.weight the head is the embedding as it is stored: float, so single steps
    only.
    """
    config = dataclasses.replace(config_of("gdn", "tiny"), tied=True)
    model = described_model(config, 9)
    tied = dataclasses.replace(
        model, tensors=[t for t in model.tensors if t.name != "lm_head.weight"]
    )
    reference = Reference(model)
    embedding = reference.w["model.embed_tokens.weight"]
    reference.w["lm_head.weight"] = embedding
    with session(tied) as opened:
        for token in tokens_of(model, 6):
            got = opened.step(token).logits[0]
            assert np.abs(got - reference.step(token)[1]).max() < 1e-4
