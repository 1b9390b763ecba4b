"""Each backend has a baseline of its own: a CUDA library never becomes that of a CPU run, nor the
other way round.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pyharness.archive import Appended, accept, add, entries, layout, verify
from pyharness.errors import GateRefusal, InputError, NothingProved, UsageError
from pyharness.files import sha256_bytes
from pyharness.gate import open_baseline, open_candidate, open_record
from pyharness.tests.archive.samples import Site, elf, record_of, write
from pyharness.values import Digest, LibraryFacts

DEVICE_CODE = b"\0.nv_fatbin\0"  # as in the table of section names


def digest_of(seed: int, tail: bytes = b"") -> Digest:
    return sha256_bytes(elf(seed) + tail)


def put(site: Site, seed: int, label: str, backend: str = "", tail: bytes = b"") -> Appended:
    """``backend``: what the library said of itself; "": nobody asked it."""
    path = site.root / f"{label}.so"
    path.write_bytes(elf(seed) + tail)
    facts = LibraryFacts(digest_of(seed, tail), 300, 1, {"backend": backend}, (), ())
    return add(site.archive, site.pin, path, label=label, why="x", facts=facts if backend else None)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two CPU libraries, the first of them accepted, and after them a CUDA one."""
    site = Site(tmp_path)
    put(site, 0, "cpu-0", "cpu")
    put(site, 1, "cpu-1")
    accepted(site, digest_of(0))
    put(site, 2, "cuda-2", "cuda")
    return site


def accepted(site: Site, digest: Digest, compared: Digest | None = None, note: str = "") -> bool:
    record = record_of(digest, note)
    made = accept(site.archive, site.pin, digest, record=record, why="x", compared=compared)
    return made.added


def baseline(site: Site, backend: str, reference: str = "") -> str:
    with open_baseline(site.archive, site.pin, reference, backend) as library:
        return f"{library.label} {library.backend}"


def tags(site: Site) -> dict[str, str]:
    index = json.loads((site.archive / "index.json").read_bytes())
    named = [m for m in index["manifests"] if "annotations" in m]
    return {m["annotations"][layout.REF_NAME]: m["digest"] for m in named}


def test_the_newest_of_a_backend_is_its_baseline(site: Site) -> None:
    assert (baseline(site, "cpu"), baseline(site, "cuda")) == ("cpu-0 cpu", "cuda-2 cuda")
    assert verify(site.archive, site.pin).baselines == {"cpu": digest_of(0), "cuda": digest_of(2)}
    accepted(site, digest_of(2))  # the last acceptance of all, and no CPU baseline
    assert (baseline(site, "cpu"), baseline(site, "cuda")) == ("cpu-0 cpu", "cuda-2 cuda")
    put(site, 3, "cuda-3", "cuda")
    put(site, 4, "cpu-4", "cpu")
    assert (baseline(site, "cpu"), baseline(site, "cuda")) == ("cpu-0 cpu", "cuda-2 cuda")
    accepted(site, digest_of(3))
    assert (baseline(site, "cpu"), baseline(site, "cuda")) == ("cpu-0 cpu", "cuda-3 cuda")
    assert [(x.label, x.baseline) for x in entries(site.archive, site.pin)] == [
        ("cpu-0", True), ("cpu-1", False), ("cuda-2", False), ("cuda-3", True), ("cpu-4", False),
    ]  # fmt: skip


def test_a_name_leads_to_a_library_of_any_backend(site: Site) -> None:
    assert baseline(site, "cpu", "cuda-2") == "cuda-2 cuda"
    assert baseline(site, "cuda", str(digest_of(1))) == "cpu-1 cpu"


def test_the_accepted_ones_have_a_tag_each(site: Site) -> None:
    with pytest.raises(UsageError, match="no library was accepted yet"):
        baseline(site, "cuda", "accepted")
    assert set(tags(site)) == {"cpu-0", "cpu-1", "cuda-2", "accepted"}
    before = tags(site)["accepted"]
    accepted(site, digest_of(2))
    assert tags(site)["accepted"] == before != tags(site)["accepted-cuda"]
    assert baseline(site, "cpu", "accepted") == "cpu-0 cpu"
    assert baseline(site, "cuda", "accepted") == "cuda-2 cuda"
    assert baseline(site, "cpu", "accepted-cuda") == "cuda-2 cuda"
    for label in ("accepted", "accepted-cuda"):
        with pytest.raises(InputError, match="is reserved"):
            put(site, 7, label)


def test_an_archive_without_one_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    put(site, 0, "cpu-0", "cpu")
    with pytest.raises(InputError, match="holds no cuda library yet; add a library with"):
        baseline(site, "cuda")
    assert verify(site.archive, site.pin).baselines == {"cpu": digest_of(0)}


