"""The checks that make up ``read_snapshot``; each refuses with the file, what was expected and what
was found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from pyharness.archive import layout, merkle, tlog
from pyharness.archive.entry import LogEntry
from pyharness.archive.layout import Manifest, named
from pyharness.archive.tlog import Checkpoint
from pyharness.archive.tree import Tree
from pyharness.errors import GateRefusal
from pyharness.files import TEMPORARY
from pyharness.values import Digest

CHECKPOINT_FILE = "log/checkpoint"

Files = Mapping[str, os.stat_result]  # of the whole archive, by relative path


def read_checkpoint(tree: Tree, files: Files) -> Checkpoint:
    """The log's checkpoint; of the empty log where nothing was ever added."""
    started = CHECKPOINT_FILE in files
    for name in (layout.LAYOUT_FILE, layout.INDEX_FILE):
        if started and name not in files:
            raise GateRefusal(f"{tree.path / name}: is missing")
    found = tree.read(layout.LAYOUT_FILE) if layout.LAYOUT_FILE in files else layout.LAYOUT_BYTES
    if found != layout.LAYOUT_BYTES:
        raise GateRefusal(
            f"{tree.path / layout.LAYOUT_FILE}: expected {named(layout.LAYOUT_BYTES)}, found "
            f"{named(found)}"
        )
    if not started:
        return tlog.EMPTY  # a pin that knows of more refuses this
    try:
        return Checkpoint.parse(tree.read(CHECKPOINT_FILE))
    except ValueError as e:
        raise GateRefusal(f"{tree.path / CHECKPOINT_FILE}: not a checkpoint: {e}") from None


