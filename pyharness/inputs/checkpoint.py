"""Hugging Face checkpoints of the Qwen3.5 text model: config.json and one or many shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyharness.errors import InputError
from pyharness.files import read_regular
from pyharness.inputs.layout import (
    EMBEDDING,
    HEAD,
    Expected,
    LayerKind,
    ModelConfig,
    check_config,
    expected_tensors,
)
from pyharness.inputs.safetensors import TensorView, parse_json_object, read_safetensors

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
SKIPPED = ("mtp.", "model.visual.")  # the draft head and the vision tower
MULTIMODAL_PREFIX = "model.language_model."
LAYER_TYPES = {"linear_attention": LayerKind.GDN, "full_attention": LayerKind.ATTENTION}
POSITIONS = "max_position_embeddings"
LARGEST_JSON = 100_000_000
LARGEST_NUMBER = 1e12  # of a setting

# Settings that change the arithmetic, and the value that is computed here; so is an absent key.
SUPPORTED: Mapping[str, Any] = {
    "model_type": "qwen3_5_text",
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "quantization_config": None,
}


@dataclass(frozen=True)
class Checkpoint:
    """``tensors``: text-only name -> view; exactly those the configuration asks for, in its order.

    Shapes and types are checked. A tied head is there under its own name; its view is the
    embedding's.
    """

    path: Path
    config: ModelConfig
    tensors: Mapping[str, TensorView]


def open_checkpoint(folder: Path) -> Checkpoint:
    """InputError for a setting, tensor, shape or type other than the model has."""
    config = read_config(folder)
    stored = _stored_tensors(folder)
    if config.tied and EMBEDDING in stored:
        stored[HEAD] = stored[EMBEDDING]
    expected = expected_tensors(config)
    tensors = {e.name: _checked(folder, stored, e) for e in expected}
    if unknown := sorted(set(stored) - set(tensors)):
        raise InputError(
            f"{folder}: tensor {unknown[0]!r} is not part of the model that {CONFIG} describes"
        )
    return Checkpoint(folder, config, tensors)


def checkpoint_files(folder: Path) -> list[Path]:
    """The files that a run on this checkpoint depends on."""
    names = [CONFIG, INDEX] if _is_sharded(folder) else [CONFIG]
    found = [folder / name for name in names] + _shards(folder)
    return found + [p for p in (folder / TOKENIZER,) if p.exists()]


# ---- tensors -------------------------------------------------------------------------------------


def _checked(folder: Path, stored: Mapping[str, TensorView], expected: Expected) -> TensorView:
    view = stored.get(expected.name)
    if view is None:
        raise InputError(
            f"{folder}: tensor {expected.name!r} is missing, expected shape {list(expected.shape)}"
        )
    if view.shape != expected.shape:
        raise InputError(
            f"{folder}: tensor {view.name!r} has shape {list(view.shape)}, "
            f"expected {list(expected.shape)}"
        )
    if view.dtype not in ("F32", "F16", "BF16"):
        raise InputError(
            f"{folder}: tensor {view.name!r} is {view.dtype}, expected F32, F16 or BF16"
        )
    return view


def _stored_tensors(folder: Path) -> dict[str, TensorView]:
    """All tensors of all shards under their text-only names."""
    found: dict[str, TensorView] = {}
    where: dict[str, str] = {}  # name in the file -> shard
    for shard in _shards(folder):
        for name, view in read_safetensors(shard).tensors.items():
            if name in where:
                raise InputError(f"{shard}: tensor {name!r} is also in {where[name]}")
            where[name] = shard.name
            if name.startswith(SKIPPED):
                continue
            text_name = name
            if name.startswith(MULTIMODAL_PREFIX):
                text_name = "model." + name.removeprefix(MULTIMODAL_PREFIX)
            if text_name in found:
                raise InputError(
                    f"{shard}: {name!r} and {found[text_name].name!r} are the same tensor"
                )
            found[text_name] = view
    for name, file in _weight_map(folder).items():
        if where.get(name) != file:
            raise InputError(f"{folder / file}: lacks tensor {name!r}, which {INDEX} places there")
    return found


def _is_sharded(folder: Path) -> bool:
    return not (folder / SINGLE).exists() and (folder / INDEX).exists()


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor name -> shard, of a checkpoint with an index; else empty."""
    if not _is_sharded(folder):
        return {}
    path = folder / INDEX
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{path}: weight_map is missing or not an object")
    for name, file in weight_map.items():
        if (
            not isinstance(file, str)
            or Path(file).name != file
            or not file.endswith(".safetensors")
        ):
            raise InputError(
                f"{path}: tensor {name!r} is placed in {file!r}, which is not a shard's file name"
            )
    return weight_map


def _shards(folder: Path) -> list[Path]:
    if not _is_sharded(folder):
        if not (folder / SINGLE).exists():
            raise InputError(f"{folder}: has neither {SINGLE} nor {INDEX}")
        return [folder / SINGLE]
    shards = [folder / name for name in sorted(set(_weight_map(folder).values()))]
    for shard in shards:
        if not shard.exists():
            raise InputError(f"{shard}: this shard is missing, {INDEX} names it")
    return shards


