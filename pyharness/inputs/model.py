"""From a ``ModelSpec`` to what the library is given, and the facts that a record keeps of it."""

from __future__ import annotations

from pathlib import Path

from pyharness.errors import InputError
from pyharness.inputs.checkpoint import (
    Checkpoint,
    checkpoint_files,
    most_positions,
    open_checkpoint,
    read_config,
)
from pyharness.inputs.layout import (
    Expected,
    Model,
    ModelConfig,
    ModelTensor,
    TensorType,
    expected_tensors,
    rope_tensor,
)
from pyharness.inputs.pack import aligned, float_tensor, pack_positions, read_pack, read_pack_config
from pyharness.inputs.quantize import check_groups, quantize
from pyharness.inputs.synthetic import config_of, synthetic_model
from pyharness.inputs.watch import InputFile, input_file
from pyharness.values import FileFact, ModelSpec


def model_spec(path: Path, context: int = 0) -> ModelSpec:
    """The specification of what ``--model`` names: a folder is a checkpoint, a file is a pack."""
    path = path.absolute()
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    return ModelSpec(
        kind="checkpoint" if path.is_dir() else "pack", path=str(path), context=context
    )


def load_config(spec: ModelSpec) -> ModelConfig:
    """Only the configuration: reads no weights."""
    if spec.kind == "synthetic":
        return config_of(spec.family, spec.size)
    return (
        read_config(Path(spec.path))
        if spec.kind == "checkpoint"
        else read_pack_config(Path(spec.path))
    )


def positions_of(spec: ModelSpec) -> int | None:
    """Positions that a model was made for; None where nothing says so."""
    if spec.kind == "synthetic":
        return None
    path = Path(spec.path)
    return most_positions(path) if spec.kind == "checkpoint" else pack_positions(path)


def load_model(spec: ModelSpec) -> Model:
    """Everything that the library needs. A checkpoint is quantized here, in memory: half a byte a
    weight; a pack and the tensors that stay floats are views of mapped files.
    """
    if spec.kind == "synthetic":
        return synthetic_model(spec.family, spec.size, spec.seed)
    if spec.kind == "pack":
        return read_pack(Path(spec.path))
    checkpoint = open_checkpoint(Path(spec.path))
    expected = expected_tensors(checkpoint.config)
    for e in expected:
        if e.q4:
            check_groups(e.name, e.shape)
    return Model(
        checkpoint.config,
        [_tensor(checkpoint, e) for e in expected] + rope_tensor(checkpoint.config),
    )


def _tensor(checkpoint: Checkpoint, expected: Expected) -> ModelTensor:
    view = checkpoint.tensors[expected.name]
    if not expected.q4:
        return float_tensor(view, expected.name)
    nibbles, scales = quantize(view, expected.name)
    return ModelTensor(
        expected.name, TensorType.Q4, expected.shape, aligned(nibbles), aligned(scales)
    )


def input_files(spec: ModelSpec) -> tuple[InputFile, ...]:
    """Each file behind the model, read and hashed; none for a synthetic one."""
    if spec.kind == "synthetic":
        return ()
    path = Path(spec.path)
    return tuple(
        input_file(p) for p in (checkpoint_files(path) if spec.kind == "checkpoint" else [path])
    )


def input_facts(spec: ModelSpec) -> tuple[FileFact, ...]:
    """Path, size and digest of each file behind the model."""
    return tuple(file.fact for file in input_files(spec))
