"""Eviction of caches; the CUDA driver is one that notes its calls."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from pyharness.errors import LibraryFailure
from pyharness.speed import cold
from pyharness.tests.stubs import compiler

DRIVER = r"""
#include <stddef.h>
typedef unsigned long long P;
static int depth;
int memsets, outside, words;
int cuInit(unsigned flags) { return FAIL; }
int cuDeviceGet(int *device, int index) { *device = 7 + index; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int device) { *c = (void *)0x1000UL; return device != 7; }
int cuCtxPushCurrent_v2(void *c) { depth++; return c != (void *)0x1000UL; }
int cuCtxPopCurrent_v2(void **c) { depth--; return 0; }
int cuCtxSynchronize(void) { outside += depth != 1; return 0; }
int cuMemAlloc_v2(P *p, size_t n) { *p = 0x7f0000000000ULL; return n == 0; }
#ifndef OLD
int cuMemsetD32_v2(P p, unsigned word, size_t n) {
  memsets++;
  outside += depth != 1;
  words += p == 0x7f0000000000ULL && n == 64u << 20;
  return 0;
}
#endif
int balance(void) { return depth; }
"""


def driver(folder: Path, *flags: str) -> str:
    (folder / "cuda.c").write_text(DRIVER)
    made = str(folder / "libcuda.so")
    command = [compiler(), "-shared", "-fPIC", *(flags or ("-DFAIL=0",)), "-o", made]
    subprocess.run([*command, str(folder / "cuda.c")], check=True)
    return made


def test_a_device_is_swept_inside_its_context(tmp_path: Path) -> None:
    path = driver(tmp_path)
    evict = cold.evictor("cuda", path)
    for _ in range(3):
        evict()
    seen = ctypes.CDLL(path)
    counters = [ctypes.c_int.in_dll(seen, name).value for name in ("memsets", "words", "outside")]
    assert counters == [3, 3, 0] and seen.balance() == 0


def test_a_device_that_cannot_be_swept_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LibraryFailure, match="no CUDA driver"):
        cold.evictor("cuda", str(tmp_path / "libcuda.so"))
    with pytest.raises(LibraryFailure, match="cuInit gives 100"):
        cold.evictor("cuda", driver(tmp_path, "-DFAIL=100"))


def test_an_entry_that_the_driver_lacks(tmp_path: Path) -> None:
    evict = cold.evictor("cuda", driver(tmp_path, "-DFAIL=0", "-DOLD"))
    with pytest.raises(LibraryFailure, match="lacks cuMemsetD32_v2"):
        evict()


def test_the_size_of_the_caches(tmp_path: Path) -> None:
    size = tmp_path / "size"
    assert cold.host_bytes(size) == 256 << 20  # nothing there
    for text, found in (("32768K\n", 64 << 20), ("1K", 8 << 20), ("lots", 256 << 20)):
        size.write_text(text)
        assert cold.host_bytes(size) == found


def test_the_caches_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "host_bytes", lambda: 4096)
    evict = cold.evictor("cpu")
    evict()
    evict()
    assert isinstance(evict, cold.HostEvictor)
    assert evict._bytes[::64].tolist() == [2] * 64 and evict._bytes.sum() == 2 * 64
