"""The table fits the source; a few of its rows are built and killed, ``make faults`` does all."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyharness.archive import entries
from pyharness.errors import Exit
from pyharness.options import parse_rows
from pyharness.plan import DEFAULT_PREFIX, Request, Workload, build
from pyharness.scripts import ROLLBACK_CASES, ROW_CASES
from pyharness.tests.faults.mutant import DIFFERS, H_OUT, LOGITS, NATIVE, STATE, Mutant
from pyharness.tests.faults.table import MUTANTS, ROOT, Bench, judge
from pyharness.tests.goldens import NAMES, golden
from pyharness.values import ModelSpec

ARCHIVE, PIN = ROOT / "archive", ROOT / ".ci/archive.pin"
# one of each kind: state, partial rollback, refusal, rows, memory that must not matter, a sum
BUILT = (
    "conv-not-restored", "keeps-one-more", "mark-lost", "sees-next-key", "key-past-cursor",
    "sum-order-m5",
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_row_fits_the_source(mutant: Mutant) -> None:
    assert not mutant.problem()
    assert mutant.breaks and mutant.shows
    assert mutant.status != DIFFERS or mutant.shows in (H_OUT, LOGITS, STATE)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_row_names_a_job_of_its_command(mutant: Mutant) -> None:
    words = iter(mutant.options)
    flags = ("--m1", "--libs")
    chosen = {word: next(words) if word not in flags else "" for word in words}
    assert chosen["--only"] == f"*/{mutant.job_name}"
    mt, rb = (parse_rows(chosen[k]) if k in chosen else () for k in ("--mt", "--rb"))
    libs = "--libs" in chosen
    request = Request(
        m1="--m1" in chosen, mt=mt, rb=rb,
        libs_mt=mt if libs else (), libs_rb=rb if libs else (), explicit=True,
        prefixes=None if mutant.prefix is None else (mutant.prefix,),
        profile=mutant.profile,
    )  # fmt: skip
    workload = Workload(ModelSpec("synthetic", mutant.family, "tiny"), 512)
    jobs = [job.id for job in build([workload], request).jobs]
    assert sum(job.endswith(f"/{mutant.job_name}") for job in jobs) == 1


def test_the_default_suite_has_the_job_of_every_quick_mutant() -> None:
    """``run-ab`` alone asks each question of the table, of other M perhaps, but for the threads."""
    models = [ModelSpec("synthetic", family, "tiny") for family in ("hybrid", "gdn", "attn")]
    jobs = build([Workload(model, 512) for model in models], Request()).jobs
    asked = {(job.candidate.model.family, job.prefix, job.kind, job.case) for job in jobs}

    def question(mutant: Mutant) -> tuple[str, int, str, str]:
        found = re.fullmatch(r"(m1|(?:libs-)?(?:mt|rb))\d*(?:-(.+))?", mutant.job)
        assert found, mutant.job
        prefix = DEFAULT_PREFIX if mutant.prefix is None else mutant.prefix
        return mutant.family, prefix, found[1], found[2] or ""

    missing = [m.name for m in MUTANTS if question(m) not in asked]
    assert missing == [m.name for m in MUTANTS if m.profile == "full"] == ["threads"]


def test_the_table_reaches_every_part_of_the_step() -> None:
    names = [m.name for m in MUTANTS]
    assert len(names) == len(set(names)) >= 40
    files = Counter(m.file for m in MUTANTS)
    assert set(files) >= {
        "api.cpp", "model/model.cpp", "model/forward.cpp", "cpu/backend.cpp", "cpu/kernels.inc",
        "cpu/isa_portable.cpp", "cpu/isa_avx2.cpp", "cpu/isa_avx512.cpp", "arith/exp.h",
        "arith/log1p.h", "arith/quant.h",
    }  # fmt: skip
    assert {m.shows for m in MUTANTS if m.status == DIFFERS} == {H_OUT, LOGITS, STATE}
    assert {m.family for m in MUTANTS} == {"hybrid", "gdn", "attn"}
    jobs = [m.job.removeprefix("libs-") for m in MUTANTS]
    kinds = {m.job.removesuffix(j) + j[:2] for m, j in zip(MUTANTS, jobs, strict=True)}
    assert kinds == {"m1", "mt", "rb", "libs-mt", "libs-rb"}
    cases = {job.partition("-")[2].rstrip("0123456789") for job in jobs}
    known = {case.removesuffix("{n}") for case in (*ROW_CASES, *ROLLBACK_CASES)}
    assert cases <= known and {"refused", "reset", "nan", "large", "keep", "threads"} <= cases


def test_a_row_is_killed_only_by_its_own_job_status_and_file() -> None:
    mutant = next(m for m in MUTANTS if m.name == "conv-not-restored")
    difference = {"file": STATE}
    job = {"id": f"gdn-tiny/p63/{mutant.job}", "status": DIFFERS, "reason": "",
           "comparison": {"differences": [difference]}}  # fmt: skip

    def killed(code: int = 1, **changes: object) -> bool:
        return judge(mutant, code, {"jobs": [{**job, **changes}], "summary": ""}).killed

    assert killed()
    assert not killed(id="gdn-tiny/p63/rb2")
    assert not killed(status="same") and not killed(status="failed")
    assert not killed(comparison={"differences": [{"file": H_OUT}]}) and not killed(comparison=None)
    assert not killed(code=0)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder: Path = tmp_path_factory.mktemp("faults")
    yield Bench(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_few_are_built_and_killed(bench: Bench) -> None:
    chosen = [m for m in MUTANTS if m.name in BUILT]
    assert len(chosen) == len(BUILT)
    before = {p: p.read_bytes() for p in NATIVE.rglob("*") if p.is_file()}
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        outcomes = list(pool.map(bench.try_mutant, chosen))
    assert not [(m.name, o.told) for m, o in zip(chosen, outcomes, strict=True) if not o.killed]
    assert before == {p: p.read_bytes() for p in NATIVE.rglob("*") if p.is_file()}
    green = bench.unchanged_is_green(chosen[0].options, "green")
    assert green.killed, green.told


def test_a_change_of_the_arithmetic_breaks_the_record_of_the_gpu(bench: Bench) -> None:
    """Single steps of every model whose digests the archived CUDA library left on its device."""
    label = next(x.label for x in entries(ARCHIVE, PIN) if x.backend == "cuda" and x.baseline)
    models = [word for name in NAMES for word in ("--model", str(golden(name)))]

    def recompute(library: Path) -> tuple[int, list[str]]:
        line = ["archive", "recompute", label, "--only", "*/p63/m1", "--isa", "portable", *models]
        code, said = bench.command(*line, "--candidate", str(library))
        return code, said.splitlines()

    code, said = recompute(bench.shop.unchanged)
    assert code == Exit.SAME and sum(line.startswith("same ") for line in said) == 6, said
    mutant = next(m for m in MUTANTS if m.name == "norm-lanes")
    code, said = recompute(bench.shop.build(mutant, bench.folder / "for-the-record"))
    assert code == Exit.DIFFERS and sum(line.startswith("differs ") for line in said) == 6, said
    assert any("logits.npy: expected sha256:" in line for line in said)


def test_a_change_that_changes_nothing_survives(bench: Bench) -> None:
    nothing = Mutant(
        "nothing", "nothing", "model/model.cpp", "  position_ += m;", "  position_ += m + 0;",
        "mt2", H_OUT, family="gdn",
    )  # fmt: skip
    outcome = bench.try_mutant(nothing)
    assert not outcome.killed and outcome.told.startswith("same")


def test_what_does_not_compile_is_not_killed(bench: Bench) -> None:
    broken = Mutant(
        "broken", "", "model/model.cpp", "  position_ += m;", "  position_ += ;", "mt2", ""
    )
    outcome = bench.try_mutant(broken)
    assert not outcome.killed and outcome.told.startswith("does not build: ")
