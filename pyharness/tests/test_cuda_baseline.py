"""The CUDA library in the archive: its record from a GPU, recomputed by the CPU library built here.

Whoever changes the arithmetic turns these tests red until a new CUDA library was accepted on a GPU
(README, "On a GPU").
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyharness import cli, config, gate, plan, record
from pyharness.archive import entries, layout
from pyharness.errors import Exit
from pyharness.files import read_descriptor
from pyharness.host.abi import OPTIONAL, REQUIRED
from pyharness.host.elf import read_elf
from pyharness.tests.goldens import NAMES, golden
from pyharness.values import ArmPlan

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/cpu/libvllm_cuda.so"
SYNTHETIC = ("hybrid", "gdn", "attn")


def cuda_baseline() -> tuple[str, record.Record]:
    """Label and record of the CUDA library accepted last."""
    settings = config.resolve({}, {}, ROOT)
    entry, data = gate.open_record(settings["archive"], settings["pin"], "", "cuda")
    return entry.label, record.parse_record(data, entry.label)


def test_the_record_of_the_cuda_baseline_is_whole() -> None:
    """Device, driver and libraries; and digests of every kind of job on every model, the controls
    included.
    """
    label, made = cuda_baseline()
    settings = config.resolve({}, {}, ROOT)
    line = next(x for x in entries(settings["archive"], settings["pin"]) if x.label == label)
    facts = made.libraries["candidate"].facts
    assert facts is not None and facts.build_info["backend"] == line.backend == "cuda"
    assert facts.build_info["dirty"] is False and facts.build_info["revision"] == line.revision
    assert set(facts.build_info["architectures"]) == {"sm_80", "sm_90a", "sm_120"}
    assert made.libraries["candidate"].digest == line.digest and line.baseline
    assert made.machine["gpu"] and made.machine["driver"] and made.argv
    models = [f"{family}-tiny" for family in SYNTHETIC] + list(NAMES)
    arms = {a.key: a.result for a in made.arms}
    found: dict[str, set[str]] = {model: set() for model in models}
    for job in made.suite.jobs:
        plans = job.candidate, plan.again(job.candidate), job.control.plan
        ran, again, control = (arms[plan.arm_key(p, line.digest)] for p in plans)
        assert ran.status == again.status == control.status == "done", job.id
        assert ran.files == again.files != control.files
        assert len(ran.files) == 3 and all(f.size_bytes > 0 for f in ran.files)
        assert ran.step_ns and ran.wall_s > 0
        kind = f"mt{job.m}" if job.kind == "mt" else job.kind
        found[job.candidate.model.slug].add(kind)
    wanted = {"m1", "rb", *(f"mt{m}" for m in plan.DEFAULT_MT)}
    assert {model: wanted - kinds for model, kinds in found.items()} == {
        model: set() for model in models
    }
    weights = {Path(f.name).parent.name for f in made.inputs if f.name.endswith(".safetensors")}
    assert weights == set(NAMES)


def test_nothing_in_the_record_needs_the_gpu_again() -> None:
    """Its plans can be done on any machine: no variable of the environment, nothing but tokens."""
    _, made = cuda_baseline()
    plans: set[ArmPlan] = {job.candidate for job in made.suite.jobs}
    assert {p.environment for p in plans} == {()} and len(plans) > 100


def test_the_archived_cuda_library_is_what_make_cuda_builds() -> None:
    """As far as its file shows it: code for a GPU, and the entries of the header, no other."""
    settings = config.resolve({}, {}, ROOT)
    with gate.open_baseline(settings["archive"], settings["pin"], "", "cuda") as library:
        data = read_descriptor(library.fd, library.label)
    assert layout.holds_device_code(data)
    names = {s.name for s in read_elf(data, "the archived library").exported}
    assert set(REQUIRED) <= names <= {*REQUIRED, *OPTIONAL}


@pytest.mark.skipif(not BUILT.exists(), reason="no CPU library; build it with `make native`")
def test_the_cpu_library_gives_the_digests_of_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    label, made = cuda_baseline()
    models = [word for name in NAMES for word in ("--model", str(golden(name)))]
    line = ["archive", "recompute", label, "--candidate", str(BUILT), *models]
    code = cli.run(line)
    told = capsys.readouterr().out
    assert code == Exit.SAME, told
    lines = told.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["same"] * (len(SYNTHETIC) + len(NAMES))
    assert f"({made.machine['gpu']}, driver {made.machine['driver']}) again on {BUILT}" in lines[-1]
