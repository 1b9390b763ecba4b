"""Packs: the library's input byte for byte, written with bounded memory, refused when damaged."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyharness.errors import InputError
from pyharness.inputs import quantize
from pyharness.inputs.layout import EMBEDDING, HEAD, ROPE, Model, ModelTensor, TensorType
from pyharness.inputs.model import load_config, load_model, model_spec
from pyharness.inputs.pack import SCALES, read_pack, write_pack
from pyharness.inputs.safetensors import read_safetensors
from pyharness.tests.goldens import NAMES, golden
from pyharness.tests.inputs.samples import (
    CONFIG,
    MODEL,
    Tensors,
    change,
    sample_tensors,
    write_checkpoint,
    write_tensors,
)

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def same_bytes(a: ModelTensor, b: ModelTensor) -> bool:
    def parts(t: ModelTensor) -> tuple[object, ...]:
        arrays = [x.tobytes() if x is not None else None for x in (t.data, t.scales)]
        return (t.name, t.type, t.shape, *arrays)

    return parts(a) == parts(b)


def assert_same(a: Model, b: Model) -> None:
    assert a.config == b.config
    for left, right in zip(a.tensors, b.tensors, strict=True):
        assert same_bytes(left, right), left.name


@pytest.mark.parametrize("name", NAMES)
def test_a_pack_is_the_checkpoint_to_the_library(tmp_path: Path, name: str) -> None:
    pack = tmp_path / "model.pack"
    write_pack(golden(name), pack)
    assert_same(load_model(model_spec(pack)), load_model(model_spec(golden(name))))
    assert load_config(model_spec(pack)) == load_config(model_spec(golden(name)))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_type_tied_or_not(tmp_path: Path, dtype: str, tied: bool) -> None:
    config = change(CONFIG, tie_word_embeddings=tied)
    folder = write_checkpoint(tmp_path / "m", sample_tensors(tied, dtype), config, shards=2)
    write_pack(folder, tmp_path / "pack")
    direct = load_model(model_spec(folder))
    assert_same(read_pack(tmp_path / "pack"), direct)
    by_name = {t.name: t for t in direct.tensors}
    assert by_name[HEAD].type == TensorType.Q4
    assert by_name[EMBEDDING].type == TensorType[dtype]
    assert by_name["model.layers.0.linear_attn.in_proj_a.weight"].type == TensorType.F32


def test_everything_in_a_pack_is_aligned(tmp_path: Path) -> None:
    write_pack(write_checkpoint(tmp_path / "m"), tmp_path / "pack")
    for tensor in read_pack(tmp_path / "pack").tensors:
        for array in (tensor.data, tensor.scales):
            assert array is None or (array.flags.aligned and not array.flags.owndata), tensor.name


def test_unaligned_tensors_are_copied_into_place(tmp_path: Path) -> None:
    """A foreign writer may place a float32 at any byte; the library needs it aligned."""
    folder = write_checkpoint(tmp_path / "m")
    tensors = sample_tensors(dtype="F32")
    odd = ("U8", np.zeros(3, np.uint8))
    write_tensors(folder / "model.safetensors", {"mtp.x": odd} | tensors)
    stored = read_safetensors(folder / "model.safetensors").tensors
    assert not stored[EMBEDDING].array.flags.aligned
    for tensor in load_model(model_spec(folder)).tensors:
        assert tensor.data is not None
        assert tensor.data.flags.aligned
        if tensor.name == EMBEDDING:
            assert tensor.data.tobytes() == tensors[EMBEDDING][1].tobytes()


def test_progress_names_each_quantized_tensor(tmp_path: Path) -> None:
    seen: list[str] = []
    write_pack(write_checkpoint(tmp_path / "m"), tmp_path / "pack", seen.append)
    quantized = [t.name for t in read_pack(tmp_path / "pack").tensors if t.type == TensorType.Q4]
    assert seen == quantized


def test_memory_does_not_grow_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packing holds one block and one tensor's scales, not a quantized model."""
    monkeypatch.setattr(quantize, "BLOCK_ELEMENTS", 1 << 14)
    config = change(CONFIG, intermediate_size=32 * 400)
    tensors = sample_tensors()
    for layer in (0, 1):
        for name in ("gate_proj", "up_proj", "down_proj"):
            shape = (64, 12800) if name == "down_proj" else (12800, 64)
            tensors[f"model.layers.{layer}.mlp.{name}.weight"] = "F32", np.ones(shape, np.float32)
    folder = write_checkpoint(tmp_path / "m", tensors, config)
    del tensors
    tracemalloc.start()
    write_pack(folder, tmp_path / "pack")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    packed = (tmp_path / "pack").stat().st_size
    assert packed > 2_500_000
    assert peak < packed / 2


# ---- damage -------------------------------------------------------------------------------------


def spoil(path: Path, change_tensors: Callable[[Tensors], object], **metadata: str) -> None:
    file = read_safetensors(path)
    tensors = {n: (v.dtype, v.array.copy()) for n, v in file.tensors.items()}
    change_tensors(tensors)
    write_tensors(path, tensors, dict(file.metadata) | metadata)


