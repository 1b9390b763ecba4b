"""Arms of a stub library, run as the harness runs them."""

from __future__ import annotations

from pathlib import Path

from pyharness.runner.local import LocalRunner
from pyharness.tests.stubs import sealed
from pyharness.values import ArmPlan, ArmResult, ModelSpec, Op

MODEL = ModelSpec("synthetic", "hybrid", "tiny", 1)
SCRIPT = (
    Op("step", (1, 2, 3)),
    Op("mark"),
    Op("step_m", (4, 5)),
    Op("rollback"),
    Op("step_m", (6, 7), record=True),
    Op("step", (8, 9), record=True),
)
EVERY_ENTRY = (
    *SCRIPT,
    Op("mark"),
    Op("step_m", (4, 5)),
    Op("rollback_to", number=1),
    Op("poison", number=0x7FC00000),
    Op("step", (6,)),
)
SINGLES = (Op("step", (1, 2, 3)), Op("step", (6, 7, 8, 9), record=True))
PLAN = ArmPlan("candidate", "arm", MODEL, SCRIPT, mmax=4, timeout_s=60.0)


def run(library: Path, out: Path, plan: ArmPlan = PLAN, memory: int = 0) -> ArmResult:
    with sealed(library) as handle:
        return LocalRunner(memory).run(plan, handle, out)
