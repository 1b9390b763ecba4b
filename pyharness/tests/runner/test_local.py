"""Whatever a library does, the arm ends as one line, and nothing of a failed arm stays."""

from __future__ import annotations

import dataclasses
import platform
import re
from pathlib import Path

import pytest

from pyharness.dumps import Dump, file_facts
from pyharness.host import abi
from pyharness.runner.local import LocalRunner
from pyharness.tests.runner.arms import EVERY_ENTRY, MODEL, PLAN, SCRIPT, SINGLES, run
from pyharness.tests.stubs import sealed, stub
from pyharness.values import ArmPlan, ArmResult, Op, from_json, to_json

STEP_1 = r"during vcuda_dev_model_step \(token 1\), call 1 of 6 of the script"


def test_an_arm_from_plan_to_files(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "baseline"
    result = run(stub(), out)
    assert (result.status, result.reason, result.rows) == ("done", "", 4)
    assert result.files == file_facts(out)
    assert sorted(p.name for p in out.parent.iterdir()) == ["baseline"]
    assert len(result.step_ns) == len(SCRIPT) and all(ns > 0 for ns in result.step_ns)
    assert result.wall_s > 0
    library = result.library
    assert library is not None and library.build_info["backend"] == "stub"
    assert (library.symbols, library.missing) == (abi.REQUIRED + abi.OPTIONAL, ())
    assert "memfd" in library.mapped
    assert from_json(ArmResult, to_json(result)) == result


REFUSED = (
    Op("refused", (1, 2, 3, 4, 5), what="step_m"),
    Op("refused", what="rollback"),
    Op("step", (1, 2)),
    Op("refused", (512,), what="step"),
    Op("refused", (3, -1), what="step_m"),
    Op("step", (3,), record=True),
    Op("refused", (4,), what="step"),
)
FULL = dataclasses.replace(
    PLAN, script=REFUSED, mmax=4, model=dataclasses.replace(MODEL, context=3)
)


def test_refused_calls_leave_no_trace(tmp_path: Path) -> None:
    plain = dataclasses.replace(FULL, script=(Op("step", (1, 2)), Op("step", (3,), record=True)))
    refused, straight = run(stub(), tmp_path / "a", FULL), run(stub(), tmp_path / "b", plain)
    assert refused.status == "done", refused.reason
    assert refused.files == straight.files


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refuses-nothing", r"vcuda_dev_model_step .1 tokens, the last one 512. was not refused$"),
        ("refuses-and-writes", "and it wrote outputs all the same"),
        ("refuses-and-moves", "position is 3 after a refused, expected 2$"),
        ("refuses-by-accident", "VCUDA_E_DEVICE .8.: token outside the vocabulary$"),
    ],
)
def test_what_should_have_been_refused(fault: str, reason: str, tmp_path: Path) -> None:
    result = run(stub(fault), tmp_path / "out", FULL)
    assert result.status == "failed" and re.search(reason, result.reason), result.reason


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the stub sets the register of x86")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("flushes", "flushes denormal numbers to zero"), ("rounds-up", "rounds to nearest even")],
)
def test_a_library_that_changes_the_arithmetic_of_its_process(
    fault: str, reason: str, tmp_path: Path
) -> None:
    result = run(stub(fault), tmp_path / "out")
    assert result.status == "failed" and reason in result.reason


def test_only_the_first_rows_of_a_step_are_recorded(tmp_path: Path) -> None:
    some = Op("step_m", (6, 7, 500), record=True, number=2)
    back = (Op("mark"), some, Op("rollback_to", number=2), Op("step", (8, 9), record=True))
    plan = dataclasses.replace(PLAN, script=(Op("step", (1, 2, 3)), *back))
    result = run(stub(), tmp_path / "part", plan)
    straight = run(stub(), tmp_path / "whole", dataclasses.replace(PLAN, script=SINGLES, mmax=0))
    assert result.rows == 4 and result.files == straight.files


def test_a_reset_within_a_script(tmp_path: Path) -> None:
    again = (Op("step", (7, 7)), Op("mark"), Op("reset"), *SINGLES)
    result = run(stub(), tmp_path / "a", dataclasses.replace(PLAN, script=again))
    straight = run(stub(), tmp_path / "b", dataclasses.replace(PLAN, script=SINGLES, mmax=0))
    assert result.files == straight.files


