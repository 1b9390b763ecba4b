"""Evicts what a warm worker left in the caches, so that each timed call reads its weights from
memory: of the CPU by writing, of a CUDA device by a memset through the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from pyharness.errors import LibraryFailure

DRIVER = "libcuda.so.1"
DEVICE_BYTES = 256 << 20  # more than the L2 of any device
LAST_LEVEL = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_LINE = 64


def host_bytes(last_level: Path = LAST_LEVEL) -> int:
    """Twice the last cache of the CPU; 256 MB where the system does not say."""
    try:
        kilobytes = int(last_level.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return 256 << 20
    return max(8 << 20, 2 * kilobytes << 10)


def evictor(backend: str, driver: str = DRIVER) -> Callable[[], None]:
    """What to call before each timed call of a library with this backend."""
    return DeviceEvictor(driver) if backend == "cuda" else HostEvictor()


class HostEvictor:
    """Writes one byte of each line of more memory than the caches hold."""

    def __init__(self) -> None:
        self._bytes = np.zeros(host_bytes(), np.uint8)

    def __call__(self) -> None:
        self._bytes[::_LINE] += 1


class DeviceEvictor:
    """Fills device memory in the primary context, which the library's runtime uses too."""

    def __init__(self, driver: str) -> None:
        try:
            self._driver = ctypes.CDLL(driver)
        except OSError as e:
            raise LibraryFailure(f"--cold: no CUDA driver: {e}") from None
        self._context, self._memory = c_void_p(), c_uint64()
        self._call("cuInit", c_uint(0))
        device = c_int()
        self._call("cuDeviceGet", byref(device), c_int(0))
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), device)
        self._inside("cuMemAlloc_v2", byref(self._memory), c_size_t(DEVICE_BYTES))
        self._word = 0

    def __call__(self) -> None:
        self._word += 1
        self._inside(
            "cuMemsetD32_v2", self._memory, c_uint(self._word), c_size_t(DEVICE_BYTES // 4)
        )

    def _inside(self, name: str, *arguments: object) -> None:
        """In the context, and finished there; this thread's own context stays what it was."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            self._call(name, *arguments)
            self._call("cuCtxSynchronize")
        finally:
            self._driver.cuCtxPopCurrent_v2(byref(c_void_p()))

    def _call(self, name: str, *arguments: object) -> None:
        try:
            status = int(getattr(self._driver, name)(*arguments))
        except AttributeError:
            raise LibraryFailure(f"--cold: the CUDA driver lacks {name}") from None
        if status:
            raise LibraryFailure(f"--cold: {name} gives {status}")
