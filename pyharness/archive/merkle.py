"""The Merkle tree of RFC 6962, section 2.1, with SHA-256: roots, inclusion proofs and consistency
proofs.

Makers of proofs ask for hashes of ranges of leaves, ``mth(lo, hi)`` = MTH(D[lo:hi]), so that they
work on a list of leaves and on stored tiles alike. Checkers take only what a stranger would have:
sizes, roots, a leaf's hash and the proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

RangeHash = Callable[[int, int], bytes]  # (lo, hi) -> MTH(D[lo:hi]), 32 bytes; lo < hi

EMPTY_ROOT = hashlib.sha256(b"").digest()  # MTH of no leaves: here this hash is right


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def split(count: int) -> int:
    """The largest power of two below ``count`` (count >= 2): how many leaves the left subtree
    has.
    """
    return 1 << ((count - 1).bit_length() - 1)


def root_of(hashes: Sequence[bytes]) -> bytes:
    """The root over consecutive hashes of one height, pairing neighbours; an odd one rises as it
    is.
    """
    if not hashes:
        return EMPTY_ROOT
    level = list(hashes)
    while len(level) > 1:
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(level) & ~1 :]
    return level[0]


def inclusion_proof(mth: RangeHash, index: int, size: int) -> tuple[bytes, ...]:
    """The siblings on the way from leaf ``index`` to the root of the tree of ``size`` leaves,
    lowest first.
    """
    if not 0 <= index < size:
        raise ValueError(f"no leaf {index} in a tree of {size}")
    siblings, lo, hi = [], 0, size
    while hi - lo > 1:
        middle = lo + split(hi - lo)
        if index < middle:
            siblings.append(mth(middle, hi))
            hi = middle
        else:
            siblings.append(mth(lo, middle))
            lo = middle
    return tuple(reversed(siblings))


def verify_inclusion(
    leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether the tree of ``size`` leaves with this root has this leaf hash at ``index``."""
    if not 0 <= index < size:
        return False
    hash_, last, remaining = leaf, size - 1, list(reversed(proof))
    while last:  # one turn a level: index is our node's position on it, last the last node's
        if index & 1 or index < last:
            if not remaining:
                return False
            sibling = remaining.pop()
            hash_ = node_hash(sibling, hash_) if index & 1 else node_hash(hash_, sibling)
        index, last = index >> 1, last >> 1
    return not remaining and hash_ == root


def consistency_proof(mth: RangeHash, old_size: int, size: int) -> tuple[bytes, ...]:
    """What shows that the tree of ``old_size`` leaves is the beginning of the tree of ``size``
    leaves.
    """
    if not 0 <= old_size <= size:
        raise ValueError(f"a tree of {old_size} cannot be the beginning of a tree of {size}")
    if old_size in (0, size):
        return ()
    parts, lo, hi, whole = [], 0, size, True  # whole: D[0:old_size] itself is D[lo:old_size]
    while old_size != hi:
        middle = lo + split(hi - lo)
        if old_size <= middle:
            parts.append(mth(middle, hi))
            hi = middle
        else:
            parts.append(mth(lo, middle))
            lo, whole = middle, False
    if not whole:
        parts.append(mth(lo, hi))
    return tuple(reversed(parts))


def verify_consistency(
    old_size: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether the tree (old_size, old_root) is the beginning of the tree (size, root)."""
    if not 0 <= old_size <= size:
        return False
    if old_size == size:
        return not proof and old_root == root
    if old_size == 0:
        return not proof and old_root == EMPTY_ROOT
    remaining = list(reversed(proof))
    index, last = old_size - 1, size - 1  # the old tree's last node and the new tree's last node
    while index & 1:  # up to the largest complete subtree that ends the old tree
        index, last = index >> 1, last >> 1
    if index:
        if not remaining:
            return False
        old_hash = new_hash = remaining.pop()
    else:  # the old tree is one complete subtree: its root is the seed, the proof leaves it out
        old_hash = new_hash = old_root
    while last:
        if index & 1 or index < last:
            if not remaining:
                return False
            sibling = remaining.pop()
            if index & 1:
                old_hash = node_hash(sibling, old_hash)
                new_hash = node_hash(sibling, new_hash)
            else:
                new_hash = node_hash(new_hash, sibling)
        index, last = index >> 1, last >> 1
    return not remaining and old_hash == old_root and new_hash == root
