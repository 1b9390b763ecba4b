"""Every entry of the CPU library on small models of odd dimensions, for a library under sanitizers.

``python -m pyharness.tests.attack.sanitized LIBRARY [ISA ...]`` ends with 0 when nothing was found
(a sanitizer ends the process itself) and all instruction sets gave the same bytes. A sanitizer's
own library must be there before Python's: ``make asan`` sets LD_PRELOAD.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from pyharness.host import abi
from pyharness.host.session import CallFailed, Session
from pyharness.inputs.layout import LayerKind, Model, ModelConfig
from pyharness.inputs.model import load_model
from pyharness.inputs.synthetic import config_of, described_model, generate
from pyharness.tests.goldens import NAMES, golden
from pyharness.tests.library.sessions import ISA_VARIABLE, PARTS, isas, tokens_of
from pyharness.values import ModelSpec

CONTEXT = 90
GDN, ATTENTION = LayerKind.GDN, LayerKind.ATTENTION


def odd_models() -> Iterator[tuple[str, Model]]:
    """Dimensions that are no multiple of any vector, the smallest ones, and one layer of a kind."""
    tiny = config_of("hybrid", "tiny")
    shapes: dict[str, dict[str, object]] = {
        "odd": {
            "hidden": 96, "intermediate": 224, "vocab": 37, "q_heads": 6, "kv_heads": 3,
            "head_dim": 16, "rotary_dim": 6, "gdn_k_heads": 1, "gdn_v_heads": 2, "gdn_k_dim": 48,
            "gdn_v_dim": 80, "conv_kernel": 3,
        },
        "least": {
            "hidden": 32, "intermediate": 32, "vocab": 1, "q_heads": 1, "kv_heads": 1,
            "head_dim": 32, "rotary_dim": 2, "gdn_k_heads": 1, "gdn_v_heads": 1, "gdn_k_dim": 16,
            "gdn_v_dim": 32, "conv_kernel": 2, "layer_kinds": (GDN, ATTENTION),
        },
        "one gdn": {"layer_kinds": (GDN,), "vocab": 33},
        "one attention": {"layer_kinds": (ATTENTION,), "vocab": 35, "head_dim": 96},
    }  # fmt: skip
    for name, changes in shapes.items():
        config: ModelConfig = dataclasses.replace(tiny, **changes)  # type: ignore[arg-type]
        yield name, described_model(config, 3)


def models() -> Iterator[tuple[str, Model]]:
    yield from odd_models()
    for family in ("hybrid", "gdn", "attn"):
        yield family, load_model(ModelSpec("synthetic", family, "tiny", seed=5))
    for name in NAMES:
        yield name, load_model(ModelSpec("checkpoint", path=str(golden(name))))


def exercise(bound: abi.Bound, model: Model, threads: int) -> str:
    """Digest of all outputs of a session that calls every entry, also in ways that are refused."""
    seen = hashlib.sha256()
    with Session(bound, model, mmax=8, threads=threads, context=CONTEXT) as opened:
        opened.load()
        _refusals(opened, model)
        for m, n in ((2, 0), (2, 1), (3, 3), (5, 2), (8, 1), (8, 7)):
            opened.reset()
            _detour(opened, model, m, n, seen)
        opened.reset()
        opened.taps(True)
        tokens = tokens_of(model, CONTEXT, seed=9)
        for token in tokens[:70]:  # over the border of attention's chunks
            _keep(seen, opened.step(token))
        _keep(seen, opened.step_m(tokens[70:77]))
        for layer, kind in itertools.product(range(model.config.layers), abi.TapKind):
            seen.update(opened.tap_read(layer, kind).tobytes())
        opened.taps(False)
        _state(opened, model, seen)
        while opened.info().position < CONTEXT:
            opened.step(0)
        for call in (lambda: opened.step(0), lambda: opened.step_m([0, 0])):
            _refused(call, "E_CONTEXT_FULL")
        opened.load()  # a second model in the place of the first
        _keep(seen, opened.step(0))
    return seen.hexdigest()


def _detour(opened: Session, model: Model, m: int, n: int, seen: hashlib._Hash) -> None:
    tokens = tokens_of(model, 40, seed=m)
    for token in tokens[:3]:
        _keep(seen, opened.step(token))
    opened.mark()
    opened.poison(0x7FC00000)
    _keep(seen, opened.step_m(tokens[3 : 3 + m]))
    opened.rollback_to(n)
    opened.poison(0x7F7FFFFF)
    _state(opened, model, seen)
    opened.mark()
    opened.step(tokens[20])
    opened.step_m(tokens[21 : 21 + m])
    opened.rollback()
    _refused(opened.rollback, "E_NO_MARK")
    _keep(seen, opened.step_m(tokens[30 : 30 + m]))
    _state(opened, model, seen)


def _refusals(opened: Session, model: Model) -> None:
    vocab = model.config.vocab
    for token in (-1, vocab, 2**31 - 1, -(2**31)):
        _refused(lambda token=token: opened.step(token), "E_ARGUMENT")
        _refused(lambda token=token: opened.step_m([0, token]), "E_ARGUMENT")
    for m in (0, 1, 9, 100):
        _refused(lambda m=m: opened.step_m([0] * m), "")
    _refused(opened.rollback, "E_NO_MARK")
    _refused(lambda: opened.rollback_to(0), "E_NO_MARK")
    opened.mark()
    opened.step_m([0, 0])
    for n in (-1, 3, 2**31 - 1):
        _refused(lambda n=n: opened.rollback_to(n), "")
    for layer in (-1, model.config.layers, 2**31 - 1):
        _refused(lambda layer=layer: opened.state_read(layer, abi.StateKind.S), "E_ARGUMENT")
        _refused(lambda layer=layer: opened.tap_read(layer, abi.TapKind.SWIGLU), "E_ARGUMENT")


def _refused(call: object, status: str) -> None:
    try:
        call()  # type: ignore[operator]
    except CallFailed as e:
        assert status in abi.Status(e.status).name, f"{e} instead of {status}"
        return
    raise AssertionError(f"a call was not refused with {status}")


def _keep(seen: hashlib._Hash, rows: object) -> None:
    seen.update(rows.h_out.tobytes())  # type: ignore[attr-defined]
    seen.update(rows.logits.tobytes())  # type: ignore[attr-defined]


def _state(opened: Session, model: Model, seen: hashlib._Hash) -> None:
    for layer, kind in enumerate(model.config.layer_kinds):
        for part in PARTS[kind]:
            seen.update(opened.state_read(layer, part).tobytes())


def spoiled_models(bound: abi.Bound) -> int:
    """Models that load must refuse: a tensor missing, of another shape, NaN, twice, of no size."""
    model = described_model(dataclasses.replace(config_of("hybrid", "tiny"), vocab=40), 1)
    whole = [generate(t) for t in model.tensors]
    refused = 0
    for i, tensor in enumerate(whole):
        variants = [whole[:i] + whole[i + 1 :]]
        if tensor.data is not None and tensor.scales is None and tensor.data.dtype == np.float32:
            bad = tensor.data.copy()
            bad.flat[-1] = np.nan
            variants.append([*whole[:i], dataclasses.replace(tensor, data=bad), *whole[i + 1 :]])
        for tensors in variants:
            with Session(bound, Model(model.config, tensors), mmax=2, context=4) as opened:
                with suppress(CallFailed):
                    opened.load()
                    opened.step(0)
                    continue
                refused += 1
    return refused


def main(arguments: Sequence[str]) -> int:
    bound = abi.bind(ctypes.CDLL(arguments[0]))
    chosen = arguments[1:] or isas()
    failed = 0
    for name, model in models():
        found = {}
        for isa, threads in [*((isa, 1) for isa in chosen), (chosen[-1], 3)]:
            os.environ[ISA_VARIABLE] = isa
            found[isa, threads] = exercise(bound, model, threads)
        same = len(set(found.values())) == 1
        failed += not same
        print(f"{name}: {len(found)} sessions, {'one digest' if same else found}", flush=True)
    os.environ[ISA_VARIABLE] = chosen[0]
    print(f"{spoiled_models(bound)} spoiled models refused")
    return 1 if failed else 0


if __name__ == "__main__":
    assert Path(sys.argv[1]).is_file(), f"{sys.argv[1]} is missing"
    sys.exit(main(sys.argv[1:]))
