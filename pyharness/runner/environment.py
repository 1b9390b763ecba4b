"""The environment of a worker: an allowlist, so that a record can hold all of it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyharness.errors import UsageError
from pyharness.host.script import MM_VARIABLE
from pyharness.values import ArmPlan

# Passed on where the user set them; nothing else is (LD_PRELOAD, LD_LIBRARY_PATH, MALLOC_*, OMP_*,
# CUDA_INJECTION64_PATH, another VLLM_CUDA_Q35_MM ...). A plan may name further ones; its record
# then holds them.
PASSED_ON = ("PATH", "TMPDIR", "CUDA_VISIBLE_DEVICES", "VLLM_CUDA_CPU_ISA")
FIXED = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "CUDA_DISABLE_PTX_JIT": "1",  # else the driver's version becomes part of the bits
    "CUDA_CACHE_DISABLE": "1",
    "CUDA_MODULE_LOADING": "EAGER",  # a kernel that does not load fails at load
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "OPENBLAS_NUM_THREADS": "1",  # numpy only moves bytes here; its thread pool would be idle
}


def worker_environment(plan: ArmPlan, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """All variables that the worker of this plan sees, in the order of their names."""
    inherited = os.environ if inherited is None else inherited
    made = {name: inherited[name] for name in PASSED_ON if name in inherited} | FIXED
    if plan.mmax:
        made[MM_VARIABLE] = str(plan.mmax)
    for name, value in plan.environment:
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{name!r} = {value!r} cannot be an environment variable")
        made[name] = value
    return dict(sorted(made.items()))
