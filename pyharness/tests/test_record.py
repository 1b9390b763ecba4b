"""A run's folder, its record and its verdict, and the three ways in which they are told."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest

from pyharness import app, config, record, replay
from pyharness.archive import layout
from pyharness.errors import Exit, GateRefusal, InputError, NothingProved, UsageError
from pyharness.files import sha256_file, write_atomically
from pyharness.plan import Request, Suite, Workload, build
from pyharness.report import document
from pyharness.report.junit import junit_xml
from pyharness.report.text import comparison_lines, job_lines, size, summary_line
from pyharness.tests.archive.samples import library, small, write
from pyharness.tests.fake_arms import NEW, OLD, FakeLibrary, FakeRunner, broken, lacking
from pyharness.values import Arm, ArmPlan, ArmResult, Comparison, Difference, JobStatus, ModelSpec
from pyharness.verdict import JobVerdict, Verdict, conclude

FILES = [
    "plan.json", "record.json", "junit.xml", "attestation.json", "report.html", "verdict.json",
]  # fmt: skip


def suite(**changes: Any) -> Suite:
    chosen = {"mt": (2,), "rb": (2,), "libs_mt": (2,), "libs_rb": (), "prefixes": (1,), **changes}
    return build([Workload(ModelSpec("synthetic", "gdn", "tiny"), 16)], Request(**chosen))


def settings_in(folder: Path) -> config.Settings:
    return config.resolve({"out": folder / "runs", "archive": folder / "archive"}, {}, folder)


def run(
    folder: Path, baseline: FakeLibrary = OLD, candidate: FakeLibrary = NEW, runner: Any = None
) -> app.Outcome:
    libraries: Any = {"baseline": baseline, "candidate": candidate}
    return app.run(suite(), libraries, (), settings_in(folder), runner or FakeRunner(), workers=2)


def test_a_run_leaves_everything_and_the_verdict_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def write(path: Path, data: bytes) -> None:
        written.append(path.name)
        write_atomically(path, data)

    monkeypatch.setattr(record, "write_atomically", write)
    outcome = run(tmp_path)
    assert written == FILES
    assert {p.name for p in outcome.folder.iterdir() if p.is_file()} == set(FILES)
    assert outcome.verdict.exit_code == Exit.SAME
    verdict, whole = record.read_verdict(outcome.folder)
    assert verdict == outcome.verdict and whole == outcome.document
    assert record.read_record(outcome.folder) == outcome.record


def test_the_record_holds_what_a_replay_needs(tmp_path: Path) -> None:
    made = run(tmp_path).record
    assert made.suite == suite()
    assert made.libraries["baseline"].digest == OLD.digest
    facts = made.libraries["candidate"].facts
    assert facts is not None and facts.build_info == {"backend": "fake"}
    done = [a for a in made.arms if a.result.status == "done"]
    assert len(done) == len(made.arms) and all(len(a.result.files) == 3 for a in done)
    assert made.environment["CUDA_DISABLE_PTX_JIT"] == "1" and "PATH" not in made.environment
    assert made.machine["cores"] >= 1 and made.sources == record.sources_digest()
    assert str(tmp_path) not in json.dumps([dataclasses.asdict(a) for a in made.arms], default=str)


class Interrupted(FakeRunner):
    def run(self, plan: ArmPlan, library: Any, out: Path) -> ArmResult:
        if plan.role == "control":
            raise KeyboardInterrupt
        return super().run(plan, library, out)


def test_an_interrupted_run_reads_as_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, runner=Interrupted())
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "verdict.json").exists() and not list(folder.rglob("*.npy"))
    with pytest.raises(NothingProved, match="did not finish"):
        record.read_verdict(folder)


def test_a_run_that_cannot_be_recorded_leaves_no_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, made: record.Record) -> None:
        assert list(folder.rglob("*.npy"))
        raise InputError("No space left on device")

    monkeypatch.setattr(record, "write_record", full)
    with pytest.raises(InputError, match="No space"):
        run(tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert [p.name for p in folder.iterdir()] == ["plan.json"]


def test_a_harness_that_changes_under_a_run_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter([OLD.digest, NEW.digest])
    monkeypatch.setattr(record, "sources_digest", lambda: next(digests))
    with pytest.raises(NothingProved, match="changed during the run"):
        run(tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "verdict.json").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b'{"schema": "ab-verdict/1"}', b'{"schema": "ab-verdict/2"}', b"\xff"],
)
def test_a_broken_verdict_or_record_is_one_line(tmp_path: Path, data: bytes) -> None:
    for name in ("verdict.json", "record.json"):
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=r"verdict\.json"):
        record.read_verdict(tmp_path)
    with pytest.raises(InputError, match=r"record\.json"):
        record.read_record(tmp_path)


def test_find_run(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    first, second, third = (
        out / f"2026010{day}T00000{day}.000Z-{id_}"
        for day, id_ in ((1, "aaaaaa"), (2, "bbbbbb"), (2, "cccccc"))
    )
    for folder in (first, second, third, out / "kept", out / "zzz"):
        folder.mkdir(parents=True)
    assert record.find_run(out, "last") == third  # not a folder of the user's own
    assert record.find_run(out, "20260101") == record.find_run(out, str(first)) == first
    for wrong in ("20260102", "nothing", ""):
        with pytest.raises(UsageError, match=f"named '{wrong}'"):
            record.find_run(out, wrong)
    with pytest.raises(UsageError):
        record.find_run(tmp_path / "none", "last")


def test_runs_have_names_of_their_own(tmp_path: Path) -> None:
    assert len({record.new_run(tmp_path) for _ in range(8)}) == 8


# ---- replay --------------------------------------------------------------------------------------


def test_replay_of_the_same_libraries_changes_nothing(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert replay.changes(first.record.arms, second.record.arms) == []
    assert replay.exit_code(first.record.arms, second.record.arms) is Exit.SAME


def test_replay_sees_every_arm_that_gives_other_bytes(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path, candidate=broken("rows"))
    changes = replay.changes(first.record.arms, second.record.arms)
    assert replay.exit_code(first.record.arms, second.record.arms) is Exit.DIFFERS
    assert any("mt2 candidate arm: logits.npy: expected sha256:" in line for line in changes)
    assert not any("baseline arm" in line for line in changes)


def test_replay_of_an_arm_that_fails_now_or_is_missing(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path, candidate=broken("crash"))
    changes = replay.changes(first.record.arms, second.record.arms)
    assert replay.exit_code(first.record.arms, second.record.arms) is Exit.FAILED
    assert any("was done, is failed: killed by SIGSEGV" in line for line in changes)
    assert replay.exit_code(first.record.arms, second.record.arms[1:]) in (
        Exit.FAILED,
        Exit.UNPROVED,
    )
    assert replay.exit_code(first.record.arms, first.record.arms[1:]) is Exit.UNPROVED
    assert replay.exit_code((), ()) is Exit.UNPROVED


def test_replay_reproduces_a_red_run_too(tmp_path: Path) -> None:
    first, second = run(tmp_path, candidate=broken("rows")), run(tmp_path, candidate=broken("rows"))
    assert first.verdict.exit_code == second.verdict.exit_code == Exit.DIFFERS
    assert replay.exit_code(first.record.arms, second.record.arms) is Exit.SAME


def test_replay_refuses_inputs_that_changed(tmp_path: Path) -> None:
    from pyharness.inputs.watch import input_file

    tokens = tmp_path / "t.txt"
    tokens.write_text("1 2 3")
    made = dataclasses.replace(run(tmp_path).record, inputs=(input_file(tokens).fact,))
    replay.check_inputs(made)
    tokens.write_text("1 2 4")
    with pytest.raises(InputError, match=r"t\.txt: is not the file of this run"):
        replay.check_inputs(made)
    tokens.unlink()
    with pytest.raises(InputError):
        replay.check_inputs(made)


def test_replay_finds_a_library_where_it_was_but_never_around_the_log(tmp_path: Path) -> None:
    site = small(tmp_path / "site")
    settings = config.resolve({"archive": site.archive, "pin": site.pin})
    path = library(site, 7)
    digest, size = sha256_file(path)
    orphan = site.archive / layout.blob_path(digest)  # nothing in the log speaks of it
    write(orphan, path.read_bytes())

    def opened(origin: Path) -> list[str]:
        made = record.LibraryRecord(digest, size, str(origin))
        before = dataclasses.replace(
            run(tmp_path).record, libraries={"baseline": made, "candidate": made}
        )
        with ExitStack() as stack:
            found = replay.open_libraries(stack, before, settings)
            return [found[arm].origin for arm in get_args(Arm)]

    assert opened(path) == [str(path)] * 2
    path.unlink()
    for gone in (path, orphan):
        with pytest.raises(
            GateRefusal, match=f"{digest} cannot be found again: .* nor is it at {gone}"
        ):
            opened(gone)


# ---- reports -------------------------------------------------------------------------------------

DIFFERENCE = Difference(
    "logits.npy", "", (3, 17), "0x3f800000", "0x3f800001", "1.0", "1.0000001", 5, 96
)


def verdicts() -> Verdict:
    rows = [
        ("same", JobStatus.SAME, "", False, Comparison(True, 1234)),
        ("red", JobStatus.DIFFERS, "", False, Comparison(False, 1234, (DIFFERENCE,))),
        ("missing", JobStatus.UNSUPPORTED, "baseline lacks vcuda_dev_model_mark", False, None),
        ("wanted", JobStatus.UNSUPPORTED, "baseline lacks vcuda_dev_model_mark", True, None),
        ("fails", JobStatus.FAILED, "candidate: killed by SIGSEGV \x1b[31m & <x>", False, None),
        ("shaky", JobStatus.NONDETERMINISTIC, "differs from itself", False, None),
        ("blind", JobStatus.INDISTINCT, "stays the same", False, Comparison(True, 9)),
    ]
    return conclude([JobVerdict(f"gdn-tiny/p63/{n}", s, r, q, c) for n, s, r, q, c in rows])


def test_each_job_is_one_line_and_one_for_each_file_that_differs() -> None:
    lines = {job.id: job_lines(job) for job in verdicts().jobs}
    assert lines["gdn-tiny/p63/red"][1].strip() == (
        "logits.npy [3, 17]: baseline 0x3f800000 (1.0), candidate 0x3f800001 (1.0000001); "
        "5 of 96 elements differ"
    )
    assert [len(v) for v in lines.values()] == [1, 2, 1, 1, 1, 1, 1]
    assert "1.2 kB equal" in lines["gdn-tiny/p63/same"][0]
    assert "vcuda_dev_model_mark" in lines["gdn-tiny/p63/missing"][0]


def test_comparison_lines_with_a_note() -> None:
    noted = dataclasses.replace(DIFFERENCE, note="baseline F32 [2], candidate F32 [3]")
    told = comparison_lines(Comparison(False, 10, (noted,)))
    assert told[0] == "differs" and "F32 [3]" in told[1]
    assert comparison_lines(Comparison(True, 10)) == ["same: 10 B equal"]


def test_summary_names_the_exit_code() -> None:
    assert "exit 1: at least one bit differs" in summary_line(verdicts())
    assert "1 job: 1 same; exit 0" in summary_line(conclude(verdicts().jobs[:1]))


def test_a_green_line_says_what_neither_library_could_run() -> None:
    lacks = "baseline and candidate lack vcuda_dev_model_step_m"
    mt4, refused = (
        JobVerdict(f"gdn-tiny/p63/mt4{case}", JobStatus.UNSUPPORTED, lacks, False)
        for case in ("", "-refused")
    )
    same = verdicts().jobs[0]
    told = summary_line(conclude([same, mt4, refused]))
    assert told.endswith(f"; nothing was shown of steps of M rows: {lacks}")
    shown = dataclasses.replace(same, id="gdn-tiny/p63/mt8")
    assert "nothing was shown" not in summary_line(conclude([same, shown, mt4, refused]))


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 1000, 2_500_000, 3 * 10**15)] == [
        "0 B", "999 B", "1.0 kB", "2.5 MB", "3000.0 TB",
    ]  # fmt: skip


def test_document_and_back() -> None:
    made = document.document(verdicts(), "run", {"baseline": {}}, ("a note",))
    data = document.dumps(made)
    verdict, whole = document.read(data, "x")
    assert verdict == verdicts() and whole["schema"] == "ab-verdict/1" and data.endswith(b"}\n")


def test_junit_counts_and_is_well_formed() -> None:
    made = document.document(verdicts(), "run", {"baseline": {"digest": "sha256:00\x00"}}, ())
    root = ET.fromstring(junit_xml(made))
    (suite_,) = root
    counts = {k: suite_.attrib[k] for k in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "7", "failures": "1", "errors": "4", "skipped": "1"}
    cases = {c.attrib["name"]: c for c in suite_.iter("testcase")}
    assert cases["red"].attrib["classname"] == "gdn-tiny.p63"
    assert "[3, 17]" in (cases["red"].find("failure").text or "")  # type: ignore[union-attr]
    assert cases["missing"].find("skipped") is not None and len(cases["same"]) == 0
    for name in ("wanted", "fails", "shaky", "blind"):
        assert cases[name].find("error") is not None


def test_an_old_baseline_runs_what_it_can(tmp_path: Path) -> None:
    outcome = run(tmp_path, baseline=lacking("step_m", "mark", "rollback"))
    assert outcome.verdict.exit_code == Exit.SAME
    assert "1 unsupported" in outcome.verdict.summary
    skipped = ET.fromstring((outcome.folder / "junit.xml").read_bytes()).iter("skipped")
    assert ["lacks vcuda_dev_model_step_m" in s.attrib["message"] for s in skipped] == [True]
