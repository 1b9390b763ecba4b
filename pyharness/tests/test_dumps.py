from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from pyharness.dumps import (
    H_OUT,
    LOGITS,
    POSITION,
    STATE,
    Dump,
    DumpWriter,
    file_facts,
    partial_folder,
)
from pyharness.errors import InputError
from pyharness.inputs.safetensors import array_source, read_safetensors, write_safetensors

RNG = np.random.default_rng(5)
H = RNG.standard_normal((5, 3)).astype(np.float32)
V = RNG.standard_normal((5, 7)).astype(np.float32)
S = RNG.standard_normal((2, 4, 4)).astype(np.float32)
SOURCES = (
    array_source(POSITION, "I64", np.array([9], np.int64)),
    array_source("layers.0.S", "F32", S),
    array_source("layers.1.keys", "F32", np.empty((2, 0, 4), np.float32)),
)


def write(out: Path) -> Path:
    with DumpWriter(out, 5, 3, 7) as dump:
        dump.append(H[:1], V[:1])
        dump.append(H[1:4], V[1:4])
        dump.append(H[4:], V[4:])
        dump.state(SOURCES)
        facts = dump.commit()
    assert facts == file_facts(out)
    return out


def test_what_is_written_reads_back_bit_for_bit(tmp_path: Path) -> None:
    dump = Dump.open(write(tmp_path / "out"))
    assert dump.h_out.tobytes() == H.tobytes()
    assert dump.logits.tobytes() == V.tobytes()
    assert (dump.rows, dump.position, list(dump.state)) == (5, 9, ["layers.0.S", "layers.1.keys"])
    assert dump.state["layers.0.S"].tobytes() == S.tobytes()
    assert dump.state["layers.1.keys"].shape == (2, 0, 4)
    with pytest.raises(ValueError, match="read-only"):
        dump.h_out[0, 0] = 1


def test_others_read_the_files(tmp_path: Path) -> None:
    out = write(tmp_path / "out")
    assert np.array_equal(np.load(out / H_OUT, allow_pickle=False), H)
    assert read_safetensors(out / STATE).tensors["layers.0.S"].array.tobytes() == S.tobytes()


def test_facts_are_those_of_the_bytes(tmp_path: Path) -> None:
    out = write(tmp_path / "out")
    for fact in file_facts(out):
        data = (out / fact.name).read_bytes()
        assert (fact.sha256.hex, fact.size_bytes) == (hashlib.sha256(data).hexdigest(), len(data))


def test_the_same_rows_make_the_same_bytes_however_they_come(tmp_path: Path) -> None:
    write(tmp_path / "pieces")
    with DumpWriter(tmp_path / "whole", 5, 3, 7) as dump:
        dump.append(H, V)
        dump.state(SOURCES)
        dump.commit()
    assert file_facts(tmp_path / "pieces") == file_facts(tmp_path / "whole")


def test_nothing_is_there_before_the_commit(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "out", 5, 3, 7) as dump:
        dump.append(H, V)
        dump.state(SOURCES)
        assert [p.name for p in tmp_path.iterdir()] == [f".out.partial-{os.getpid()}"]
        dump.commit()
        assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), DumpWriter(tmp_path / "out", 5, 3, 7) as dump:
        dump.append(H, V)
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_facts_are_those_of_what_was_written_whatever_lies_there_at_the_commit(
    tmp_path: Path,
) -> None:
    facts = file_facts(write(tmp_path / "sound"))
    with DumpWriter(tmp_path / "out", 5, 3, 7) as dump:
        dump.append(H, V)
        dump.state(SOURCES)
        for name in (H_OUT, LOGITS, STATE):
            other = tmp_path / "other"
            other.write_bytes(b"of another process")
            other.replace(partial_folder(tmp_path / "out", os.getpid()) / name)
        assert dump.commit() == facts
    assert file_facts(tmp_path / "out") != facts


def test_without_a_state_there_is_no_dump(tmp_path: Path) -> None:
    reason = "was not written"
    with pytest.raises(ValueError, match=reason), DumpWriter(tmp_path / "out", 5, 3, 7) as dump:
        dump.append(H, V)
        dump.commit()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [4, 6])
def test_a_wrong_number_of_rows_is_no_dump(rows: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows"), DumpWriter(tmp_path / "out", rows, 3, 7) as dump:
        dump.append(H, V)
        dump.state(SOURCES)
        dump.commit()
    assert list(tmp_path.iterdir()) == []


def test_rows_of_another_width_or_type_are_refused(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "out", 5, 3, 7) as dump:
        with pytest.raises(ValueError, match="columns"):
            dump.append(V, V)
        with pytest.raises(ValueError, match="float64"):
            dump.append(H.astype(np.float64), V)


def test_a_dump_is_never_overwritten(tmp_path: Path) -> None:
    out = write(tmp_path / "out")
    before = file_facts(out)
    with pytest.raises(InputError, match="exists already"):
        DumpWriter(out, 5, 3, 7)
    assert file_facts(out) == before


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert Dump.open(write(tmp_path / "out")).rows == 5


def test_what_a_killed_owner_left_is_no_hindrance(tmp_path: Path) -> None:
    stale = partial_folder(tmp_path / "out", os.getpid())
    stale.mkdir()
    (stale / H_OUT).write_bytes(b"half")
    write(tmp_path / "out")
    assert not stale.exists()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file/out: cannot be written: "):
        DumpWriter(tmp_path / "file" / "out", 5, 3, 7)


def npy(path: Path, array: np.ndarray) -> None:
    np.save(path, array, allow_pickle=False)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def state(path: Path, *sources: tuple[str, str, np.ndarray]) -> None:
    write_safetensors(path, [array_source(*s) for s in sources])


NINE = np.array([9], np.int64)


@pytest.mark.parametrize(
    ("name", "damage", "what"),
    [
        (H_OUT, lambda p: p.unlink(), "h_out.npy: No such file"),
        (STATE, lambda p: p.unlink(), "state.safetensors: No such file"),
        (LOGITS, cut, "logits.npy: not a whole npy file"),
        (STATE, cut, "state.safetensors: not a whole safetensors file"),
        (LOGITS, lambda p: p.write_bytes(b""), "logits.npy: not a whole npy file"),
        (H_OUT, lambda p: npy(p, H.astype(np.float64)), "h_out.npy: array has type F64"),
        (H_OUT, lambda p: npy(p, np.asfortranarray(H)), "h_out.npy: not a whole npy file"),
        (H_OUT, lambda p: npy(p, H[0]), "h_out.npy: float32 .3,., not float32"),
        (H_OUT, lambda p: npy(p, H[:4]), "h_out.npy has 4 rows, logits.npy has 5"),
        (H_OUT, lambda p: npy(p, NINE), "h_out.npy: int64 .1,., not float32"),
        (STATE, lambda p: state(p, ("layers.0.S", "F32", S)), "no 'position' of type I64"),
        (STATE, lambda p: state(p, (POSITION, "F32", S[0, 0, :1])), "no 'position' of type I64"),
        (
            STATE,
            lambda p: state(p, (POSITION, "I64", NINE), ("a", "I64", NINE)),
            "a is int64, not F32",
        ),
        (STATE, lambda p: state(p, ("a", "F16", S.astype(np.float16))), "a has type F16"),
    ],
)
def test_a_malformed_dump_is_one_line(name, damage, what: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = write(tmp_path / "out")
    damage(out / name)
    with pytest.raises(InputError, match=what) as caught:
        Dump.open(out)
    assert len(str(caught.value).splitlines()) == 1
