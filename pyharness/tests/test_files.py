"""Writes that are whole or not at all; digests of what is really there."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from pyharness import files
from pyharness.errors import GateRefusal, InputError


def test_a_descriptor_is_hashed_from_its_beginning_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("w+b") as file:
        file.write(b"abc")
        file.flush()
        assert file.tell() == 3
        digest, size = files.sha256_file(file.fileno())
        assert file.tell() == 3
    assert (digest.hex, size) == (hashlib.sha256(b"abc").hexdigest(), 3)
    assert files.sha256_file(path) == files.sha256_file(str(path)) == (digest, size)


@pytest.mark.parametrize("size", [1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_001])
def test_digests_of_every_size(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    digest, counted = files.sha256_file(tmp_path / "f")
    assert (digest.hex, counted) == (hashlib.sha256(data).hexdigest(), size)
    assert files.sha256_bytes(data) == digest


def test_no_bytes_have_no_digest(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(InputError, match="f: the file is empty"):
        files.sha256_file(tmp_path / "f")
    with pytest.raises(ValueError, match="no bytes at all"):
        files.sha256_bytes(b"")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"x")
    for name, message in [("pipe", "not a regular file"), ("", "not a regular"), ("no", "No such")]:
        with pytest.raises(InputError, match=message):
            files.read_regular(tmp_path / name)
    assert files.read_regular(tmp_path / "link") == b"x"
    with pytest.raises(InputError, match="is a symbolic link"):
        files.read_regular(tmp_path / "link", follow=False)


def test_an_atomic_write_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for data in (b"one", b"", b"three"):
        files.write_atomically(path, data)
        assert path.read_bytes() == data
        assert os.listdir(tmp_path) == ["f"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    files.write_atomically(path, b"four", mode=0o444)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    files.write_atomically(tmp_path / "f", b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(InputError, match="f: cannot be written: No space left on device"):
        files.write_atomically(tmp_path / "f", b"new")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"old"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:3])))
    files.write_atomically(tmp_path / "f", b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"0123456789"


def test_what_is_published_stays(tmp_path: Path) -> None:
    path = tmp_path / "f"
    files.publish_once(path, b"one")
    before = path.stat()
    files.publish_once(path, b"one")
    assert (path.stat().st_ino, path.stat().st_nlink) == (before.st_ino, 1)
    assert stat.S_IMODE(before.st_mode) == 0o444
    one, two = (hashlib.sha256(data).hexdigest() for data in (b"one", b"two"))
    with pytest.raises(GateRefusal, match=f"expected sha256:{two}, found sha256:{one}"):
        files.publish_once(path, b"two")
    assert os.listdir(tmp_path) == ["f"] and path.read_bytes() == b"one"


def test_nothing_is_published_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"one")
    (tmp_path / "f").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GateRefusal, match="is a symbolic link"):
        files.publish_once(tmp_path / "f", b"one")


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    files.make_directory(tmp_path / "a/b/c")
    files.make_directory(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: cannot be made: File exists"):
        files.make_directory(tmp_path / "file/x")


def test_removing(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    files.remove(tmp_path / "f")
    assert os.listdir(tmp_path) == []
    with pytest.raises(InputError, match="f: cannot be removed"):
        files.remove(tmp_path / "f")
