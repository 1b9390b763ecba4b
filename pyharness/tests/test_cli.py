"""The command line on a toy runner: exit codes, what goes to stdout and what to stderr, and quick
help.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyharness import commands, record
from pyharness.errors import Exit, GateRefusal
from pyharness.tests.command_line import SMALL, Bench
from pyharness.tests.fake_arms import FakeLibrary, broken, lacking
from pyharness.tests.goldens import golden
from pyharness.tests.test_compare import flip, write_dump

ROOT = Path(__file__).resolve().parents[2]


def test_green(bench: Bench) -> None:
    assert bench("--mt", "2-4", *SMALL) == Exit.SAME
    lines = bench.out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["same", f"gdn-tiny/p2/mt{m}"] for m in (2, 3, 4)
    ]
    assert "exit 0" in lines[3] and bench.err == ""


def test_the_default_suite_has_a_line_for_every_m(bench: Bench) -> None:
    assert bench("--synthetic", "attn") == Exit.SAME
    jobs = [line.split()[1] for line in bench.out.splitlines() if line.startswith("same")]
    assert len(jobs) == len(set(jobs))
    ms, back = [f"mt{m}" for m in range(2, 9)], ["rb2", "rb4", "rb8"]
    names = ["m1", *ms, *back, *(f"libs-{name}" for name in ms + back)]
    assert [f"attn-tiny/p63/{name}" for name in names] == jobs[: len(names)]
    rest = jobs[len(names) :]
    assert rest[0] == "attn-tiny/p0/mt8-fresh"
    assert [name.split("/")[1] for name in rest[1:]] == ["p1023"] * 5
    assert "singles mixed twice changing then-rows" in bench.out


def test_the_number_of_workers_is_recorded(bench: Bench) -> None:
    for given, made in (("1", 1), ("3", 3)):
        assert bench("--m1", *SMALL, "--workers", given) == Exit.SAME
        assert record.read_record(bench.runs[-1]).workers == made


def test_without_a_model_three_synthetic_ones(bench: Bench) -> None:
    assert bench("--m1", "--prefix", "0") == Exit.SAME
    jobs = [line.split()[1] for line in bench.out.splitlines() if line.startswith("same")]
    assert jobs == [f"{family}-tiny/p0/m1" for family in ("hybrid", "gdn", "attn")]


@pytest.mark.parametrize(
    ("libraries", "arguments", "code"),
    [
        ({"candidate": broken("rows")}, ["--mt", "2"], Exit.DIFFERS),
        ({"candidate": broken("stuck")}, ["--rb", "2"], Exit.DIFFERS),
        ({"candidate": broken("after")}, ["--libs"], Exit.DIFFERS),
        ({"candidate": broken("crash")}, ["--mt", "2"], Exit.FAILED),
        ({"candidate": broken("random")}, ["--m1"], Exit.UNPROVED),
        (
            {"baseline": FakeLibrary("o", frozenset({"deaf"})), "candidate": broken("deaf")},
            ["--m1"],
            Exit.UNPROVED,
        ),
        ({"candidate": lacking("step_m", name="new")}, ["--mt", "2"], Exit.UNPROVED),
        ({"candidate": lacking("step_m", name="new")}, ["--mt", "2", "--m1"], Exit.UNPROVED),
        ({"baseline": lacking("step_m", "mark")}, ["--mt", "2", "--rb", "2"], Exit.SAME),
        ({"baseline": lacking("step_m", "mark")}, [], Exit.SAME),
        ({"baseline": lacking("step_m", "mark")}, ["--libs"], Exit.UNPROVED),
    ],
)
def test_exit_codes(bench: Bench, libraries: Any, arguments: list[str], code: Exit) -> None:
    bench.libraries(**libraries)
    assert bench(*arguments, *SMALL) == code
    assert f"exit {int(code)}" in bench.out
    (run,) = bench.runs
    assert bench("show", run.name) == code


def test_a_difference_is_told_on_a_line(bench: Bench) -> None:
    bench.libraries(candidate=broken("rows"))
    bench("--mt", "3", *SMALL)
    line = next(x for x in bench.out.splitlines() if "logits.npy" in x)
    assert "logits.npy [2, 3]: baseline 0x" in line and "1 of 112 elements differ" in line


def test_json_and_junit(bench: Bench, tmp_path: Path) -> None:
    assert bench("--mt", "2", *SMALL, "--json", "-", "--junit", tmp_path / "j.xml") == Exit.SAME
    told = json.loads(bench.out)
    assert told["schema"] == "ab-verdict/1" and told["exit_code"] == 0
    assert told["jobs"][0]["id"] == "gdn-tiny/p2/mt2" and "mt2" in bench.err
    assert ET.parse(tmp_path / "j.xml").getroot().find("testsuite") is not None
    bench("--mt", "2", *SMALL, "--json", tmp_path / "v.json")
    assert json.loads((tmp_path / "v.json").read_text())["schema"] == "ab-verdict/1"
    assert "mt2" in bench.out


@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_files_that_cannot_be_written_are_known_before_the_run(
    bench: Bench, tmp_path: Path, option: str
) -> None:
    for path, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "x", "no such folder"),
        (Path("/dev/null"), "not a regular file"),
        (Path("/proc/x"), "cannot be written"),
    ):
        assert bench("--mt", "2", *SMALL, option, path) == Exit.USAGE
        assert message in bench.err and bench.err.count("\n") == 1 and not bench.runs
    assert not (tmp_path / "none").exists()
    (tmp_path / "there").write_text("before")
    assert bench("--mt", "1", *SMALL, option, tmp_path / "there") == Exit.USAGE
    assert (tmp_path / "there").read_text() == "before"


def test_a_5_beside_proved_jobs_names_the_others(bench: Bench) -> None:
    bench.libraries(candidate=FakeLibrary("new", lacks=frozenset({"step_m"})))
    assert bench("--m1", "--mt", "2", *SMALL) == Exit.UNPROVED
    assert "nothing was proved" not in bench.out
    told = bench.out.partition("exit 5: asked for and not proved: unsupported: ")[2]
    assert "gdn-tiny/p2/mt2" in told.splitlines()[0]
    assert bench("--mt", "2", *SMALL) == Exit.UNPROVED and "nothing was proved" in bench.out


def test_a_model_that_is_none_is_told_so(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Not a model, and long enough to be read as one.")
    (tmp_path / "empty").mkdir()
    for name in ("README.md", "empty"):
        assert bench("--m1", "--model", tmp_path / name) == Exit.USAGE
        assert "neither a checkpoint's folder nor a pack" in bench.err and name in bench.err


@pytest.mark.parametrize("packed", [False, True])
def test_more_tokens_than_a_model_has_positions_for(
    bench: Bench, tmp_path: Path, packed: bool
) -> None:
    folder = shutil.copytree(golden("tiny-gdn"), tmp_path / "model")
    told = json.loads((folder / "config.json").read_text())
    for most, note in ((12, True), (13, False)):
        told.get("text_config", told)["max_position_embeddings"] = most
        (folder / "config.json").write_text(json.dumps(told))
        model = folder
        if packed:
            model = tmp_path / "model.pack"
            assert bench("pack", folder, model, "--force", out=False) == Exit.SAME
        given = ("--tokens", folder / "tokens.npy", "--prefix", "7", "--continuation", "4")
        assert bench("--mt", "2", "--model", model, *given) == Exit.SAME
        assert ("max_position_embeddings is 12, 13 tokens are read" in bench.err) is note


def test_pack_replaces_a_file_only_when_told_to(bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "there.pack"
    out.write_text("precious")
    line: list[str | Path] = ["pack", golden("tiny-gdn"), out]
    assert bench(*line, out=False) == Exit.USAGE and out.read_text() == "precious"
    assert "--force" in bench.err
    assert bench(*line, "--force", out=False) == Exit.SAME and out.stat().st_size > 1000


def test_refused_by_the_gate_nothing_is_written(bench: Bench) -> None:
    def refuse(stack: ExitStack, settings: Any) -> Any:
        raise GateRefusal("expected sha256:00, found sha256:11")

    bench.patch.setattr(commands, "open_pair", refuse)
    assert bench("--mt", "2", *SMALL) == Exit.REFUSED
    assert bench.err == "run-ab: expected sha256:00, found sha256:11\n"
    assert not bench.runs and bench.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mt", "x"], "cannot read 'x'"),
        (["--mt", "1"], "2 to 64 rows"),
        (["--mt", "65"], "2 to 64 rows"),
        (["--rb", "8,99"], "2 to 64 rows"),
        (["--mt", ""], "cannot read ''"),
        (["--rb", ""], "cannot read ''"),
        (["speed", "--mt", "", "--synthetic", "gdn"], "cannot read ''"),
        (["--threads", "1025"], "threads must be 0 to 1024"),
        (["--prefix", "-1"], "cannot read"),
        (["--continuation", "some"], "--continuation"),
        (["--continuation", "all"], "--continuation all needs tokens"),
        (["--no-such-option"], "No such option"),
        (["no-such-command"], "No such command"),
        (["archive", "log"], "No such option '--out'"),  # it reads no runs
        (["--synthetic", "mamba"], "mamba"),
        (["--timeout", "0"], "timeout must be"),
        (["--threads", "-2"], "threads cannot be"),
        (["--tokens", "/nowhere.npy"], "/nowhere.npy"),
        (["--tokens", "a.txt", "--text", "b.txt"], "cannot both"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--mt", "2", "show", "last"], "goes after 'show'"),
        (["show", "nothing"], "no run named 'nothing'"),
        (["compare", "/nowhere", "/nowhere"], "no such folder"),
    ],
)
def test_usage_errors_are_said_and_exit_2(bench: Bench, arguments: list[str], message: str) -> None:
    assert bench(*arguments, out="compare" not in arguments) == Exit.USAGE
    assert bench.err.startswith("run-ab: ") and bench.err.count("\n") == 1
    assert message in bench.err and not bench.runs


def test_tokens_of_a_file(bench: Bench, tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.arange(30, dtype=np.int32))
    line = ["--mt", "2", "--synthetic", "gdn", "--tokens", str(tmp_path / "t.npy")]
    assert bench(*line) == Exit.SAME and "note: prefix 24 instead of 63" in bench.err
    made = record.read_record(bench.runs[0])
    assert [Path(f.name).name for f in made.inputs] == ["t.npy"]
    assert bench(*line, "--prefix", "26") == Exit.USAGE and "30 tokens are too few" in bench.err
    (tmp_path / "u.txt").write_text("1 2 512 4")
    assert bench("--tokens", tmp_path / "u.txt", "--synthetic", "gdn") == Exit.USAGE
    assert "512" in bench.err and len(bench.runs) == 1


def test_an_isa_of_the_environment_is_part_of_the_plan(bench: Bench) -> None:
    bench.patch.setenv("VLLM_CUDA_CPU_ISA", "avx2")
    bench("--m1", *SMALL)
    bench("--m1", *SMALL, "--isa", "portable")
    found = [record.read_record(run).suite.jobs[0].candidate.environment for run in bench.runs]
    assert found == [(("VLLM_CUDA_CPU_ISA", "avx2"),), (("VLLM_CUDA_CPU_ISA", "portable"),)]


def test_compare(bench: Bench, tmp_path: Path) -> None:
    a, b = write_dump(tmp_path / "a"), write_dump(tmp_path / "b")
    assert bench("compare", a, b, out=False) == Exit.SAME and bench.out.startswith("same: ")
    flip(b / "h_out.npy", 128 + 4 * 11)
    assert bench("compare", a, b, out=False) == Exit.DIFFERS
    assert "h_out.npy [1, 3]: baseline 0x" in bench.out
    assert bench("compare", a, b, "--json", "-", out=False) == Exit.DIFFERS
    told = json.loads(bench.out)
    assert told["differences"][0]["index"] == [1, 3] and len(told["candidate"]) == 3
    (b / "h_out.npy").write_bytes(b"x")
    assert bench("compare", a, b, out=False) == Exit.USAGE and "h_out.npy" in bench.err


def test_a_defect_exits_70_with_one_line(bench: Bench) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("by zero\nindeed")

    bench.patch.setattr(commands, "open_pair", fail)
    assert bench("--mt", "2", *SMALL) == Exit.DEFECT
    assert bench.err.count("\n") == 1 and "ZeroDivisionError: by zero indeed" in bench.err
    assert bench("--debug", "--mt", "2", *SMALL) == Exit.DEFECT and "Traceback" in bench.err


def test_interrupted(bench: Bench) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    bench.patch.setattr(commands, "open_pair", interrupt)
    assert bench("--mt", "2", *SMALL) == Exit.INTERRUPTED
    assert bench.err.split("\n")[-2:] == ["run-ab: interrupted", ""]


def test_help_documents_the_exit_codes(bench: Bench) -> None:
    assert bench("--help", out=False) == 0
    for code in Exit:
        assert f"\n    {int(code)} " in bench.out
    assert bench("accept", "--help", out=False) == 0 and "--why" in bench.out


def test_config_show(bench: Bench) -> None:
    bench.patch.setenv("VLLM_AB_TIMEOUT", "7")
    assert bench("config", "show", out=False) == 0
    assert any(
        line.split()[:3] == ["timeout", "7.0", "VLLM_AB_TIMEOUT"] for line in bench.out.splitlines()
    )
    bench.patch.setenv("VLLM_CUDA_CPU_ISA", "avx2")
    assert bench("config", "show", out=False) == 0
    assert ["isa", "avx2", "VLLM_CUDA_CPU_ISA"] in [x.split()[:3] for x in bench.out.splitlines()]
    bench.patch.setenv("VLLM_CUDA_CPU_ISA", "sse")
    assert bench("config", "show", out=False) == Exit.USAGE and "isa must be one of" in bench.err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, pyharness.cli as c; c.run(['--help']); "
        "heavy = {'numpy', 'rich', 'tokenizers'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_colour_only_where_it_is_wanted(bench: Bench) -> None:
    bench.patch.setenv("FORCE_COLOR", "1")
    bench("--m1", *SMALL)
    assert "\x1b[" in bench.out
    bench.patch.setenv("NO_COLOR", "1")
    bench("--m1", *SMALL)
    assert "\x1b[3" not in bench.out.replace("\x1b[1m", "")
    bench.patch.delenv("FORCE_COLOR")
    bench("--m1", *SMALL)
    assert "\x1b" not in bench.out