def test_a_library_that_nobody_asked_is_known_by_its_device_code(site: Site) -> None:
    put(site, 5, "cuda-5", tail=DEVICE_CODE)
    assert baseline(site, "cuda") == "cuda-5 cuda"
    assert entries(site.archive, site.pin)[-1].backend == "cuda"
    path = site.root / "candidate.so"
    for tail, backend in ((b"", "cpu"), (DEVICE_CODE, "cuda"), (b".nv_fatbin", "cpu")):
        path.write_bytes(elf(6) + tail)
        with open_candidate(path) as library:
            assert library.backend == backend


def test_a_backend_of_another_name_runs_on_the_host(site: Site) -> None:
    put(site, 5, "own-5", "neon")
    assert (baseline(site, "cpu", "own-5"), baseline(site, "cuda")) == ("own-5 cpu", "cuda-2 cuda")


def test_changes_of_size_are_within_a_backend(site: Site) -> None:
    put(site, 5, "cuda-5", tail=DEVICE_CODE)
    changes = [x.change_bytes for x in entries(site.archive, site.pin)]
    assert changes == [None, 0, None, len(DEVICE_CODE)]


def test_the_last_of_each_backend_keeps_its_bytes(site: Site) -> None:
    accepted(site, digest_of(2))
    write(site.archive / layout.blob_path(digest_of(2)), elf(9))
    for backend in ("cpu", "cuda"):
        with pytest.raises(GateRefusal, match=f"expected {digest_of(2)}"):
            baseline(site, backend)


def test_a_run_across_backends_is_accepted(site: Site) -> None:
    """Against the present baseline of whichever backend; of an older one no longer."""
    assert accepted(site, digest_of(2), compared=digest_of(0))
    assert not accepted(site, digest_of(2), compared=digest_of(0), note="again")
    put(site, 3, "cuda-3", "cuda")
    now = f"compared with {digest_of(1)}, the baseline is {digest_of(0)} now"
    with pytest.raises(NothingProved, match=now):
        accepted(site, digest_of(3), compared=digest_of(1))
    assert accepted(site, digest_of(3), compared=digest_of(2))
    put(site, 4, "cuda-4", "cuda")
    now = f"compared with {digest_of(2)}, the baseline is {digest_of(3)} now"
    with pytest.raises(NothingProved, match=now):
        accepted(site, digest_of(4), compared=digest_of(2))
    assert accepted(site, digest_of(4), compared=digest_of(0))
    assert accepted(site, digest_of(1), compared=digest_of(4))  # a CPU library by a CUDA one
    assert (baseline(site, "cpu"), baseline(site, "cuda")) == ("cpu-1 cpu", "cuda-4 cuda")


def test_the_record_of_the_last_acceptance(site: Site) -> None:
    where = site.archive, site.pin
    entry, data = open_record(*where, "cpu-0", "cpu")
    assert (entry.kind, entry.label, data) == ("accepted", "cpu-0", record_of(digest_of(0)))
    with pytest.raises(NothingProved, match=f"no record of a run of {digest_of(2)}: accept one"):
        open_record(*where, "", "cuda")
    accepted(site, digest_of(2), note="first")
    accepted(site, digest_of(1))
    accepted(site, digest_of(0), note="second")
    assert open_record(*where, "", "cuda")[1] == record_of(digest_of(2), "first")
    entry, data = open_record(*where, "cpu-0", "cpu")
    assert data == record_of(digest_of(0), "second") and entry.record is not None
    write(site.archive / layout.blob_path(entry.record), data.replace(b"second", b"secind"))
    with pytest.raises(GateRefusal, match=f"expected {entry.record}, found sha256:.*restore it"):
        open_record(*where, "cpu-0", "cpu")


def test_a_record_beyond_the_pin_is_not_handed_out(site: Site) -> None:
    before = site.pin.read_bytes()
    accepted(site, digest_of(2))
    write(site.pin, before)
    with pytest.raises(GateRefusal, match="is entry 4, the pin covers 4"):
        open_record(site.archive, site.pin, "cuda-2", "cuda")


def test_a_manifest_cannot_move_a_library_to_another_backend(site: Site) -> None:
    """What it says is under the log's digest, like everything else."""
    snapshot = site.snapshot()
    index = snapshot.current("cuda")
    assert index is not None
    manifest = snapshot.manifests[index]
    said = dict(manifest.library.annotations) | {layout.BACKEND: "cpu"}
    moved = replace(
        manifest, library=replace(manifest.library, annotations=tuple(sorted(said.items())))
    )
    write(site.archive / layout.blob_path(snapshot.entries[index].manifest), moved.to_bytes())
    with pytest.raises(GateRefusal, match=f"expected {snapshot.entries[index].manifest}"):
        baseline(site, "cpu")
