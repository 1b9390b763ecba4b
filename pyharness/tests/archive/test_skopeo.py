"""An independent tool reads the archive: skopeo finds tags, copies libraries and notices a changed
byte.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pyharness.archive import layout
from pyharness.errors import GateRefusal
from pyharness.gate import open_baseline
from pyharness.tests.archive.samples import Site, small, write

pytestmark = pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small(tmp_path)


def skopeo(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["skopeo", *arguments], capture_output=True, timeout=60)


def copy(site: Site, tag: str) -> subprocess.CompletedProcess[bytes]:
    target = f"oci:{site.root / 'copy'}:{tag}"
    return skopeo("copy", "--preserve-digests", f"oci:{site.archive}:{tag}", target)


@pytest.mark.parametrize("tag", ["v0", "v1", "v2", "accepted"])
def test_a_tag_gives_the_manifest_that_the_log_names(site: Site, tag: str) -> None:
    entries = site.snapshot().entries
    entry = entries[4] if tag == "accepted" else next(e for e in entries if e.label == tag)
    shown = skopeo("inspect", "--raw", f"oci:{site.archive}:{tag}")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == (site.archive / layout.blob_path(entry.manifest)).read_bytes()
    assert json.loads(shown.stdout)["layers"][0]["digest"] == str(entry.library)


@pytest.mark.parametrize("tag", ["v2", "accepted"])
def test_a_copy_has_the_same_bytes(site: Site, tag: str) -> None:
    done = copy(site, tag)
    assert done.returncode == 0, done.stderr
    copied = sorted((site.root / "copy/blobs/sha256").iterdir())
    assert len(copied) == (4 if tag == "accepted" else 3)
    for path in copied:
        assert path.read_bytes() == (site.archive / "blobs/sha256" / path.name).read_bytes()


@pytest.mark.parametrize("part", ["library", "record"])
def test_a_changed_byte_makes_the_copy_fail(site: Site, part: str) -> None:
    entry = site.snapshot().entries[4]
    path = site.archive / layout.blob_path(getattr(entry, part))
    data = bytearray(path.read_bytes())
    data[100 % len(data)] ^= 1
    write(path, bytes(data))
    failed = copy(site, "accepted")
    assert failed.returncode != 0
    assert b"igest did not match" in failed.stderr, failed.stderr


def test_what_skopeo_lets_through_the_gate_does_not(site: Site) -> None:
    """skopeo 1.9 hashes what a manifest names, but not the manifest that a tag leads to."""
    path = site.archive / layout.blob_path(site.snapshot().entries[4].manifest)
    write(path, path.read_bytes().replace(b'"same"', b'"some"'))
    assert copy(site, "accepted").returncode in (0, 1)
    with pytest.raises(GateRefusal, match=f"{path.name}: expected sha256:{path.name}, found"):
        open_baseline(site.archive, site.pin)