def read_entries(tree: Tree, checkpoint: Checkpoint) -> tuple[bytes, ...]:
    """The entries, whose root is the checkpoint's."""
    raw: list[bytes] = []
    while len(raw) < checkpoint.size:
        tile = tlog.current_tile(checkpoint.size, -1, len(raw) // tlog.WIDTH)
        try:
            raw += tlog.unpack_bundle(tree.read(f"log/{tile.path}"), tile.width)
        except ValueError as e:
            raise GateRefusal(f"{tree.path}/log/{tile.path}: {e}") from None
    root = merkle.root_of([merkle.leaf_hash(entry) for entry in raw])
    if root != checkpoint.root:
        raise GateRefusal(
            f"{tree.path}/log: expected the root {checkpoint.root.hex()} of the checkpoint, found "
            f"{root.hex()} "
            f"for its {checkpoint.size} entries"
        )
    return tuple(raw)


def check_tiles(tree: Tree, files: Files, checkpoint: Checkpoint, raw: Sequence[bytes]) -> None:
    """Each file of the log holds what follows from the entries."""
    levels = tlog.hash_levels(raw)
    for tile in tlog.tiles_of(checkpoint.size):
        path = f"log/{tile.path}"
        if path not in files:
            raise GateRefusal(f"{tree.path / path}: is missing")
        expected, found = tlog.tile_bytes(tile, raw, levels), tree.read(path)
        if expected != found:
            raise GateRefusal(
                f"{tree.path / path}: expected {named(expected)}, found {named(found)}"
            )


def check_consistency(
    tree: Tree, pin: Checkpoint, checkpoint: Checkpoint, raw: Sequence[bytes]
) -> None:
    """The pinned log is a beginning of this one, by the proof that its stored tiles give."""
    mth = tlog.range_hashes(lambda tile: tree.read(f"log/{tile.path}"), checkpoint.size)
    try:
        proof = merkle.consistency_proof(mth, pin.size, checkpoint.size)
    except ValueError as e:
        raise GateRefusal(f"{tree.path}/log: {e}") from None
    if not merkle.verify_consistency(pin.size, pin.root, checkpoint.size, checkpoint.root, proof):
        found = merkle.root_of([merkle.leaf_hash(entry) for entry in raw[: pin.size]])
        raise GateRefusal(
            f"{tree.path}/log: is not a continuation of its pin: for the first {pin.size} entries "
            "expected the root "
            f"{pin.root.hex()}, found {found.hex()}"
        )


def check_inclusion(tree: Tree, checkpoint: Checkpoint, index: int, entry: bytes) -> None:
    """The entry is in the checkpoint's log at ``index``, by the proof that its stored tiles
    give.
    """
    mth = tlog.range_hashes(lambda tile: tree.read(f"log/{tile.path}"), checkpoint.size)
    leaf = merkle.leaf_hash(entry)
    try:
        proof = merkle.inclusion_proof(mth, index, checkpoint.size)
    except ValueError as e:
        raise GateRefusal(f"{tree.path}/log: {e}") from None
    if not merkle.verify_inclusion(leaf, index, checkpoint.size, checkpoint.root, proof):
        raise GateRefusal(
            f"{tree.path}/log: expected the root {checkpoint.root.hex()}, but entry {index} with "
            "the hash "
            f"{leaf.hex()} does not lead to it"
        )


def read_manifests(
    tree: Tree, entries: Sequence[LogEntry]
) -> tuple[tuple[Manifest, ...], tuple[int, ...]]:
    """The manifest of each entry and its size in bytes; each has its digest and says what its entry
    says.
    """
    manifests, sizes = [], []
    for i, entry in enumerate(entries):
        path = tree.path / layout.blob_path(entry.manifest)
        data = tree.read(layout.blob_path(entry.manifest))
        if named(data) != str(entry.manifest):
            raise GateRefusal(f"{path}: expected {entry.manifest}, found {named(data)}")
        try:
            manifest = Manifest.parse(data)
        except ValueError as e:
            raise GateRefusal(f"{path}: {e}") from None
        library = manifest.library
        said = (library.digest, library.size_bytes, manifest.record and manifest.record.digest)
        if said != (entry.library, entry.size_bytes, entry.record):
            raise GateRefusal(
                f"{path}: log entry {i} has {entry.library} of {entry.size_bytes} bytes, "
                f"the manifest {library.digest} of {library.size_bytes}, or their records differ"
            )
        made = layout.manifest_of(
            library, manifest.record,
            kind=entry.kind, label=entry.label, why=entry.why, time=entry.time,
        )  # fmt: skip
        if made != manifest:
            raise GateRefusal(f"{path}: its annotations are not those of log entry {i}")
        manifests.append(manifest)
        sizes.append(len(data))
    return tuple(manifests), tuple(sizes)


def references(
    entries: Sequence[LogEntry], manifests: Sequence[Manifest], sizes: Sequence[int]
) -> dict[Digest, int]:
    """Every blob that the log leads to, and its size."""
    blobs = {entry.manifest: size for entry, size in zip(entries, sizes, strict=True)}
    for manifest in manifests:
        for layer in (manifest.library, manifest.record, layout.empty_config()):
            if layer:
                blobs[layer.digest] = layer.size_bytes
    return blobs


def check_blob(tree: Tree, digest: Digest, size_bytes: int) -> None:
    """The bytes of one blob, read and hashed."""
    path = layout.blob_path(digest)
    found, size = tree.sha256(path)
    if (found, size) != (digest, size_bytes):
        raise GateRefusal(
            f"{tree.path / path}: expected {digest} of {size_bytes} bytes, found {found} of {size} "
            "bytes"
        )


def classify(
    tree: Tree, files: Files, checkpoint: Checkpoint, blobs: Mapping[Digest, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Blobs that nothing refers to, and leftovers of an interrupted add. Missing and foreign files
    are refused.
    """
    expected = {CHECKPOINT_FILE, layout.LAYOUT_FILE, layout.INDEX_FILE}
    expected |= {f"log/{tile.path}" for tile in tlog.tiles_of(checkpoint.size)}
    expected |= {_present(tree, files, digest, size) for digest, size in blobs.items()}
    unfinished = {f"log/{tile.path}" for tile in tlog.tiles_added(checkpoint.size)}
    orphans, leftovers = [], []
    for path in sorted(set(files) - expected):
        folder, _, name = path.rpartition("/")
        if name.startswith(TEMPORARY) or path in unfinished:
            leftovers.append(path)
        elif folder == layout.BLOBS and re.fullmatch(r"[0-9a-f]{64}", name):
            orphans.append(path)
        else:
            raise tree.foreign(path)
    return tuple(orphans), tuple(leftovers)


def _present(tree: Tree, files: Files, digest: Digest, size: int) -> str:
    path = layout.blob_path(digest)
    if path not in files:
        raise GateRefusal(f"{tree.path / path}: is missing")
    if (found := files[path].st_size) != size:
        raise GateRefusal(
            f"{tree.path / path}: expected {digest} of {size} bytes, found {found} bytes"
        )
    return path
