"""From a ``ModelSpec`` to what the library is given: configuration and tensors; and the facts a record keeps of its files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pyharness.errors import InputError
from pyharness.inputs.checkpoint import TOKENIZER, Checkpoint, checkpoint_files, open_checkpoint, read_config
from pyharness.inputs.layout import (
    GROUP,
    Expected,
    LayerKind,
    Model,
    ModelConfig,
    ModelTensor,
    Synth,
    TensorType,
    expected_tensors,
    rope_tensor,
)
from pyharness.inputs.pack import aligned, float_tensor, read_pack, read_pack_config
from pyharness.inputs.quantize import check_groups, quantize
from pyharness.inputs.synthetic import config_of, synthetic_model
from pyharness.values import Digest, FileFact, ModelSpec

__all__ = [
    "GROUP",
    "LayerKind",
    "Model",
    "ModelConfig",
    "ModelTensor",
    "Synth",
    "TensorType",
    "input_facts",
    "load_config",
    "load_model",
    "model_spec",
    "tokenizer_path",
]


def model_spec(path: Path, context: int = 0) -> ModelSpec:
    """The specification of what ``--model`` names: a folder is a checkpoint, a file is a pack."""
    path = path.absolute()
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    return ModelSpec(kind="checkpoint" if path.is_dir() else "pack", path=str(path), context=context)


def load_config(spec: ModelSpec) -> ModelConfig:
    """Only the configuration: reads no weights."""
    if spec.kind == "synthetic":
        return config_of(spec.family, spec.size)
    return read_config(Path(spec.path)) if spec.kind == "checkpoint" else read_pack_config(Path(spec.path))


def load_model(spec: ModelSpec) -> Model:
    """Everything that the library needs. A checkpoint is quantized here, in memory; a pack and floats stay mapped files."""
    if spec.kind == "synthetic":
        return synthetic_model(spec.family, spec.size, spec.seed)
    if spec.kind == "pack":
        return read_pack(Path(spec.path))
    checkpoint = open_checkpoint(Path(spec.path))
    expected = expected_tensors(checkpoint.config)
    for e in expected:
        if e.q4:
            check_groups(e.name, e.shape)
    return Model(checkpoint.config, [_tensor(checkpoint, e) for e in expected] + rope_tensor(checkpoint.config))


def _tensor(checkpoint: Checkpoint, expected: Expected) -> ModelTensor:
    view = checkpoint.tensors[expected.name]
    if not expected.q4:
        return float_tensor(view, expected.name)
    nibbles, scales = quantize(view, expected.name)
    return ModelTensor(expected.name, TensorType.Q4, expected.shape, aligned(nibbles), aligned(scales))


def tokenizer_path(spec: ModelSpec) -> Path | None:
    """Where the checkpoint's tokenizer.json must be; None for models without one (text is then bytes)."""
    return Path(spec.path) / TOKENIZER if spec.kind == "checkpoint" else None


def input_facts(spec: ModelSpec) -> tuple[FileFact, ...]:
    """Path, size and digest of each file behind the model; none for a synthetic one."""
    if spec.kind == "synthetic":
        return ()
    path = Path(spec.path)
    return tuple(file_fact(p) for p in (checkpoint_files(path) if spec.kind == "checkpoint" else [path]))


def file_fact(path: Path) -> FileFact:
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from None
    if size == 0:
        raise InputError(f"{path}: is empty")
    return FileFact(str(path), Digest(digest), size)
