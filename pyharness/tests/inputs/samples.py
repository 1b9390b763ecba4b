"""Small checkpoints made on the spot, and ways to spoil them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pyharness.inputs.layout import HEAD, LayerKind, ModelConfig, expected_tensors
from pyharness.inputs.quantize import bf16_bits
from pyharness.inputs.safetensors import array_source, write_safetensors

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}
MODEL = ModelConfig(
    hidden=64,
    intermediate=96,
    vocab=40,
    q_heads=4,
    kv_heads=2,
    head_dim=32,
    rotary_dim=8,
    gdn_k_heads=1,
    gdn_v_heads=2,
    gdn_k_dim=32,
    gdn_v_dim=32,
    conv_kernel=4,
    tied=False,
    rms_eps=1e-6,
    rope_theta=10000.0,
    layer_kinds=(LayerKind.GDN, LayerKind.ATTENTION),
)
Tensors = dict[str, tuple[str, np.ndarray]]  # name -> dtype tag, array


def sample_tensors(tied: bool = False, dtype: str = "BF16") -> Tensors:
    """Every tensor of the sample model, random, in one type."""
    rng = np.random.default_rng(5)
    made: Tensors = {}
    for expected in expected_tensors(MODEL):
        if not (tied and expected.name == HEAD):
            values = rng.standard_normal(expected.shape).astype(np.float32)
            made[expected.name] = (dtype, _as(values, dtype))
    return made


def _as(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return bf16_bits(values)
    return values.astype({"F16": np.float16, "F32": np.float32, "F64": np.float64}[dtype])


def write_checkpoint(
    folder: Path,
    tensors: Tensors | None = None,
    config: Mapping[str, Any] = CONFIG,
    shards: int = 1,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    items = list((sample_tensors() if tensors is None else tensors).items())
    if shards == 1:
        write_tensors(folder / "model.safetensors", dict(items))
        return folder
    weight_map: dict[str, str] = {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(items[i::shards])
        write_tensors(folder / name, part)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
    write_safetensors(path, [array_source(n, d, a) for n, (d, a) in tensors.items()], metadata)


def raw_safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with any header at all: a value to write as JSON, or its bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def change(config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The configuration with other values; None removes a key."""
    made = dict(config) | changes
    return {k: v for k, v in made.items() if v is not None}


def edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))