def set_scale(bits: int) -> Callable[[Tensors], object]:
    def change_scale(tensors: Tensors) -> None:
        tensors[Q_PROJ + SCALES][1].view(np.uint16)[3, 1] = bits

    return change_scale


def set_nan(tensors: Tensors) -> None:
    tensors["model.norm.weight"][1][5] = 0x7FC0  # bfloat16


def cut_rows(tensors: Tensors) -> None:
    tensors[Q_PROJ] = "U8", tensors[Q_PROJ][1][:7]


def as_floats(tensors: Tensors) -> None:
    tensors[Q_PROJ] = "F32", np.zeros((256, 32), np.float32)


DAMAGE: list[tuple[Callable[[Tensors], object], str]] = [
    (set_scale(0x7E00), f"{Q_PROJ}: a scale is NaN or infinite"),
    (set_scale(0x7C00), f"{Q_PROJ}: a scale is NaN or infinite"),
    (set_scale(0xBC00), f"{Q_PROJ}: a scale is negative"),
    (set_nan, "model.norm.weight: a weight is NaN or infinite"),
    (cut_rows, f"tensor '{Q_PROJ}' has shape [7, 32], expected [256, 32]"),
    (as_floats, f"tensor '{Q_PROJ}' is F32, expected U8"),
    (lambda tensors: tensors.pop(Q_PROJ + SCALES), f"tensor '{Q_PROJ}.scales' is missing"),
    (lambda tensors: tensors.pop(ROPE), "tensor 'rope.inv_freq' is missing"),
    (lambda tensors: tensors.update(more=tensors[ROPE]), "tensor 'more' is not part of the model"),
]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    write_pack(write_checkpoint(tmp_path / "m"), tmp_path / "pack")
    return tmp_path / "pack"


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(model_spec(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("change_tensors", "message"), DAMAGE)
def test_a_damaged_pack_is_refused(
    pack: Path, change_tensors: Callable[[Tensors], object], message: str
) -> None:
    spoil(pack, change_tensors)
    assert message in refused(pack)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "other"}, "not a pack; make one with run-ab pack"),
        ({"version": "2"}, "pack version '2', but '1' is read here"),
        ({"config": "{"}, "configuration is not valid JSON"),
        ({"config": "{}"}, "configuration: hidden is None, must be of type int"),
    ],
)
def test_foreign_metadata_is_refused(pack: Path, metadata: dict[str, str], message: str) -> None:
    spoil(pack, lambda tensors: None, **metadata)
    assert message in refused(pack)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden", "64", "hidden is '64', must be of type int"),
        ("tied", 0, "tied is 0, must be of type bool"),
        ("layer_kinds", ["gdn", "mamba"], "unknown layer kind 'mamba'"),
        ("more", 1, "unknown field 'more'"),
        ("kv_heads", 3, "q_heads must be a multiple of kv_heads"),
    ],
)
def test_a_foreign_configuration_is_refused(
    pack: Path, field: str, value: object, message: str
) -> None:
    config = json.loads(read_safetensors(pack).metadata["config"]) | {field: value}
    spoil(pack, lambda tensors: None, config=json.dumps(config))
    assert message in refused(pack)


def test_a_checkpoint_file_is_no_pack(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    assert "not a pack" in refused(folder / "model.safetensors")


def test_a_failed_pack_leaves_nothing(tmp_path: Path) -> None:
    tensors = sample_tensors()
    tensors[HEAD][1][0, 0] = 0x7FC0  # NaN in the last tensor
    folder = write_checkpoint(tmp_path / "m", tensors)
    with pytest.raises(InputError, match=r"lm_head\.weight: a weight is NaN"):
        write_pack(folder, tmp_path / "pack")
    assert sorted(os.listdir(tmp_path)) == ["m"]


def test_places_that_cannot_hold_a_pack(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    with pytest.raises(InputError, match="is a folder; name the file to write"):
        write_pack(folder, tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        write_pack(folder, tmp_path / "none" / "pack")


def test_dimensions_that_are_no_groups(tmp_path: Path) -> None:
    tensors = sample_tensors()
    for layer in (0, 1):
        for name, shape in (("gate", (80, 64)), ("up", (80, 64)), ("down", (64, 80))):
            weight = np.ones(shape, np.float32)
            tensors[f"model.layers.{layer}.mlp.{name}_proj.weight"] = "F32", weight
    folder = write_checkpoint(tmp_path / "m", tensors, change(CONFIG, intermediate_size=80))
    message = r"^model\.layers\.0\.mlp\.down_proj\.weight: input dimension 80 is not a mult"
    with pytest.raises(InputError, match=message):
        write_pack(folder, tmp_path / "pack")
    with pytest.raises(InputError, match=message):
        load_model(model_spec(folder))


def test_the_configuration_survives(pack: Path) -> None:
    assert read_pack(pack).config == MODEL
