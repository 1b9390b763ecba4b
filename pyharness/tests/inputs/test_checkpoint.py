"""Checkpoint folders: layouts that are read, settings and files that are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyharness.errors import InputError
from pyharness.inputs.checkpoint import checkpoint_files, open_checkpoint, read_config
from pyharness.inputs.layout import EMBEDDING, HEAD, LayerKind, expected_tensors
from pyharness.tests.goldens import NAMES, golden
from pyharness.tests.inputs.samples import (
    CONFIG,
    MODEL,
    Tensors,
    change,
    edit_json,
    sample_tensors,
    write_checkpoint,
    write_tensors,
)

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def stored_bytes(folder: Path) -> dict[str, bytes]:
    return {name: v.array.tobytes() for name, v in open_checkpoint(folder).tensors.items()}


# ---- what is read -------------------------------------------------------------------------------


def test_flat_configuration(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path))
    assert checkpoint.config == MODEL
    assert list(checkpoint.tensors) == [e.name for e in expected_tensors(MODEL)]
    for name, (dtype, array) in sample_tensors().items():
        view = checkpoint.tensors[name]
        assert (view.dtype, view.array.tobytes()) == (dtype, array.tobytes())


@pytest.mark.parametrize("name", NAMES)
def test_golden_configurations(name: str) -> None:
    config = read_config(golden(name))
    kinds = "".join("A" if k == LayerKind.ATTENTION else "g" for k in config.layer_kinds)
    assert kinds == {"tiny-hybrid": "gggAgggA", "tiny-gdn": "gggg", "tiny-attn": "AAAA"}[name]
    assert (config.hidden, config.vocab, config.rotary_dim) == (160, 512, 16)
    assert (config.rope_theta, config.rms_eps, config.tied) == (1e7, 1e-6, False)


def multimodal(tensors: Tensors) -> Tensors:
    renamed = {
        n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n: t
        for n, t in tensors.items()
    }
    other = ("F32", np.ones((2, 2), np.float32))
    return renamed | {"mtp.fc.weight": other, "model.visual.blocks.0.attn.qkv.weight": other}


def test_nested_configuration_with_vision_and_draft_head(tmp_path: Path) -> None:
    nested = {"model_type": "qwen3_5", "vision_config": {}, "text_config": CONFIG}
    folder = write_checkpoint(tmp_path / "multimodal", multimodal(sample_tensors()), nested)
    assert read_config(folder) == MODEL
    assert stored_bytes(folder) == stored_bytes(write_checkpoint(tmp_path / "flat"))


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_are_one_checkpoint(tmp_path: Path, shards: int) -> None:
    folder = write_checkpoint(tmp_path / "sharded", shards=shards)
    assert stored_bytes(folder) == stored_bytes(write_checkpoint(tmp_path / "single"))
    assert len(checkpoint_files(folder)) == 2 + shards


@pytest.mark.parametrize("place", ["top", "text", "both"])
def test_a_tied_head_is_the_embedding(tmp_path: Path, place: str) -> None:
    text = change(CONFIG, tie_word_embeddings=True if place != "top" else None)
    config: dict[str, Any] = {"text_config": text}
    if place != "text":
        config["tie_word_embeddings"] = True
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, sample_tensors(tied=True), config))
    assert checkpoint.config.tied
    assert checkpoint.tensors[HEAD].array is checkpoint.tensors[EMBEDDING].array


def test_layer_types_win_over_the_interval(tmp_path: Path) -> None:
    both = write_checkpoint(tmp_path / "both", {}, change(CONFIG, full_attention_interval=1))
    assert read_config(both).layer_kinds == MODEL.layer_kinds
    interval = change(CONFIG, layer_types=None, full_attention_interval=3, num_hidden_layers=7)
    kinds = read_config(write_checkpoint(tmp_path / "interval", {}, interval)).layer_kinds
    assert [int(k) for k in kinds] == [0, 0, 1, 0, 0, 1, 0]


def test_the_older_spelling_of_the_rotary_settings(tmp_path: Path) -> None:
    old = change(CONFIG, rope_parameters=None, rope_theta=10000, partial_rotary_factor=0.25)
    assert read_config(write_checkpoint(tmp_path, {}, old)) == MODEL


# ---- settings that are refused ------------------------------------------------------------------

REFUSED_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model_type": "qwen3_next"}, "model_type 'qwen3_next' is not supported"),
    "bias": ({"attention_bias": True}, "attention_bias True is not supported, only False"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, only 'silu'"),
    "no gate": ({"attn_output_gate": False}, "attn_output_gate False"),
    "state type": ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype 'bfloat16'"),
    "rope type": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'yarn' is not"),
    "rope scaling": ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
    "sliding window": ({"sliding_window": 4096}, "sliding_window 4096"),
    "quantized elsewhere": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "no theta": ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
    "infinite theta": ({"rope_parameters": {"rope_theta": 10**400}}, "must be a number"),
    "rope is a list": ({"rope_parameters": [1]}, "rope_parameters is not an object"),
    "odd rotary": ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.1}}, "even"),
    "no rotary": ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0}}, "rotary"),
    "missing": ({"hidden_size": None}, "hidden_size is missing"),
    "text as number": ({"hidden_size": "64"}, "hidden_size is '64', must be an integer"),
    "bool as number": ({"hidden_size": True}, "hidden_size is True, must be an integer"),
    "zero": ({"vocab_size": 0}, "vocab is 0, must be 1 to"),
    "huge": ({"vocab_size": 1 << 40}, "vocab is 1099511627776, must be 1 to"),
    "heads": ({"num_key_value_heads": 3}, "q_heads must be a multiple of kv_heads"),
    "GDN heads": ({"linear_num_key_heads": 3}, "gdn_v_heads must be a multiple"),
    "eps": ({"rms_norm_eps": 0}, "rms_norm_eps must lie between"),
    "no layers": ({"num_hidden_layers": 0, "layer_types": []}, "num_hidden_layers is 0"),
    "too few kinds": ({"layer_types": ["full_attention"]}, "num_hidden_layers = 2"),
    "unknown kind": ({"layer_types": ["full_attention", "mamba"]}, "layer type 'mamba'"),
    "no interval": ({"layer_types": None}, "full_attention_interval is missing"),
    "interval": ({"layer_types": None, "full_attention_interval": 0}, "must be at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_SETTINGS)
def test_a_setting_that_is_not_computed_is_refused_by_name(tmp_path: Path, case: str) -> None:
    changes, message = REFUSED_SETTINGS[case]
    assert message in refused(write_checkpoint(tmp_path, config=change(CONFIG, **changes)))


def test_a_contradiction_about_the_head(tmp_path: Path) -> None:
    config = {"text_config": CONFIG, "tie_word_embeddings": True}
    assert "tie_word_embeddings differs" in refused(write_checkpoint(tmp_path, config=config))


# ---- files that are refused ---------------------------------------------------------------------


def spoil_missing(tensors: Tensors) -> None:
    del tensors[Q_PROJ]


def spoil_shape(tensors: Tensors) -> None:
    dtype, array = tensors[Q_PROJ]
    tensors[Q_PROJ] = dtype, array[:-1]


def spoil_dtype(tensors: Tensors) -> None:
    tensors[Q_PROJ] = "I32", np.zeros((256, 64), np.int32)


def spoil_double(tensors: Tensors) -> None:
    tensors[EMBEDDING.replace("model.", "model.language_model.")] = tensors[EMBEDDING]


def spoil_unknown(tensors: Tensors) -> None:
    tensors["model.layers.1.self_attn.q_proj.bias"] = "F32", np.zeros(256, np.float32)


SPOILED: list[tuple[Callable[[Tensors], None], str]] = [
    (spoil_missing, f"tensor '{Q_PROJ}' is missing, expected shape [256, 64]"),
    (spoil_shape, f"tensor '{Q_PROJ}' has shape [255, 64], expected [256, 64]"),
    (spoil_dtype, f"tensor '{Q_PROJ}' is I32, expected F32, F16 or BF16"),
    (spoil_double, "are the same tensor"),
    (spoil_unknown, "'model.layers.1.self_attn.q_proj.bias' is not part of the model"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_tensors_that_do_not_fit(
    tmp_path: Path, spoil: Callable[[Tensors], None], message: str
) -> None:
    tensors = sample_tensors()
    spoil(tensors)
    assert message in refused(write_checkpoint(tmp_path, tensors))


def test_files_that_are_missing(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors: this shard is missing" in refused(folder)
    (folder / "model.safetensors.index.json").unlink()
    assert "has neither model.safetensors nor model.safetensors.index.json" in refused(folder)
    (folder / "config.json").unlink()
    assert "neither a checkpoint's folder nor a pack: it has no config.json" in refused(folder)
    assert "not a folder" in refused(tmp_path / "none")


INDEX_EDITS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lambda index: index.pop("weight_map"), "weight_map is missing"),
    (lambda index: index.update(weight_map={HEAD: "../model.safetensors"}), "not a shard's file"),
    (lambda index: index.update(weight_map={HEAD: 3}), "not a shard's file"),
    (lambda index: index["weight_map"].update(more=index["weight_map"][HEAD]), "tensor 'more'"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), INDEX_EDITS)
def test_an_index_that_does_not_fit(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    folder = write_checkpoint(tmp_path, shards=2)
    edit_json(folder / "model.safetensors.index.json", edit)
    assert message in refused(folder)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, shards=2)
    tensors = sample_tensors()
    second = dict(list(tensors.items())[1::2]) | {EMBEDDING: tensors[EMBEDDING]}
    write_tensors(folder / "model-00002-of-00002.safetensors", second)
    assert f"tensor '{EMBEDDING}' is also in model-00001-of-00002.safetensors" in refused(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json is not valid JSON"),
        ("[]", "config.json is not a JSON object"),
        ('{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' is there twice"),
        ('{"rms_norm_eps": NaN}', "NaN is not JSON"),
        ('{"text_config": 3}', "text_config is not an object"),
    ],
)
def test_a_configuration_that_is_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    folder = write_checkpoint(tmp_path)
    (folder / "config.json").write_text(text)
    assert message in refused(folder)


def test_a_number_beyond_floats_is_refused(tmp_path: Path) -> None:
    text = json.dumps(CONFIG).replace("1e-06", "1e999")
    folder = write_checkpoint(tmp_path)
    (folder / "config.json").write_text(text)
    assert "rms_norm_eps is inf, must be a number" in refused(folder)
