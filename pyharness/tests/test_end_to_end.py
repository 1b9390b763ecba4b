"""The command line on the library that was built: archive, gate, workers, record, replay."""

from __future__ import annotations

import json
import re
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from pyharness import cli, identity, record
from pyharness.errors import Exit, GateRefusal
from pyharness.tests import place as place_module
from pyharness.tests.goldens import golden

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/cpu/libvllm_cuda.so"

pytestmark = pytest.mark.skipif(
    not BUILT.exists(), reason="no CPU library; build it with `make native`"
)


# Every kind of job on both kinds of layer, as briefly as it can be.
WHOLE = ("--m1", "--mt", "2", "--rb", "2", "--synthetic", "hybrid", "--prefix", "0")


class Place(place_module.Place):
    """The archive holds the built library; the candidate is a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.candidate = folder / "candidate.so"
        shutil.copyfile(BUILT, self.candidate)
        super().__init__(folder, self.candidate)

    def suite(self, *arguments: str) -> int:
        return self.run(*arguments, "--candidate", str(self.candidate), *self.out)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("family", ["hybrid", "gdn", "attn"])
@pytest.mark.parametrize("prefix", ["0", "63"])
def test_rows_and_rollbacks_of_the_built_library(
    place: Place, capsys: pytest.CaptureFixture[str], family: str, prefix: str
) -> None:
    """M = 2 and an empty prefix too: the control still differs there."""
    line = ["--mt", "2,8", "--rb", "2", "--synthetic", family, "--prefix", prefix]
    code = place.suite(*line)
    told = capsys.readouterr()
    assert code == Exit.SAME, told.out
    lines = told.out.splitlines()[:3]
    assert [line.split()[0] for line in lines] == ["same"] * 3  # mt2, mt8, rb2
    assert "note: baseline and candidate are one library, sha256:" in told.err


@pytest.mark.parametrize("jobs", [["--m1"], ["--libs"], ["--mt", "2", "--m1"], []])
def test_a_library_is_not_compared_with_itself_unless_asked_for(
    place: Place, capsys: pytest.CaptureFixture[str], jobs: list[str]
) -> None:
    line = [*jobs, "--synthetic", "gdn", "--prefix", "0"]
    capsys.readouterr()
    assert place.suite(*line) == Exit.USAGE and not place.runs
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "--same-library" in told and "one library, sha256:" in told
    if jobs == ["--m1"]:
        assert place.suite(*line, "--same-library") == Exit.SAME


def test_what_the_system_mapped_is_shown_and_held_against_the_record(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.suite("--mt", "2", "--synthetic", "gdn", "--prefix", "0") == Exit.SAME
    (run,) = place.runs
    digest = record.read_record(run).libraries["candidate"].digest
    mapped = f"mapped /memfd:vllm_cuda-{digest.short}"
    assert capsys.readouterr().out.count(mapped) == 2
    assert place.run("show", str(run)) == Exit.SAME
    assert capsys.readouterr().out.count(mapped) == 2
    path = run / "record.json"
    path.write_text(
        path.read_text().replace(f"memfd:vllm_cuda-{digest.short}", "memfd:vllm_cuda-" + "0" * 12)
    )
    with pytest.raises(GateRefusal, match=f"expected {digest}, its workers loaded"):
        identity.check_loaded(record.read_record(run).libraries)
    assert place.run("show", str(run)) == Exit.UNPROVED
    assert "do not belong together" in capsys.readouterr().err


def test_record_replay_show_accept(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.candidate.write_bytes(BUILT.read_bytes() + b"another")
    assert place.suite(*WHOLE) == Exit.SAME
    (run,) = place.runs
    made = record.read_record(run)
    facts = made.libraries["candidate"].facts
    assert facts is not None and facts.build_info["backend"] == "cpu" and facts.abi_version == 1
    assert place.run("replay", run.name, *place.out) == Exit.SAME
    assert place.run("show", run.name, *place.out) == Exit.SAME
    capsys.readouterr()
    assert place.run("accept", run.name, "--why", "good", *place.out) == Exit.SAME
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("accepted 2") and len(told) == 2
    assert re.fullmatch(
        r"  synthetic hybrid tiny \(\d GDN, \d attention\): "
        r"same: \d+ m1, \d+ mt, \d+ rb; M 2; prefix 0",
        told[1],
    )
    assert place.run("archive", "list", "--json") == Exit.SAME
    _, line = json.loads(capsys.readouterr().out)
    assert line["digest"] == str(made.libraries["candidate"].digest) and line["accepted"]
    assert place.run("archive", "verify") == Exit.SAME and place.run("archive", "log") == Exit.SAME
    assert place.run("gate", "--candidate", str(place.candidate)) == Exit.SAME


def test_a_run_against_an_older_baseline_is_not_accepted(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    line = list(WHOLE)
    accept = ["accept", "last", "--why", "good", *place.out]
    place.candidate.write_bytes(BUILT.read_bytes() + b"second")
    assert place.suite(*line) == Exit.SAME and place.run(*accept) == Exit.SAME
    place.candidate.write_bytes(BUILT.read_bytes() + b"third")
    assert place.suite(*line, "--baseline", "first") == Exit.SAME
    capsys.readouterr()
    assert place.run(*accept) == Exit.UNPROVED
    assert "run again and accept that run" in capsys.readouterr().err
    assert place.suite(*line) == Exit.SAME and place.run(*accept) == Exit.SAME
    capsys.readouterr()
    assert place.run(*accept) == Exit.SAME  # once more changes nothing
    assert "accepted baseline already" in capsys.readouterr().out
    added = ["archive", "add", str(place.candidate), "--label", "other", "--why", "x"]
    assert place.run(*added) == Exit.SAME
    assert "--label other and --why not recorded" in capsys.readouterr().out
    place.run("archive", "list", "--json")
    labels = json.loads(capsys.readouterr().out)
    assert [bool(entry["baseline"]) for entry in labels] == [False, False, True]


@pytest.mark.parametrize(
    ("line", "unseen"),
    [
        (("--m1", "--synthetic", "gdn"), "m1 on attention layers, mt on GDN and attention layers"),
        (("--mt", "2", "--rb", "2", "--synthetic", "hybrid"), "m1 on GDN and attention layers:"),
        (("--m1", "--mt", "2", "--synthetic", "hybrid"), "rb on GDN and attention layers:"),
    ],
)
def test_what_a_run_has_not_exercised_is_not_accepted(
    place: Place, capsys: pytest.CaptureFixture[str], line: tuple[str, ...], unseen: str
) -> None:
    place.candidate.write_bytes(BUILT.read_bytes() + b"another")
    assert place.suite(*line, "--prefix", "0") == Exit.SAME
    before = sorted(p.name for p in (place.folder / "archive/blobs/sha256").iterdir())
    capsys.readouterr()
    assert place.run("accept", "last", "--why", "good", *place.out) == Exit.UNPROVED
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and f"no green job was {unseen}" in told and "`run-ab`" in told
    assert before == sorted(p.name for p in (place.folder / "archive/blobs/sha256").iterdir())


def test_a_flipped_byte_in_the_baseline_is_refused(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs = place.folder / "archive/blobs/sha256"
    blob = max(blobs.iterdir(), key=lambda p: p.stat().st_size)
    blob.chmod(stat.S_IMODE(blob.stat().st_mode) | stat.S_IWUSR)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    assert place.suite("--mt", "2", "--synthetic", "gdn") == Exit.REFUSED
    told = capsys.readouterr()
    assert f"sha256:{blob.name}" in told.err and "found sha256:" in told.err
    assert not place.runs
    for command in ("gate", "archive verify"):
        assert place.run(*command.split()) == Exit.REFUSED


def test_a_damaged_blob_is_refused_by_every_way_to_it(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(place.folder / "archive", tmp_path / "copy")
    blob = max((copy / "blobs/sha256").iterdir(), key=lambda p: p.stat().st_size)
    assert cli.run(["symbols", str(blob)]) == Exit.SAME
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    link = tmp_path / "lib.so"
    link.symlink_to(blob)
    model = ["--synthetic", "gdn", "--prefix", "0"]
    added = ["archive", "add", "--label", "x", "--why", "x", *place.where]
    run = ["--m1", *model, *place.where, *place.out]
    for path in (blob, link):
        for line in (
            ["dump", "--library", str(path), "--synthetic", "gdn", "--out", str(tmp_path / "d")],
            ["symbols", str(path)],
            [*added, str(path)],
            [*added, str(path), "--no-probe"],
            [*run, "--candidate", str(path)],
            [*run, "--baseline", str(path), "--candidate", str(place.candidate)],
            ["gate", *place.where, "--candidate", str(path)],
        ):
            capsys.readouterr()
            assert cli.run(line) == Exit.REFUSED, line
            assert f"expected sha256:{blob.name}" in capsys.readouterr().err
    assert not place.runs and not (tmp_path / "d").exists()


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_a_library_that_is_cut_off_is_not_loaded(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: float
) -> None:
    data = BUILT.read_bytes()
    place.candidate.write_bytes(data[: int(kept * len(data))])
    line = ["--library", str(place.candidate), "--synthetic", "gdn", "--out", str(tmp_path / "d")]
    capsys.readouterr()
    assert cli.run(["dump", *line]) == Exit.FAILED
    told = capsys.readouterr().err
    assert "it is cut off: " in told and "SIG" not in told
    assert place.suite("--m1", "--synthetic", "gdn", "--prefix", "0") == Exit.FAILED
    assert "cut off" in capsys.readouterr().out


def test_the_gate_says_that_nothing_is_built_and_refuses_a_name_that_is_none(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.run("gate", "--candidate", str(place.folder / "none.so")) == Exit.USAGE
    assert "none.so: no such library; build it" in capsys.readouterr().err
    (place.folder / "pyproject.toml").write_text("[tool.vllm-ab]")
    monkeypatch.chdir(place.folder)
    assert place.run("gate") == Exit.SAME
    assert "candidate none: " in capsys.readouterr().out


def test_a_baseline_that_the_log_does_not_know_is_refused(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = tmp_path / "stranger.so"
    stranger.write_bytes(BUILT.read_bytes() + b"\0")
    known = ["--m1", "--synthetic", "gdn", "--prefix", "0", "--baseline"]
    capsys.readouterr()
    assert place.suite(*known, str(stranger)) == Exit.REFUSED and not place.runs
    assert "run-ab archive add LIBRARY" in capsys.readouterr().err
    assert place.suite(*known, str(place.candidate), "--same-library") == Exit.SAME
    assert place.suite(*known, "first", "--same-library") == Exit.SAME
    assert place.suite(*known, "nobody") == Exit.USAGE


def test_a_candidate_that_went_away_cannot_be_replayed(place: Place) -> None:
    place.candidate.write_bytes(BUILT.read_bytes() + b"\0")  # loads, and is not in the archive
    assert place.suite("--m1", "--synthetic", "gdn", "--prefix", "0") == Exit.SAME
    place.candidate.write_bytes(BUILT.read_bytes())
    assert place.run("replay", "last", *place.out) == Exit.REFUSED


def test_dump_and_compare(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "t.npy", np.arange(5, dtype=np.int32))
    (tmp_path / "u.txt").write_text("0 1 2 3 5")
    line = ["dump", "--library", str(place.candidate), "--synthetic", "attn"]
    for name, tokens in (("a", "t.npy"), ("b", "t.npy"), ("c", "u.txt")):
        made = [*line, "--tokens", str(tmp_path / tokens), "--out", str(tmp_path / name)]
        assert cli.run(made) == Exit.SAME
    assert capsys.readouterr().out.count("sha256:") >= 9
    assert cli.run(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == Exit.SAME
    assert cli.run(["compare", str(tmp_path / "a"), str(tmp_path / "c")]) == Exit.DIFFERS
    told = capsys.readouterr().out
    assert "h_out.npy [4, " in told and "logits.npy [4, " in told and "keys" in told
    assert told.count(" ulp") >= 2 and told.count("; rows 4") == 2
    assert cli.run([*line, "--out", str(tmp_path / "a")]) == Exit.USAGE  # never overwritten


def test_symbols(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.run(["symbols", str(place.candidate), "--json"]) == Exit.SAME
    told = json.loads(capsys.readouterr().out)
    assert "vcuda_dev_model_step" in told["exported"] and told["missing"] == []


@pytest.mark.parametrize("kind", ["checkpoint", "pack"])
def test_a_checkpoint_and_its_pack(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder = golden("tiny-hybrid")
    model, tokens = folder, folder / "tokens.npy"
    if kind == "pack":
        model = tmp_path / "model.pack"
        assert cli.run(["pack", str(folder), str(model)]) == Exit.SAME
    capsys.readouterr()
    given = ["--model", str(model), "--tokens", str(tokens)]
    assert place.suite("--mt", "4", *given) == Exit.SAME
    told = capsys.readouterr()
    assert "/p40/mt4" in told.out and "note: prefix 40 instead of 63: 48 tokens given" in told.err
    assert place.suite("--rb", "4", *given, "--prefix", "0") == Exit.SAME
    made = record.read_record(place.runs[-1])
    assert {Path(f.name).name for f in made.inputs} >= {"tokens.npy"}
    assert any(f.name.startswith(str(model)) for f in made.inputs)
    tokens_of = [t for op in made.suite.jobs[0].baseline.script for t in op.tokens]
    assert tokens_of == np.load(tokens)[: len(tokens_of)].tolist()


def test_text_is_bytes_for_a_synthetic_model(place: Place, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("every way of computing the step gives the same bits")
    line = ["--mt", "2", "--synthetic", "gdn", "--text", str(tmp_path / "t.txt")]
    assert place.suite(*line) == Exit.SAME
    script = record.read_record(place.runs[0]).suite.jobs[0].baseline.script
    assert bytes(t for op in script for t in op.tokens) in (tmp_path / "t.txt").read_bytes()
