"""The tree against published vectors and against the definition written out as it stands in RFC
6962.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyharness.archive import merkle

# The inputs and roots that Certificate Transparency's own tests use.
INPUTS = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = {
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
}
CONSISTENCY = {
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


# ---- RFC 6962, section 2.1, word for word: the oracle -------------------------------------------


def mth(d: Sequence[bytes]) -> bytes:
    if len(d) < 2:
        return hashlib.sha256(b"\x00" + d[0] if d else b"").digest()
    k = max(2**i for i in range(20) if 2**i < len(d))
    return hashlib.sha256(b"\x01" + mth(d[:k]) + mth(d[k:])).digest()


def path(m: int, d: Sequence[bytes]) -> list[bytes]:
    if len(d) == 1:
        return []
    k = max(2**i for i in range(20) if 2**i < len(d))
    return [*path(m, d[:k]), mth(d[k:])] if m < k else [*path(m - k, d[k:]), mth(d[:k])]


def subproof(m: int, d: Sequence[bytes], b: bool) -> list[bytes]:
    if m == len(d):
        return [] if b else [mth(d)]
    k = max(2**i for i in range(20) if 2**i < len(d))
    if m <= k:
        return [*subproof(m, d[:k], b), mth(d[k:])]
    return [*subproof(m - k, d[k:], False), mth(d[:k])]


def ranges(leaves: Sequence[bytes]) -> merkle.RangeHash:
    return lambda lo, hi: mth(leaves[lo:hi])


def hexes(proof: Sequence[bytes]) -> list[str]:
    return [part.hex() for part in proof]


@pytest.mark.parametrize("size", range(9))
def test_roots_are_the_published_ones(size: int) -> None:
    assert merkle.root_of([merkle.leaf_hash(leaf) for leaf in INPUTS[:size]]).hex() == ROOTS[size]
    assert mth(INPUTS[:size]).hex() == ROOTS[size]


def test_inclusion_proofs_are_the_published_ones() -> None:
    for (index, size), expected in INCLUSION.items():
        proof = merkle.inclusion_proof(ranges(INPUTS), index, size)
        assert hexes(proof) == expected
        leaf = merkle.leaf_hash(INPUTS[index])
        assert merkle.verify_inclusion(leaf, index, size, bytes.fromhex(ROOTS[size]), proof)


def test_consistency_proofs_are_the_published_ones() -> None:
    for (old, size), expected in CONSISTENCY.items():
        proof = merkle.consistency_proof(ranges(INPUTS), old, size)
        assert hexes(proof) == expected
        roots = bytes.fromhex(ROOTS[old]), bytes.fromhex(ROOTS[size])
        assert merkle.verify_consistency(old, roots[0], size, roots[1], proof)


@pytest.mark.parametrize("size", [*range(1, 34), 63, 64, 65])
def test_every_proof_is_that_of_the_definition(size: int) -> None:
    leaves = [bytes([i, size]) for i in range(size)]
    root, hash_of = mth(leaves), ranges(leaves)
    assert merkle.root_of([merkle.leaf_hash(leaf) for leaf in leaves]) == root
    for i in range(size):
        proof = merkle.inclusion_proof(hash_of, i, size)
        assert list(proof) == path(i, leaves)
        assert merkle.verify_inclusion(merkle.leaf_hash(leaves[i]), i, size, root, proof)
        old, old_root = i + 1, mth(leaves[: i + 1])
        proof = merkle.consistency_proof(hash_of, old, size)
        assert list(proof) == subproof(old, leaves, True)
        assert merkle.verify_consistency(old, old_root, size, root, proof)


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 40), data=st.data())
def test_a_changed_proof_is_refused(size: int, data: st.DataObject) -> None:
    leaves = [bytes([i]) for i in range(size)]
    root, i = mth(leaves), data.draw(st.integers(0, size - 1))
    inclusion = merkle.inclusion_proof(ranges(leaves), i, size)
    old, old_root = i + 1, mth(leaves[: i + 1])
    consistency = merkle.consistency_proof(ranges(leaves), old, size)
    leaf, junk = merkle.leaf_hash(leaves[i]), data.draw(st.binary(min_size=32, max_size=32))

    def mutations(proof: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
        at = data.draw(st.integers(0, max(len(proof) - 1, 0)))
        longer = [(*proof, junk), (junk, *proof)]
        shorter = [proof[:at] + proof[at + 1 :], (*proof[:at], junk, *proof[at + 1 :])]
        return longer + (shorter if proof else [])

    for wrong in mutations(inclusion):
        assert not merkle.verify_inclusion(leaf, i, size, root, wrong)
    for wrong in mutations(consistency):
        assert not merkle.verify_consistency(old, old_root, size, root, wrong)
    assert not merkle.verify_inclusion(junk, i, size, root, inclusion)
    assert not merkle.verify_inclusion(leaf, i, size, junk, inclusion)
    assert not merkle.verify_inclusion(leaf, size, size, root, inclusion)
    assert not merkle.verify_inclusion(leaf, -1, size, root, inclusion)
    assert not merkle.verify_consistency(old, junk, size, root, consistency)
    assert not merkle.verify_consistency(old, old_root, size, junk, consistency)
    assert not merkle.verify_consistency(size + 1, old_root, size, root, consistency)


def test_the_empty_tree() -> None:
    assert merkle.verify_consistency(0, merkle.EMPTY_ROOT, 5, b"any root", ())
    assert not merkle.verify_consistency(0, bytes(32), 5, b"any root", ())
    assert not merkle.verify_consistency(0, merkle.EMPTY_ROOT, 5, b"any root", (bytes(32),))
    with pytest.raises(ValueError, match="no leaf 0"):
        merkle.inclusion_proof(ranges([]), 0, 0)
    with pytest.raises(ValueError, match="cannot be the beginning"):
        merkle.consistency_proof(ranges(INPUTS), 9, 8)
