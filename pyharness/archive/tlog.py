"""The log's files in the C2SP tlog-tiles form: checkpoint, tiles of hashes, bundles of entries.

    checkpoint                    origin, size and root: the body of a C2SP signed note
    tile/<L>/<N>[.p/<W>]          up to 256 hashes of 32 bytes, each over 256**L entries
    tile/entries/<N>[.p/<W>]      up to 256 entries, each behind its length (big-endian uint16)

Every width that a tile ever had keeps its file (``.p/1``, ``.p/2``, ...): nothing is rewritten and
every file of a log of a given size is known beforehand, down to the byte, from its entries.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyharness.archive.merkle import (
    EMPTY_ROOT,
    RangeHash,
    leaf_hash,
    node_hash,
    root_of,
    split,
)

ORIGIN = "vllm-cuda/archive"
WIDTH = 256  # hashes in a full tile, entries in a full bundle
HASH_BYTES = 32
_MAX_SIZE = 1 << 40  # entries; a checkpoint that claims more is nonsense


@dataclass(frozen=True)
class Checkpoint:
    """The log's state at one size. Two logs with one checkpoint have the same entries."""

    size: int
    root: bytes
    origin: str = ORIGIN

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, data: bytes) -> Checkpoint:
        """ValueError unless these are exactly the bytes that ``text`` gives."""
        lines = data.decode("ascii").split("\n")
        if len(lines) != 4 or lines[3]:
            raise ValueError("expected three lines: origin, size and root")
        origin, size, root = lines[:3]
        if origin != ORIGIN:
            raise ValueError(f"expected the origin {ORIGIN!r}, found {origin!r}")
        if not re.fullmatch(r"0|[1-9][0-9]{0,12}", size) or int(size) > _MAX_SIZE:
            raise ValueError(f"expected a size, found {size!r}")
        try:
            made = cls(int(size), base64.b64decode(root, validate=True), origin)
        except binascii.Error:
            raise ValueError(f"expected a root in base64, found {root!r}") from None
        if len(made.root) != HASH_BYTES or made.text.encode() != data:
            raise ValueError(f"expected a root of 32 bytes in base64, found {root!r}")
        if made.size == 0 and made.root != EMPTY_ROOT:
            raise ValueError("the root of an empty log is the hash of no bytes")
        return made


EMPTY = Checkpoint(0, EMPTY_ROOT)


@dataclass(frozen=True)
class Tile:
    """One file under ``tile/``. Level -1 is the bundle of entries below level 0."""

    level: int
    index: int
    width: int  # 1..256; below 256 the tile is partial

    @property
    def path(self) -> str:
        digits = f"{self.index:03d}"
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        parts = [digits[i : i + 3] for i in range(0, len(digits), 3)]
        number = "/".join([f"x{part}" for part in parts[:-1]] + parts[-1:])
        level = "entries" if self.level < 0 else str(self.level)
        return f"tile/{level}/{number}" + (f".p/{self.width}" if self.width < WIDTH else "")

    @property
    def end(self) -> int:
        """One past the last hash (level -1: entry) of its level that the tile holds."""
        return self.index * WIDTH + self.width


def count_at(size: int, level: int) -> int:
    """How many hashes (level -1: entries) a log of this size has at a level."""
    return size >> (8 * max(level, 0))


def tiles_of(size: int) -> list[Tile]:
    """Every file under ``tile/`` that a log of this size has."""
    levels = [-1, *(level for level in range(64) if count_at(size, level))] if size else []
    return [
        Tile(level, i // WIDTH, i % WIDTH + 1)
        for level in levels
        for i in range(count_at(size, level))
    ]


def tiles_added(size: int) -> list[Tile]:
    """The files that entry number ``size`` adds to ``tiles_of(size)``."""
    size += 1
    levels = [-1, 0]
    while size % WIDTH ** (levels[-1] + 1) == 0:
        levels.append(levels[-1] + 1)
    counts = ((level, count_at(size, level)) for level in levels)
    return [Tile(level, (count - 1) // WIDTH, (count - 1) % WIDTH + 1) for level, count in counts]


def current_tile(size: int, level: int, index: int) -> Tile:
    """The widest tile at this place in a log of this size."""
    return Tile(level, index, min(WIDTH, count_at(size, level) - index * WIDTH))


def tile_bytes(tile: Tile, entries: Sequence[bytes], levels: Sequence[Sequence[bytes]]) -> bytes:
    """What the tile's file holds; ``levels`` is ``hash_levels(entries)``."""
    begin = tile.index * WIDTH
    if tile.level < 0:
        return pack_bundle(entries[begin : tile.end])
    return b"".join(levels[tile.level][begin : tile.end])


def hash_levels(entries: Sequence[bytes]) -> list[list[bytes]]:
    """For each level, the hashes that its tiles hold, in order."""
    levels = [[leaf_hash(entry) for entry in entries]]
    while len(levels[-1]) >= WIDTH:
        below = levels[-1]
        full = len(below) // WIDTH
        levels.append([root_of(below[i * WIDTH : (i + 1) * WIDTH]) for i in range(full)])
    return levels


def pack_bundle(entries: Sequence[bytes]) -> bytes:
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def unpack_bundle(data: bytes, count: int) -> list[bytes]:
    """ValueError unless the bundle holds exactly ``count`` entries and not a byte more."""
    entries: list[bytes] = []
    offset = 0
    for _ in range(count):
        length = int.from_bytes(data[offset : offset + 2], "big")
        entry = data[offset + 2 : offset + 2 + length]
        if len(data) - offset < 2 or len(entry) < length:
            raise ValueError(f"ends within entry {len(entries)} of {count}")
        entries.append(entry)
        offset += 2 + length
    if offset != len(data):
        raise ValueError(f"{len(data) - offset} bytes after its {count} entries")
    return entries


def range_hashes(read: Callable[[Tile], bytes], size: int) -> RangeHash:
    """MTH(D[lo:hi]) of a log of this size, from the hashes in its tiles alone.

    For any lo:hi that a proof asks for. ``read`` gives a tile's bytes; a complete subtree of 2**k
    leaves is 2**(k % 8) neighbours in a tile of level k // 8.
    """
    tiles: dict[Tile, bytes] = {}

    def complete(lo: int, height: int) -> bytes:
        level = height // 8
        position, count = lo >> (8 * level), 1 << (height % 8)
        tile = current_tile(size, level, position // WIDTH)
        if tile not in tiles:
            tiles[tile] = read(tile)
            if len(tiles[tile]) != tile.width * HASH_BYTES:
                raise ValueError(
                    f"{tile.path}: expected {tile.width * HASH_BYTES} bytes, "
                    f"found {len(tiles[tile])}"
                )
        at = position % WIDTH
        hashes = [tiles[tile][HASH_BYTES * i : HASH_BYTES * (i + 1)] for i in range(at, at + count)]
        return root_of(hashes)

    def mth(lo: int, hi: int) -> bytes:
        count = hi - lo
        if count & (count - 1) == 0:
            return complete(lo, count.bit_length() - 1)
        middle = lo + split(count)
        return node_hash(mth(lo, middle), mth(middle, hi))

    return mth
