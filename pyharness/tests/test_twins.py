"""A dump that holds one layer's state under the names of two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyharness.differences import twins
from pyharness.tests.test_compare import safetensors, write_dump


def dump(folder: Path, **layers: np.ndarray) -> Path:
    write_dump(folder)
    tensors = {name.replace("_", "."): array for name, array in layers.items()}
    tensors["position"] = np.array([5], "<i8")
    (folder / "state.safetensors").write_bytes(safetensors(tensors))
    return folder


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("<f4")


def test_two_layers_with_one_state_are_named(tmp_path: Path) -> None:
    state = {f"layers_{i}_S": floats(i, 2, 3) for i in range(3)}
    assert twins.twin_layers(dump(tmp_path / "sound", **state)) == ""
    state["layers_2_S"] = state["layers_0_S"]
    told = twins.twin_layers(dump(tmp_path / "twins", **state))
    assert told == "layers.0.S and layers.2.S are the same bytes"


@pytest.mark.parametrize("shape", [(2, 0, 4), (2, 3)])
def test_before_the_first_token_equal_is_right(tmp_path: Path, shape: tuple[int, ...]) -> None:
    nothing = {f"layers_{i}_keys": np.zeros(shape, "<f4") for i in range(3)}
    nothing["layers_1_keys"] = -nothing["layers_1_keys"]
    assert twins.twin_layers(dump(tmp_path / "zero", **nothing)) == ""


def test_other_parts_and_shapes_are_no_twins(tmp_path: Path) -> None:
    x = floats(1, 4, 6)
    state = {"layers_0_S": x, "layers_1_conv": x, "layers_2_S": x.reshape(6, 4)}
    assert twins.twin_layers(dump(tmp_path / "parts", **state)) == ""


def test_a_difference_behind_the_probe_is_seen(tmp_path: Path) -> None:
    x = floats(1, 2 * twins.PROBE_BYTES)
    y = x.copy()
    y[-1] += 1
    assert twins.twin_layers(dump(tmp_path / "late", layers_0_S=x, layers_1_S=y)) == ""