# ---- configuration -------------------------------------------------------------------------------


def read_config(folder: Path) -> ModelConfig:
    """config.json, flat or with ``text_config``. A setting not computed here is refused by name."""
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder; a checkpoint is one, with {CONFIG}")
    path = folder / CONFIG
    if not path.exists():
        raise InputError(f"{folder}: neither a checkpoint's folder nor a pack: it has no {CONFIG}")
    top = _read_json(path)
    text = top.get("text_config", top)
    if not isinstance(text, dict):
        raise InputError(f"{path}: text_config is not an object")
    for key, supported in SUPPORTED.items():
        if text.get(key, supported) != supported:
            raise InputError(f"{path}: {key} {text[key]!r} is not supported, only {supported!r}")
    fields = _Fields(path, text)
    rope = _Fields(path, _rope(path, text))
    head_dim = fields.integer("head_dim")
    config = ModelConfig(
        hidden=fields.integer("hidden_size"),
        intermediate=fields.integer("intermediate_size"),
        vocab=fields.integer("vocab_size"),
        q_heads=fields.integer("num_attention_heads"),
        kv_heads=fields.integer("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=int(head_dim * rope.number("partial_rotary_factor")),
        gdn_k_heads=fields.integer("linear_num_key_heads"),
        gdn_v_heads=fields.integer("linear_num_value_heads"),
        gdn_k_dim=fields.integer("linear_key_head_dim"),
        gdn_v_dim=fields.integer("linear_value_head_dim"),
        conv_kernel=fields.integer("linear_conv_kernel_dim"),
        tied=_tied(path, top, text),
        rms_eps=fields.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta"),
        layer_kinds=_layer_kinds(fields),
    )
    check_config(config, str(path))
    return config


def most_positions(folder: Path) -> int | None:
    """Positions that the model was made for, where its configuration says so."""
    top = _read_json(folder / CONFIG)
    text = top.get("text_config", top)
    most = text.get(POSITIONS) if isinstance(text, dict) else None
    return most if type(most) is int else None


@dataclass(frozen=True)
class _Fields:
    path: Path
    values: Mapping[str, Any]

    def integer(self, key: str) -> int:
        value = self._get(key)
        if type(value) is not int or not abs(value) < 2**63:
            raise InputError(f"{self.path}: {key} is {value!r}, must be an integer")
        return value

    def number(self, key: str) -> float:
        value = self._get(key)
        if type(value) not in (int, float) or not abs(value) < LARGEST_NUMBER:
            raise InputError(f"{self.path}: {key} is {value!r}, must be a number")
        return float(value)

    def _get(self, key: str) -> Any:
        if key not in self.values:
            raise InputError(f"{self.path}: {key} is missing")
        return self.values[key]


def _layer_kinds(fields: _Fields) -> tuple[LayerKind, ...]:
    """layer_types wins over full_attention_interval, as in the model's own code."""
    layers = fields.integer("num_hidden_layers")
    if not 1 <= layers <= 10_000:
        raise InputError(f"{fields.path}: num_hidden_layers is {layers}, must be 1 to 10000")
    types = fields.values.get("layer_types")
    if types is None:
        interval = fields.integer("full_attention_interval")
        if interval < 1:
            raise InputError(
                f"{fields.path}: full_attention_interval is {interval}, must be at least 1"
            )
        return tuple(
            LayerKind.GDN if (i + 1) % interval else LayerKind.ATTENTION for i in range(layers)
        )
    if not isinstance(types, list) or len(types) != layers:
        raise InputError(
            f"{fields.path}: layer_types must be a list of num_hidden_layers = {layers} names"
        )
    for name in types:
        if not isinstance(name, str) or name not in LAYER_TYPES:
            raise InputError(
                f"{fields.path}: layer type {name!r} is not supported, only "
                f"{' and '.join(LAYER_TYPES)}"
            )
    return tuple(LAYER_TYPES[name] for name in types)


def _rope(path: Path, text: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters, or the older spelling of the same at the top of the text configuration."""
    rope = text.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise InputError(f"{path}: rope_parameters is not an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise InputError(f"{path}: rope_type {kind!r} is not supported, only 'default'")
    outer = {k: text[k] for k in ("rope_theta", "partial_rotary_factor") if k in text}
    return {"partial_rotary_factor": 0.25} | outer | rope


def _tied(path: Path, top: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    found = {
        c["tie_word_embeddings"]
        for c in (top, text)
        if isinstance(c.get("tie_word_embeddings"), bool)
    }
    if len(found) > 1:
        raise InputError(
            f"{path}: tie_word_embeddings differs between the top level and text_config"
        )
    return found.pop() if found else False


def _read_json(path: Path) -> dict[str, Any]:
    return parse_json_object(read_regular(path, limit=LARGEST_JSON), str(path))
