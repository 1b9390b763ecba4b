"""load_model for all kinds of specification, and the facts that a record keeps."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pyharness.errors import InputError
from pyharness.inputs.layout import ROPE, LayerKind, TensorType, expected_tensors
from pyharness.inputs.model import (
    input_facts,
    load_config,
    load_model,
    model_spec,
)
from pyharness.inputs.pack import write_pack
from pyharness.tests.goldens import NAMES, golden
from pyharness.tests.inputs.samples import sample_tensors, write_checkpoint
from pyharness.values import ModelSpec

SYNTHETIC = ModelSpec(kind="synthetic", family="hybrid", size="tiny", seed=9)


def test_paths_become_specifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "m")
    write_pack(folder, tmp_path / "pack")
    monkeypatch.chdir(tmp_path)
    assert model_spec(Path("m"), 64) == ModelSpec(kind="checkpoint", path=str(folder), context=64)
    assert model_spec(Path("pack")).kind == "pack"
    with pytest.raises(InputError, match="none: no such file or folder"):
        model_spec(Path("none"))


@pytest.mark.parametrize("kind", ["synthetic", "checkpoint", "pack"])
def test_every_kind_gives_every_tensor(tmp_path: Path, kind: str) -> None:
    spec = SYNTHETIC
    if kind != "synthetic":
        folder = write_checkpoint(tmp_path / "m")
        write_pack(folder, tmp_path / "pack")
        spec = model_spec(folder if kind == "checkpoint" else tmp_path / "pack")
    model = load_model(spec)
    assert model.config == load_config(spec)
    names = [e.name for e in expected_tensors(model.config)]
    assert [t.name for t in model.tensors] == [*names, ROPE]
    for tensor in model.tensors:
        assert (tensor.data is None) == (tensor.synth is not None)
        if tensor.data is not None:
            assert tensor.data.flags.c_contiguous
            assert tensor.data.flags.aligned
            assert (tensor.scales is not None) == (tensor.type == TensorType.Q4)


@pytest.mark.parametrize("name", NAMES)
def test_rotary_frequencies(name: str) -> None:
    model = load_model(model_spec(golden(name)))
    rope = [t for t in model.tensors if t.name == ROPE]
    assert len(rope) == (LayerKind.ATTENTION in model.config.layer_kinds)
    for tensor in rope:
        assert tensor.data is not None
        exact = [float(np.longdouble(10) ** (-7 * np.longdouble(2 * i) / 16)) for i in range(8)]
        assert tensor.data.tolist() == np.array(exact, np.float32).tolist()
        assert tensor.data[0] == 1


def test_small_projections_stay_float32(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, sample_tensors(dtype="F16"))
    types = {t.name.split(".", 3)[-1]: t.type for t in load_model(model_spec(folder)).tensors}
    assert types["linear_attn.in_proj_a.weight"] == TensorType.F32
    assert types["linear_attn.in_proj_b.weight"] == TensorType.F32
    assert types["linear_attn.conv1d.weight"] == TensorType.F16
    assert types["linear_attn.in_proj_z.weight"] == TensorType.Q4


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.0.linear_attn.in_proj_a.weight"]
)
def test_floats_that_are_no_numbers_are_refused(tmp_path: Path, dtype: str, name: str) -> None:
    tensors = sample_tensors(dtype=dtype)
    infinity = np.array([np.inf], np.float32).view(np.uint32) >> 16
    tensors[name][1].reshape(-1)[3] = infinity[0] if dtype == "BF16" else np.inf
    folder = write_checkpoint(tmp_path, tensors)
    with pytest.raises(InputError, match=f"^{name}: a weight is NaN or infinite$"):
        load_model(model_spec(folder))


def test_facts_name_every_file(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", shards=2)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("not an input")
    facts = {Path(f.name).name: f for f in input_facts(model_spec(folder))}
    assert sorted(facts) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    for name, fact in facts.items():
        data = (folder / name).read_bytes()
        assert (fact.sha256.hex, fact.size_bytes) == (hashlib.sha256(data).hexdigest(), len(data))


def test_facts_of_packs_and_synthetic_models(tmp_path: Path) -> None:
    write_pack(write_checkpoint(tmp_path / "m"), tmp_path / "pack")
    assert [f.name for f in input_facts(model_spec(tmp_path / "pack"))] == [str(tmp_path / "pack")]
    assert input_facts(SYNTHETIC) == ()
    with pytest.raises(InputError, match="No such file"):
        input_facts(ModelSpec(kind="pack", path=str(tmp_path / "none")))
