from __future__ import annotations

import dataclasses

import pytest

from pyharness.errors import UsageError
from pyharness.runner.environment import worker_environment
from pyharness.values import ArmPlan, ModelSpec, Op

PLAN = ArmPlan("candidate", "arm", ModelSpec("synthetic", "gdn", "tiny"), (Op("step", (1,), True),))
DROPPED = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "CUDA_INJECTION64_PATH",
    "MALLOC_PERTURB_",
    "OMP_NUM_THREADS",
    "HOME",
    "PYTHONPATH",
    "VLLM_CUDA_Q35_MM",
    "GLIBC_TUNABLES",
]


def test_only_the_allowlist_comes_through() -> None:
    passed = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "VLLM_CUDA_CPU_ISA": "avx2"}
    made = worker_environment(PLAN, dict.fromkeys(DROPPED, "x") | passed)
    assert not made.keys() & set(DROPPED)
    assert {name: made[name] for name in passed} == passed


def test_what_would_change_bits_is_fixed() -> None:
    made = worker_environment(PLAN, {"CUDA_DISABLE_PTX_JIT": "0"})
    assert made["CUDA_DISABLE_PTX_JIT"] == "1"
    assert made["CUDA_CACHE_DISABLE"] == "1"
    assert made["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_VISIBLE_DEVICES" not in made


def test_mmax_comes_from_the_plan_only() -> None:
    rows = dataclasses.replace(PLAN, mmax=6)
    assert worker_environment(rows, {"VLLM_CUDA_Q35_MM": "2"})["VLLM_CUDA_Q35_MM"] == "6"


def test_the_plan_has_the_last_word() -> None:
    plan = dataclasses.replace(PLAN, environment=(("VLLM_CUDA_CPU_ISA", "portable"),))
    made = worker_environment(plan, {"VLLM_CUDA_CPU_ISA": "avx512"})
    assert made["VLLM_CUDA_CPU_ISA"] == "portable"
    assert list(made) == sorted(made)


@pytest.mark.parametrize("variable", [("", "x"), ("A=B", "x"), ("A", "x\0y"), ("A\0", "x")])
def test_an_impossible_variable_is_refused(variable: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="cannot be an environment variable"):
        worker_environment(dataclasses.replace(PLAN, environment=(variable,)), {})
