"""Q4 packs: a checkpoint quantized once. One safetensors file, the library's input byte for byte.

A Q4 matrix is ``<name>`` (U8 [rows, cols / 2], as in vllm_cuda.h) followed by ``<name>.scales``
(F16 [rows, cols / 32]); other tensors keep their type; ``rope.inv_freq`` is stored, so that every
machine rotates by the same bits. The metadata holds format, version and configuration, and the
positions that the model was made for where its checkpoint says so.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pyharness.errors import InputError
from pyharness.inputs.checkpoint import POSITIONS, Checkpoint, most_positions, open_checkpoint
from pyharness.inputs.layout import (
    GROUP,
    ROPE,
    Expected,
    LayerKind,
    Model,
    ModelConfig,
    ModelTensor,
    TensorType,
    check_config,
    expected_tensors,
    rope_tensor,
)
from pyharness.inputs.quantize import check_groups, check_scales, quantize_blocks, to_float32
from pyharness.inputs.safetensors import (
    DTYPES,
    SafetensorsFile,
    TensorSource,
    TensorView,
    array_source,
    parse_json_object,
    read_safetensors,
    write_safetensors,
)

FORMAT = "vllm-cuda-q4-pack"
VERSION = "1"
SCALES = ".scales"
ALWAYS_F32 = (".in_proj_a.weight", ".in_proj_b.weight")  # projections that stay float32
BF16_EXPONENT = np.uint16(0x7F80)
KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool}  # others are lists
TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}


def write_pack(
    folder: Path, out: Path, progress: Callable[[str], None] = lambda name: None
) -> None:
    """Quantize a checkpoint into ``out``, a block at a time; ``progress`` gets each Q4 tensor's
    name when its turn comes.
    """
    if out.is_dir():
        raise InputError(f"{out}: is a folder; name the file to write")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder")
    checkpoint = open_checkpoint(folder)
    expected = expected_tensors(checkpoint.config)
    for e in expected:
        if e.q4:
            check_groups(e.name, e.shape)  # before minutes of work
    floats = [
        _float_source(float_tensor(checkpoint.tensors[e.name], e.name))
        for e in expected
        if not e.q4
    ]
    floats += [_float_source(t) for t in rope_tensor(checkpoint.config)]
    floats.sort(
        key=lambda source: -DTYPES[source[1]].itemsize
    )  # aligned: 4 bytes, 2 bytes, then whole groups
    quantized = [s for e in expected if e.q4 for s in _q4_sources(checkpoint, e, progress)]
    write_safetensors(out, floats + quantized, _metadata(checkpoint))


def read_pack(path: Path) -> Model:
    """A pack as the library's input; data and scales are views of the mapped file."""
    file = read_safetensors(path)
    config = _config(file)
    stored = dict(file.tensors)
    tensors = [_tensor(path, stored, e) for e in expected_tensors(config)]
    if LayerKind.ATTENTION in config.layer_kinds:
        tensors.append(_tensor(path, stored, Expected(ROPE, (config.rotary_dim // 2,))))
    if stored:
        raise InputError(
            f"{path}: tensor {min(stored)!r} is not part of the model that the pack describes"
        )
    return Model(config, tensors)


def read_pack_config(path: Path) -> ModelConfig:
    """Only the configuration. InputError for a file that is no pack."""
    try:
        file = read_safetensors(path)
    except InputError as e:
        raise InputError(f"neither a checkpoint's folder nor a pack: {e}") from None
    return _config(file)


def pack_positions(path: Path) -> int | None:
    """Positions that the packed model was made for; None where the pack does not say."""
    most = read_safetensors(path).metadata.get(POSITIONS, "")
    return int(most) if re.fullmatch(r"[0-9]{1,18}", most) else None


def float_tensor(view: TensorView, name: str) -> ModelTensor:
    """A tensor that is not quantized, in its stored type; in_proj_a and in_proj_b as float32."""
    array, dtype = view.array, view.dtype
    if name.endswith(ALWAYS_F32):
        array, dtype = to_float32(array, dtype), "F32"
    for block in np.array_split(array, max(1, array.size >> 22)):
        finite = (block & BF16_EXPONENT) != BF16_EXPONENT if dtype == "BF16" else np.isfinite(block)
        if not finite.all():
            raise InputError(f"{name}: a weight is NaN or infinite")
    return ModelTensor(name, TYPES[dtype], view.shape, aligned(array))


def aligned(array: np.ndarray) -> np.ndarray:
    """As it is, or a copy where a file placed it at no multiple of its item size."""
    return np.require(array, requirements=["C", "A"])


# ---- writing -------------------------------------------------------------------------------------


def _float_source(tensor: ModelTensor) -> TensorSource:
    assert tensor.data is not None
    dtype = next(tag for tag, kind in TYPES.items() if kind == tensor.type)
    return array_source(tensor.name, dtype, tensor.data)


def _q4_sources(
    checkpoint: Checkpoint, expected: Expected, progress: Callable[[str], None]
) -> list[TensorSource]:
    """Nibbles, streamed block by block, then the scales that came along with them."""
    rows, cols = expected.shape
    scales: list[np.ndarray] = []

    def nibbles() -> Iterator[np.ndarray]:
        progress(expected.name)
        for block, block_scales in quantize_blocks(
            checkpoint.tensors[expected.name], expected.name
        ):
            scales.append(block_scales)
            yield block

    def collected() -> Iterator[np.ndarray]:
        while scales:
            yield scales.pop(0)

    return [
        (expected.name, "U8", (rows, cols // 2), nibbles),
        (expected.name + SCALES, "F16", (rows, cols // GROUP), collected),
    ]


def _metadata(checkpoint: Checkpoint) -> dict[str, str]:
    values = dataclasses.asdict(checkpoint.config)
    values["layer_kinds"] = [kind.name.lower() for kind in checkpoint.config.layer_kinds]
    most = most_positions(checkpoint.path)
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": json.dumps(values, separators=(",", ":")),
    } | ({} if most is None else {POSITIONS: str(most)})


# ---- reading -------------------------------------------------------------------------------------


def _config(file: SafetensorsFile) -> ModelConfig:
    path, metadata = file.path, file.metadata
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path}: not a pack; make one with run-ab pack DIR OUT")
    if metadata.get("version") != VERSION:
        raise InputError(
            f"{path}: pack version {metadata.get('version')!r}, but {VERSION!r} is read here: "
            "make the pack again"
        )
    values = parse_json_object(metadata.get("config", "").encode(), f"{path}: configuration")
    hints = {f.name: KINDS.get(str(f.type), list) for f in dataclasses.fields(ModelConfig)}
    for name, kind in hints.items():
        if type(values.get(name)) is not kind:
            raise InputError(
                f"{path}: configuration: {name} is {values.get(name)!r}, "
                f"must be of type {kind.__name__}"
            )
    if unknown := sorted(set(values) - set(hints)):
        raise InputError(f"{path}: configuration: unknown field {unknown[0]!r}")
    values["layer_kinds"] = tuple(_layer_kind(path, kind) for kind in values["layer_kinds"])
    config = ModelConfig(**values)
    check_config(config, str(path))
    return config


def _layer_kind(path: Path, name: Any) -> LayerKind:
    for kind in LayerKind:
        if name == kind.name.lower():
            return kind
    raise InputError(f"{path}: configuration: unknown layer kind {name!r}")


def _tensor(path: Path, stored: dict[str, TensorView], expected: Expected) -> ModelTensor:
    if not expected.q4:
        view = _take(path, stored, expected.name, expected.shape, tuple(TYPES))
        return float_tensor(view, expected.name)
    check_groups(expected.name, expected.shape)
    rows, cols = expected.shape
    nibbles = _take(path, stored, expected.name, (rows, cols // 2), ("U8",))
    scales = _take(path, stored, expected.name + SCALES, (rows, cols // GROUP), ("F16",))
    check_scales(f"{path}: {expected.name}", scales.array)
    return ModelTensor(
        expected.name, TensorType.Q4, expected.shape, aligned(nibbles.array), aligned(scales.array)
    )


def _take(
    path: Path,
    stored: dict[str, TensorView],
    name: str,
    shape: tuple[int, ...],
    dtypes: tuple[str, ...],
) -> TensorView:
    view = stored.pop(name, None)
    if view is None:
        raise InputError(f"{path}: tensor {name!r} is missing, expected shape {list(shape)}")
    if view.shape != shape:
        raise InputError(
            f"{path}: tensor {name!r} has shape {list(view.shape)}, expected {list(shape)}"
        )
    if view.dtype not in dtypes:
        raise InputError(f"{path}: tensor {name!r} is {view.dtype}, expected {' or '.join(dtypes)}")
    return view
