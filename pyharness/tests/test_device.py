"""What is read of the machine, from a folder and a driver made for the test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pyharness import device
from pyharness.device import cpu_state, open_gpu
from pyharness.tests.stubs import compiler

# NVML of one device; REASONS are its clock event reasons.
DRIVER = r"""
#include <string.h>
typedef void *D;
typedef unsigned U;
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(U i, D *out) { *out = (D)1L; return i > 0 ? 2 : 0; }
int nvmlDeviceGetHandleByUUID(const char *u, D *out) { *out = (D)1L; return strcmp(u, "GPU-1"); }
int nvmlDeviceGetName(D d, char *s, U n) { strncpy(s, "Test GPU", n); return 0; }
int nvmlSystemGetDriverVersion(char *s, U n) { strncpy(s, "600.1", n); return 0; }
int nvmlDeviceGetClockInfo(D d, int type, U *v) { *v = type == 1 ? 1980 : 3201; return 0; }
int nvmlDeviceGetTemperature(D d, int sensor, U *v) { *v = 41; return sensor; }
int nvmlDeviceGetPowerUsage(D d, U *v) { *v = 123456; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(D d, U *v) { return 3; }
int REASONS_NAME(D d, unsigned long long *v) { *v = REASONS; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(D d, U *n, void *p) { *n = 3; return p ? 1 : 7; }
"""


def driver(folder: Path, reasons: int = 0, name: str = "EventReasons", init: int = 0) -> str:
    (folder / "nvml.c").write_text(DRIVER)
    made = folder / "libnvml.so"
    flags = (
        f"-DREASONS={reasons}",
        f"-DREASONS_NAME=nvmlDeviceGetCurrentClocks{name}",
        f"-DINIT={init}",
    )
    command = [compiler(), "-shared", "-fPIC", *flags, str(folder / "nvml.c"), "-o", str(made)]
    subprocess.run(command, check=True)
    return str(made)


def test_a_gpu_tells(tmp_path: Path) -> None:
    with open_gpu("", driver(tmp_path, reasons=0x4 | 0x40)) as gpu:
        assert gpu is not None
        state = gpu.state()
        assert (state.sm_mhz, state.memory_mhz, state.temperature_c) == (1980, 3201, 41)
        assert state.power_w == pytest.approx(123.456)
        assert state.reasons == ("software power cap", "hardware thermal slowdown")
        assert state.throttled
        assert gpu.facts() == {
            "name": "Test GPU",
            "uuid": None,  # an entry that this driver lacks
            "driver": "600.1",
            "max_sm_mhz": None,
            "max_memory_mhz": None,
            "power_limit_w": None,  # an entry that fails
        }
        assert gpu.compute_processes() == 3


def test_a_power_cap_is_told_and_is_no_throttling(tmp_path: Path) -> None:
    with open_gpu("GPU-1", driver(tmp_path, 0x4, name="ThrottleReasons")) as gpu:  # an old driver
        assert gpu is not None and gpu.state().reasons == ("software power cap",)
        assert not gpu.state().throttled


@pytest.mark.parametrize("visible", ["1", "GPU-2", "-1", "nonsense", "\u00b2"])
def test_a_device_that_is_not_there(tmp_path: Path, visible: str) -> None:
    with open_gpu(visible, driver(tmp_path)) as gpu:
        assert gpu is None


def test_no_driver(tmp_path: Path) -> None:
    with open_gpu("", str(tmp_path / "libnvml.so")) as gpu:
        assert gpu is None
    with open_gpu("", driver(tmp_path, init=9)) as gpu:  # a driver that does not start
        assert gpu is None


def test_every_reason_that_spoils_a_time_has_a_name() -> None:
    named = sum(device.REASONS)
    assert device.THROTTLED & ~named == 0
    spoiling = {name for bit, name in device.REASONS.items() if bit & device.THROTTLED}
    assert all("slowdown" in name or "brake" in name for name in spoiling) and len(spoiling) == 4


def test_a_cpu_tells(tmp_path: Path) -> None:
    governor = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("performance\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("0.50 1.25 2.00 1/200 4242\n")
    (tmp_path / "proc/cpuinfo").write_text("cpu MHz\t\t: 2400.5\nflags: x\ncpu MHz : 3000\n")
    (tmp_path / "proc/stat").write_text("cpu  1 2 3 4 5 6 7 250 0 0\ncpu0 1 2 3\n")
    state = cpu_state(tmp_path)
    assert state.load == (0.5, 1.25, 2.0) and state.mhz == (2400.5, 3000.0)
    assert state.governor == "performance" and state.steal_s is not None and state.steal_s > 0


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert cpu_state(tmp_path) == device.CpuState((), (), None, None)
    assert cpu_state().load  # of this machine: Linux says it