def batch(library: Path, folder: Path, *plans: ArmPlan) -> list[ArmResult]:
    items = [(plan, folder / str(i)) for i, plan in enumerate(plans)]
    with sealed(library) as handle:
        return list(LocalRunner().run_batch(handle, items))


def test_several_arms_in_one_process_give_what_each_gives_alone(tmp_path: Path) -> None:
    singles = dataclasses.replace(PLAN, script=SINGLES, mmax=0)
    every = dataclasses.replace(PLAN, script=EVERY_ENTRY)
    results = batch(stub(), tmp_path / "many", PLAN, singles, every, PLAN)
    for i, plan in enumerate((PLAN, singles, every, PLAN)):
        alone = run(stub(), tmp_path / f"alone-{i}", plan)
        assert results[i].files == alone.files == file_facts(tmp_path / "many" / str(i))
        assert (results[i].status, results[i].rows) == ("done", alone.rows)


@pytest.mark.parametrize("fault", ["segfault-late", "exit-late", "nan-late"])
def test_an_arm_that_fails_takes_no_other_with_it(fault: str, tmp_path: Path) -> None:
    bad = dataclasses.replace(PLAN, script=(Op("step", (1,)), Op("step", (511, 2), record=True)))
    good = dataclasses.replace(PLAN, script=SINGLES, mmax=0)
    results = batch(stub(fault), tmp_path, good, bad, bad, good, bad)
    assert [r.status for r in results] == ["done", "failed", "failed", "done", "failed"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "3"]
    assert results[0].files == results[3].files
    assert "(token 511), call 2 of 2 of the script" in results[1].reason or fault == "nan-late"


def test_an_arm_that_lacks_an_entry_leaves_the_process_to_the_others(tmp_path: Path) -> None:
    library = stub(without=("vcuda_dev_poison",))
    every = dataclasses.replace(PLAN, script=EVERY_ENTRY)
    results = batch(library, tmp_path, PLAN, every, PLAN)
    assert [r.status for r in results] == ["done", "unsupported", "done"]
    assert results[1].missing == ("vcuda_dev_poison",)


def test_each_arm_of_a_process_has_its_own_time(tmp_path: Path) -> None:
    slow = dataclasses.replace(PLAN, timeout_s=3.0)
    late = dataclasses.replace(slow, script=(Op("step", (511,), record=True),))
    results = batch(stub("hang-late"), tmp_path, slow, late, slow)
    assert [r.status for r in results] == ["done", "failed", "done"]
    assert "timed out after 3 s" in results[1].reason


def test_what_the_files_hold(tmp_path: Path) -> None:
    run(stub(), tmp_path / "out")
    dump = Dump.open(tmp_path / "out")
    assert (dump.rows, dump.position) == (4, 7)
    assert (dump.h_out.shape, dump.logits.shape) == ((4, 160), (4, 512))
    gdn, attention = ("S", "conv"), ("keys", "values")
    names = [f"layers.{i}.{p}" for i in range(8) for p in (attention if i % 4 == 3 else gdn)]
    assert list(dump.state) == names
    assert dump.state["layers.0.S"].shape == (4, 64, 64)
    assert dump.state["layers.0.conv"].shape == (512, 3)
    assert dump.state["layers.3.values"].shape == (2, 7, 64)


def test_single_steps_and_rows_give_the_same_files(tmp_path: Path) -> None:
    rows = run(stub(), tmp_path / "rows")
    singles = run(stub(), tmp_path / "singles", dataclasses.replace(PLAN, script=SINGLES, mmax=0))
    assert rows.files == singles.files


