"""Reading an archive's directory without ever following a symbolic link out of it.

Files are opened relative to the archive's own descriptor, each part of the path with
``O_NOFOLLOW``, and read through the descriptor that was opened: nothing is checked under one name
and used under another. Whatever fails is a GateRefusal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pyharness.errors import GateRefusal, InputError
from pyharness.files import open_regular, read_descriptor, sha256_file
from pyharness.values import Digest

DEEPEST = 16  # folders within folders; a log of 2**40 entries has 8
_NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL)


class Tree:
    """An archive's directory, held open and locked."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._folders = {"": fd}  # open directories by relative path

    def foreign(self, relative: str, kind: str = "this file") -> GateRefusal:
        """Whoever put it there chose its name: nothing of it may reach a terminal as it is."""
        name = str(self.path / relative).encode("unicode_escape").decode()
        return GateRefusal(
            f"{name}: {kind} has no place in an archive: remove it, or restore the archive"
        )

    def close(self) -> None:
        for fd in self._folders.values():
            os.close(fd)
        self._folders.clear()

    def open(self, relative: str) -> int:
        """A descriptor for reading a regular file of the archive."""
        folder, _, name = relative.rpartition("/")
        try:
            return open_regular(name, follow=False, dir_fd=self._folder(folder))
        except InputError as e:
            reason = str(e).removeprefix(f"{name}: ")
            raise GateRefusal(f"{self.path / relative}: {reason}") from None

    def read(self, relative: str) -> bytes:
        fd = self.open(relative)
        try:
            return read_descriptor(fd, str(self.path / relative))
        except InputError as e:
            raise GateRefusal(str(e)) from None
        finally:
            os.close(fd)

    def sha256(self, relative: str) -> tuple[Digest, int]:
        """Digest and size of a file of the archive; an empty one is refused."""
        fd = self.open(relative)
        try:
            return sha256_file(fd)
        except InputError as e:
            reason = str(e).partition(": ")[2]
            raise GateRefusal(f"{self.path / relative}: {reason}") from None
        finally:
            os.close(fd)

    def files(self) -> dict[str, os.stat_result]:
        """Every file by its relative path. Anything but regular files and directories is
        refused.
        """
        found: dict[str, os.stat_result] = {}
        for folder, folders, names, fd in os.fwalk(
            ".", dir_fd=self._folders[""], onerror=self._refuse
        ):
            if folder.count("/") > DEEPEST:  # before the walk comes to the end of its stack
                raise self.foreign(folder, "this folder")
            for name in (*folders, *names):
                relative = os.path.normpath(os.path.join(folder, name))
                try:
                    info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except OSError as e:
                    raise GateRefusal(f"{self.path / relative}: {e.strerror}") from None
                if stat.S_ISREG(info.st_mode):
                    found[relative] = info
                elif not stat.S_ISDIR(info.st_mode):
                    kind = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "a special file"
                    raise self.foreign(relative, kind)
        return found

    def _folder(self, relative: str) -> int:
        if relative not in self._folders:
            parent, _, name = relative.rpartition("/")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._folders[relative] = os.open(name, flags, dir_fd=self._folder(parent))
            except OSError as e:
                reason = e.strerror if e.errno == errno.ENOENT else "is not a directory"
                raise GateRefusal(f"{self.path / relative}: {reason}") from None
        return self._folders[relative]

    def _refuse(self, error: OSError) -> None:
        raise GateRefusal(f"{self.path / str(error.filename)}: {error.strerror}") from None


@contextlib.contextmanager
def locked(archive: Path, *, exclusive: bool) -> Iterator[Tree]:
    """The archive, with a lock on its directory: readers together, a writer alone. GateRefusal if
    it is no directory.
    """
    try:
        fd = os.open(archive, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise GateRefusal(f"{archive}: {e.strerror}") from None
    tree = Tree(archive, fd)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except OSError as e:
            # Without locks a reader may meet an add half-way: it then refuses, it never passes.
            if exclusive or e.errno not in _NO_LOCKS_HERE:
                raise InputError(f"{archive}: cannot be locked: {e.strerror}") from None
        yield tree
    finally:
        tree.close()
