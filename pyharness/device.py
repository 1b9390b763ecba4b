"""What the machine says of itself while times are taken: the CPU from /proc and /sys, an NVIDIA GPU
from NVML where the driver's library is there. Nothing here needs a GPU, and nothing changes one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterator
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyharness.errors import LibraryFailure

NVML, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
# nvmlClocksEventReasons: why a clock is where it is.
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
THROTTLED = 0x8 | 0x20 | 0x40 | 0x80  # the device protects itself: such a time is not its own speed
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_MHZ = re.compile(r"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)


# ---- CPU -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CpuState:
    """At one moment. None: this system does not say."""

    load: tuple[float, ...]  # of 1, 5 and 15 minutes
    mhz: tuple[float, ...]  # of each core
    governor: str | None
    steal_s: float | None  # since boot: time that the hypervisor gave to somebody else


def cpu_state(root: Path = Path("/")) -> CpuState:
    """``root``: of /proc and /sys."""
    load: tuple[float, ...] = ()
    with contextlib.suppress(ValueError):
        load = tuple(float(x) for x in _text(root / "proc/loadavg").split()[:3])
    scaling = root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    mhz = _MHZ.findall(_text(root / "proc/cpuinfo"))
    return CpuState(load, tuple(map(float, mhz)), _text(scaling).strip() or None, _steal(root))


def _steal(root: Path) -> float | None:
    fields = _text(root / "proc/stat").partition("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# ---- GPU -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuState:
    """At one moment. None: this device or driver does not say."""

    sm_mhz: int | None
    memory_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    reasons: tuple[str, ...] | None
    throttled: bool


class Gpu:
    """One device, read only. Close it, or use it in a ``with``."""

    def __init__(self, nvml: ctypes.CDLL, handle: c_void_p) -> None:
        self._nvml, self._handle = nvml, handle

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def facts(self) -> dict[str, Any]:
        """What stays the same during a run."""
        return {
            "name": self._string("nvmlDeviceGetName"),
            "uuid": self._string("nvmlDeviceGetUUID"),
            "driver": self._driver(),
            "max_sm_mhz": self._number("nvmlDeviceGetMaxClockInfo", _SM),
            "max_memory_mhz": self._number("nvmlDeviceGetMaxClockInfo", _MEMORY),
            "power_limit_w": _thousandth(self._number("nvmlDeviceGetEnforcedPowerLimit")),
        }

    def state(self) -> GpuState:
        bits = self._reasons()
        return GpuState(
            sm_mhz=self._number("nvmlDeviceGetClockInfo", _SM),
            memory_mhz=self._number("nvmlDeviceGetClockInfo", _MEMORY),
            temperature_c=self._number("nvmlDeviceGetTemperature", 0),
            power_w=_thousandth(self._number("nvmlDeviceGetPowerUsage")),
            reasons=None
            if bits is None
            else tuple(name for bit, name in REASONS.items() if bits & bit),
            throttled=bool((bits or 0) & THROTTLED),
        )

    def compute_processes(self) -> int | None:
        """How many processes compute on the device. Their numbers may be those of another
        namespace, so only the count is of use.
        """
        function = self._function("nvmlDeviceGetComputeRunningProcesses_v3")
        count = c_uint(0)
        if function is None or function(self._handle, byref(count), None) not in (0, _TOO_SMALL):
            return None
        return count.value

    # ---- calls -----------------------------------------------------------------------------------

    def _function(self, name: str) -> Callable[..., int] | None:
        """None where this driver has no such entry."""
        return getattr(self._nvml, name, None)

    def _number(self, name: str, *arguments: int) -> int | None:
        value, function = c_uint(), self._function(name)
        if function is None or function(self._handle, *map(c_uint, arguments), byref(value)):
            return None
        return value.value

    def _reasons(self) -> int | None:
        for name in ("nvmlDeviceGetCurrentClocksEventReasons",
                     "nvmlDeviceGetCurrentClocksThrottleReasons"):  # fmt: skip
            value, function = c_ulonglong(), self._function(name)
            if function is not None and not function(self._handle, byref(value)):
                return value.value
        return None

    def _string(self, name: str) -> str | None:
        text, function = ctypes.create_string_buffer(96), self._function(name)
        if function is None or function(self._handle, text, c_uint(len(text))):
            return None
        return text.value.decode("utf-8", "replace")

    def _driver(self) -> str | None:
        text, function = ctypes.create_string_buffer(96), self._function(
            "nvmlSystemGetDriverVersion"
        )  # fmt: skip
        if function is None or function(text, c_uint(len(text))):
            return None
        return text.value.decode("utf-8", "replace")


@contextlib.contextmanager
def open_gpu(visible: str = "", library: str = NVML) -> Iterator[Gpu | None]:
    """The device that a worker uses under CUDA_VISIBLE_DEVICES, in the order of the PCI bus; None
    where there is no driver, or no such device.
    """
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2():
            raise OSError
    except (OSError, AttributeError):
        yield None
        return
    handle = c_void_p()
    first = visible.split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        failed = nvml.nvmlDeviceGetHandleByUUID(c_char_p(first.encode()), byref(handle))
    elif first == "" or first.isdecimal():
        failed = nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(int(first or 0)), byref(handle))
    else:
        failed = 1
    if failed:
        nvml.nvmlShutdown()
        yield None
        return
    with Gpu(nvml, handle) as gpu:
        yield gpu


def missing(backend: str) -> str:
    """Why no library of this backend can run here, "" where one can."""
    if backend != "cuda":
        return ""
    with open_gpu(os.environ.get("CUDA_VISIBLE_DEVICES", "")) as gpu:
        if gpu is not None:
            return ""
    if not _loads(NVML) and _loads(CUDA):
        return ""  # containers may hold a driver without NVML: the library itself will say
    driver = Path("/proc/driver/nvidia/version").exists()
    why = "a driver, but no device is visible" if driver else "no NVIDIA driver"
    return f"{why}: no CUDA library can run here"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def require(backend: str, name: str) -> None:
    """LibraryFailure, in place of one from each run, for a library of a device that is not here."""
    if why := missing(backend):
        raise LibraryFailure(f"{name}: {why}")


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