@pytest.mark.parametrize("fault", ["step-m-differs", "rollback-differs", "forgets", "unstable"])
def test_a_silent_fault_changes_the_files(fault: str, tmp_path: Path) -> None:
    """Such a library runs to its end; it is the comparison that tells, from what the files hold."""
    good, bad = run(stub(), tmp_path / "good"), run(stub(fault), tmp_path / "bad")
    assert bad.status == "done"
    assert [f.sha256 for f in good.files] != [f.sha256 for f in bad.files]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("segfault", f"killed by SIGSEGV {STEP_1}$"),
        ("abort", f"killed by SIGABRT {STEP_1}$"),
        ("kill", rf"killed by SIGKILL \(out of memory, or killed by hand\) {STEP_1}$"),
        ("exit", f"the worker exited with code 0 and no result {STEP_1}$"),
        ("exit-3", f"the worker exited with code 3 and no result {STEP_1}$"),
        ("load-crash", "killed by SIGSEGV during the load of the library$"),
        ("load-exit", "exited with code 0 and no result during the load of the library$"),
        ("close-crash", "killed by SIGSEGV during vcuda_dev_close, after the script$"),
        ("prints-and-dies", f"SIGABRT {STEP_1}; it printed last: ASSERTION FAILED: 1 == 2$"),
        ("nan", r"vcuda_dev_model_step \(token 1\): logits row 0 column 3 is NaN"),
        ("silent", "h_out row 0 column 0 was not written"),
        ("partial", "logits row 0 column 507 was not written"),
        ("overrun", "wrote 2 words past the end of the logits buffer"),
        ("error", r"VCUDA_E_DEVICE \(8\): the device reported an illegal address$"),
        ("wrong-position", "position is 1 after a step, expected 3$"),
        ("state-size", r"layers.0.S has 16385 elements, expected 16384 for \[4, 64, 64\]$"),
        ("state-partial", "layers.0.S element 16383 was not written"),
        ("no-device", "vcuda_dev_open: VCUDA_E_DEVICE .8.: no usable device: driver too old$"),
        ("load-memory", "VCUDA_E_MEMORY .7.: cannot allocate 48318382080 bytes"),
        ("bad-build-info", "vcuda_build_info is no JSON object: 'release build'$"),
        ("close-error", "vcuda_dev_close: VCUDA_E_INTERNAL .9.: close does not work$"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(fault: str, reason: str, tmp_path: Path) -> None:
    result = run(stub(fault), tmp_path / "out")
    assert result.status == "failed" and result.files == ()
    assert len(result.reason.splitlines()) == 1
    assert re.search(reason, result.reason), result.reason
    assert list(tmp_path.iterdir()) == []


def test_a_failure_after_binding_names_the_library(tmp_path: Path) -> None:
    result = run(stub("nan"), tmp_path / "out")
    assert result.library is not None and result.library.build_info["fault"] == "nan"


@pytest.mark.parametrize("fault", ["hang", "flood"])
def test_a_time_out_is_named(fault: str, tmp_path: Path) -> None:
    result = run(stub(fault), tmp_path / "out", dataclasses.replace(PLAN, timeout_s=3.0))
    assert result.status == "failed"
    assert result.reason.startswith("timed out after 3 s")  # where, depends on the machine
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_takes_all_memory_is_stopped_by_the_limit(tmp_path: Path) -> None:
    result = run(stub("allocate-all"), tmp_path / "out", memory=2 << 30)
    assert (result.status, list(tmp_path.iterdir())) == ("failed", [])
    assert result.reason.endswith("VCUDA_E_MEMORY (7): no memory for the weights")


@pytest.mark.parametrize("fault", ["prints", "orphan", "unload-crash"])
def test_noise_and_leftovers_of_a_good_library_change_nothing(fault: str, tmp_path: Path) -> None:
    good, noisy = run(stub(), tmp_path / "good"), run(stub(fault), tmp_path / "noisy")
    assert noisy.status == "done"
    assert noisy.files == good.files


def test_the_plan_reaches_the_library(tmp_path: Path) -> None:
    threads = run(stub(), tmp_path / "out", dataclasses.replace(PLAN, threads=-3))
    assert threads.reason.endswith("device 0, threads -3")
    short = dataclasses.replace(PLAN, model=dataclasses.replace(MODEL, context=5))
    assert "VCUDA_E_CONTEXT_FULL (4)" in run(stub(), tmp_path / "out", short).reason


def test_the_folder_of_the_caller_is_not_searched_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json.py", "numpy.py", "pyharness.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run(stub(), Path("out")).status == "done"
    assert (tmp_path / "out").is_dir()
