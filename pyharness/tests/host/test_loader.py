from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyharness.errors import GateRefusal
from pyharness.files import sha256_file
from pyharness.host import loader
from pyharness.tests.stubs import SOURCE, Sealed, sealed, stub
from pyharness.values import Digest

ROOT = SOURCE.parents[3]


def test_the_bytes_are_hashed_wherever_the_offset_is() -> None:
    with sealed(stub()) as library:
        for offset in (0, 5, library.size_bytes):
            os.lseek(library.fd, offset, os.SEEK_SET)
            loader.verify(library.fd, library.digest, library.size_bytes)
            assert os.lseek(library.fd, 0, os.SEEK_CUR) == offset


def test_one_other_byte_is_refused_with_both_digests(tmp_path: Path) -> None:
    data = bytearray(stub().read_bytes())
    data[-1] ^= 1
    (tmp_path / "other.so").write_bytes(data)
    expected = sha256_file(stub())[0]
    with (
        sealed(tmp_path / "other.so") as library,
        pytest.raises(GateRefusal, match=f"has {library.digest}, expected {expected}; nothing"),
    ):
        loader.verify(library.fd, expected, library.size_bytes)


def test_another_size_is_refused() -> None:
    with sealed(stub()) as library, pytest.raises(GateRefusal, match="bytes, expected 5"):
        loader.verify(library.fd, library.digest, 5)


def test_an_empty_library_is_refused_by_name(tmp_path: Path) -> None:
    fd = os.memfd_create("empty")
    try:
        with pytest.raises(GateRefusal, match="is empty"):
            loader.verify(fd, Digest("1" * 64), 0)
    finally:
        os.close(fd)


def test_a_closed_descriptor_is_refused() -> None:
    with pytest.raises(GateRefusal, match="cannot read the library"):
        loader.verify(9999, Digest("1" * 64), 0)


def in_a_process(library: Sealed, code: str) -> str:
    """Output of code in which ``first()`` loads the library; a process holds one library only."""
    setup = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pyharness.errors import HarnessError
from pyharness.host import loader
from pyharness.values import Digest
def first():
    return loader.load({library.fd}, Digest({library.digest.hex!r}), {library.size_bytes})
try:
    {code}
except HarnessError as e:
    print(type(e).__name__, e)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", setup], capture_output=True, text=True, pass_fds=(library.fd,)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_descriptors_file_is_what_is_mapped() -> None:
    with sealed(stub()) as library:
        assert "memfd:stub" in in_a_process(library, "print(first().mapped)")


def test_code_that_was_changed_in_memory_is_not_the_files() -> None:
    change = """
    import ctypes
    loaded = first()
    at = ctypes.cast(loaded.library.vcuda_abi_version, ctypes.c_void_p).value
    page = at & ~4095
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), 8192, 7) == 0
    ctypes.memset(at, 0xC3, 1)
    print(loader.mapped_file(%d))
"""
    with sealed(stub()) as library:
        said = in_a_process(library, change % library.fd)
    assert said.startswith("LibraryFailure the code in memory is not that of the library's file")


def test_a_library_that_was_loaded_works() -> None:
    with sealed(stub()) as library:
        assert in_a_process(library, "print(first().library.vcuda_abi_version())") == "1"


def test_a_second_library_in_one_process_is_refused() -> None:
    with sealed(stub()) as library:
        said = in_a_process(library, "first(); first()")
    assert said.startswith("LibraryFailure this process holds library")


def test_a_library_whose_needs_are_not_met_is_one_line(tmp_path: Path) -> None:
    inner = tmp_path / "libinner.so"
    inner.write_bytes(stub().read_bytes())
    outer = stub(flags=("-Wl,--no-as-needed", str(inner)))
    inner.unlink()
    with sealed(outer) as library:
        said = in_a_process(library, "first()")
    assert said.startswith("LibraryFailure cannot load: ")
    assert "cannot open shared object file" in said
    assert len(said.splitlines()) == 1


def test_bytes_that_are_no_library_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library\n")
    with sealed(tmp_path / "text.so") as library:
        said = in_a_process(library, "first()")
    name = f"library {library.digest.short}"
    assert said.startswith(f"LibraryFailure {name} is not a usable shared library: it does not")


def test_an_undefined_symbol_fails_at_load_and_not_at_the_call() -> None:
    source = stub("unstable", flags=("-Dgetpid=nobody_defines_this",))
    with sealed(source) as library:
        assert "undefined symbol: nobody_defines_this" in in_a_process(library, "first()")
