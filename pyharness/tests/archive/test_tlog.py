"""File names and contents of the log in the C2SP tlog-tiles form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.archive import merkle, tlog
from pyharness.archive.tlog import Checkpoint, Tile

CHECKPOINT = Checkpoint(8, bytes.fromhex("5dc9da79a70659a9ad559cb701ded9a2") * 2)


def test_paths_are_those_of_the_specification() -> None:
    assert Tile(0, 1234067, 256).path == "tile/0/x001/x234/067"
    assert Tile(0, 1234067, 112).path == "tile/0/x001/x234/067.p/112"
    assert Tile(2, 0, 1).path == "tile/2/000.p/1"
    assert Tile(-1, 999, 256).path == "tile/entries/999"
    assert Tile(-1, 1000, 3).path == "tile/entries/x001/000.p/3"


def test_a_tree_of_70000_has_the_tiles_that_the_specification_counts() -> None:
    last = {}
    for tile in tlog.tiles_of(70_000):
        last[tile.level, tile.index] = tile.width
    assert [last[0, i] for i in range(274)] == [256] * 273 + [112]
    assert (last[1, 0], last[1, 1], last[2, 0]) == (256, 17, 1)
    assert (2, 1) not in last and (3, 0) not in last
    assert tlog.current_tile(70_000, 0, 273) == Tile(0, 273, 112)


@pytest.mark.parametrize("size", [0, 1, 2, 254, 255, 256, 257, 511, 512, 65534, 65535, 65536])
def test_an_entry_adds_what_the_sizes_differ_by(size: int) -> None:
    added = set(tlog.tiles_of(size + 1)) - set(tlog.tiles_of(size))
    assert set(tlog.tiles_added(size)) == added
    assert len(tlog.tiles_added(size)) == len(added)


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bundles_come_back(entries: list[bytes]) -> None:
    packed = tlog.pack_bundle(entries)
    assert tlog.unpack_bundle(packed, len(entries)) == entries
    with pytest.raises(ValueError, match="after its"):
        tlog.unpack_bundle(packed + b"x", len(entries))
    with pytest.raises(ValueError, match="ends within"):
        tlog.unpack_bundle(packed, len(entries) + 1)
    if packed:
        with pytest.raises(ValueError, match="ends within"):
            tlog.unpack_bundle(packed[:-1], len(entries))


def test_a_bundle_begins_each_entry_with_its_length() -> None:
    assert tlog.pack_bundle([b"ab", b"", b"c" * 258]) == b"\0\2ab" + b"\0\0" + b"\1\2" + b"c" * 258


@pytest.mark.parametrize("size", [1, 7, 255, 256, 257, 600, 65_537])
def test_hashes_from_tiles_are_those_of_the_leaves(size: int) -> None:
    entries = [i.to_bytes(3, "big") for i in range(size)]
    levels = tlog.hash_levels(entries)
    read = []

    def tile(tile: Tile) -> bytes:
        read.append(tile)
        return tlog.tile_bytes(tile, entries, levels)

    mth = tlog.range_hashes(tile, size)
    root = merkle.root_of(levels[0])
    assert mth(0, size) == root
    for index in {0, size // 3, size - 1}:
        proof = merkle.inclusion_proof(mth, index, size)
        assert merkle.verify_inclusion(levels[0][index], index, size, root, proof)
        old_root = merkle.root_of(levels[0][: index + 1])
        proof = merkle.consistency_proof(mth, index + 1, size)
        assert merkle.verify_consistency(index + 1, old_root, size, root, proof)
    assert len(read) <= 12  # a few tiles, never the whole log
    assert set(read) <= set(tlog.tiles_of(size))


def test_a_tile_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 224 bytes, found 223"):
        tlog.range_hashes(lambda _: bytes(223), 7)(0, 7)


def test_a_checkpoint_is_the_body_of_a_signed_note() -> None:
    assert CHECKPOINT.text == (
        "vllm-cuda/archive\n8\nXcnaeacGWamtVZy3Ad7Zol3J2nmnBlmprVWctwHe2aI=\n"
    )
    assert Checkpoint.parse(CHECKPOINT.text.encode()) == CHECKPOINT
    assert tlog.EMPTY.text.split("\n")[2] == "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
    assert Checkpoint.parse(tlog.EMPTY.text.encode()) == tlog.EMPTY


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:-1],
        lambda t: t + "\n",
        lambda t: t + "\n— someone Az3grlgt\n",
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.replace("archive", "other"),
        lambda t: t.replace("\n8\n", "\n08\n"),
        lambda t: t.replace("\n8\n", "\n+8\n"),
        lambda t: t.replace("\n8\n", "\n-8\n"),
        lambda t: t.replace("\n8\n", "\n8 \n"),
        lambda t: t.replace("\n8\n", "\n٨\n"),
        lambda t: t.replace("\n8\n", "\n99999999999999\n"),
        lambda t: t.replace("\n8\n", "\n0\n"),
        lambda t: t.replace("aI=", "aJ="),  # other padding bits, the same 32 bytes
        lambda t: t.replace("aI=", "aI"),
        lambda t: t.replace("Xcna", "Xcn!"),
        lambda t: t.replace("Xcna", ""),
        lambda t: "",
    ],
)
def test_one_checkpoint_has_one_spelling(change: Callable[[str], str]) -> None:
    with pytest.raises(ValueError):
        Checkpoint.parse(change(CHECKPOINT.text).encode())
