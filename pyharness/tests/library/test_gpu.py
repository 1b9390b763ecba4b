"""native/tests/test_cuda.py: on a GPU for what it is, everywhere on the CPU library alone, which
must be equal to itself and must not pass for a device that fails.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyharness import device
from pyharness.tests.library.sessions import LIBRARY, ROOT

CUDA = ROOT / "build" / "cuda" / "libvllm_cuda.so"


def check(candidate: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "native/tests/test_cuda.py", str(LIBRARY), candidate, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bits", "graphs", "cuts", "memory"])
def test_cuda_equals_cpu(name: str) -> None:
    if not CUDA.exists():
        pytest.skip("no CUDA library; build it with `make cuda`")
    if why := device.missing("cuda"):
        pytest.skip(why)
    done = check(str(CUDA), "--checks", name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["bits", "graphs"])
def test_the_cpu_library_equals_itself(name: str) -> None:
    done = check(str(LIBRARY), "--checks", name, "--prefixes", "0,5", "--families", "hybrid")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: tiny hybrid: " in done.stdout and "steps equal in cpu, cuda" in done.stdout


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("memory", "allocations failed in {} only"),
        ("architecture", "a library without code for this device opened it"),
    ],
)
def test_a_device_that_never_fails_is_not_enough(name: str, told: str) -> None:
    done = check(str(LIBRARY), "--checks", name, "--families", "hybrid")
    assert done.returncode == 1
    assert done.stdout.startswith(f"DIFFERS {name}: tiny hybrid: ") and told in done.stdout


def test_a_difference_is_named() -> None:
    script = (
        "import sys; sys.path.insert(0, 'native/tests');"
        "import numpy as np, arms;"
        "arms.same('what', 'cpu', np.float32([1, 2, 3]), 'cuda', np.float32([1, 2.5, 3]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "what: 1 of 3 values differ, first at 1: cpu" in done.stderr
