"""What machines and CI servers read: golden files, limits, escapes, the schema, the attestation."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from pyharness import cli
from pyharness.differences.findings import Divergence, Explanation, Spread
from pyharness.errors import Exit
from pyharness.report.attestation import attestation
from pyharness.report.document import SCHEMA_FILE, dumps, read
from pyharness.report.github import ANNOTATIONS, SUMMARY_BYTES, announce, error_lines, summary
from pyharness.report.html import page
from pyharness.report.junit import junit_xml
from pyharness.report.maps import Grid
from pyharness.tests.report.samples import GOLDEN, HOSTILE, golden, jobs, many, whole
from pyharness.values import NOT_RUN, Comparison, Difference, FileFact, JobStatus
from pyharness.verdict import JobVerdict, conclude

PUBLISHED = json.loads(SCHEMA_FILE.read_text())
SCHEMA = jsonschema.Draft202012Validator(PUBLISHED)


def strict(schema: Any) -> Any:
    """The schema with every member that it does not name refused."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    made = {k: strict(v) for k, v in schema.items()}
    if "properties" in made and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize("name", sorted(golden()))
def test_golden(name: str) -> None:
    assert golden()[name] == (GOLDEN / name).read_text(encoding="utf-8")


# ---- the schema ----------------------------------------------------------------------------------


def test_the_schema_is_one_and_names_every_member() -> None:
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)
    jsonschema.Draft202012Validator(strict(PUBLISHED)).validate(whole())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "ab-verdict/2"),
        (("exit_code",), 3),
        (("libraries", "baseline", "digest"), "sha256:00"),
        (("libraries", "other"), {}),
        (("jobs", 0, "status"), "green"),
        (("jobs", 1, "comparison", "differences", 0, "different"), -1),
        (("jobs", 1, "grids", 0, "distance", 0, 0), "1"),
        (("started",), "yesterday"),
    ],
)
def test_the_schema_refuses(path: tuple[Any, ...], value: Any) -> None:
    broken = whole()
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(broken)


@pytest.mark.parametrize("member", PUBLISHED["required"])
def test_the_schema_wants_each_required_member(member: str) -> None:
    broken = whole()
    del broken[member]
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(broken)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (JobVerdict, "job"),
        (Comparison, "comparison"),
        (Difference, "difference"),
        (FileFact, "file"),
        (Divergence, "divergence"),
        (Spread, "spread"),
        (Explanation, "explanation"),
        (Grid, "grid"),
    ],
)
def test_the_schema_names_every_field_of_a_value(kind: Any, name: str) -> None:
    fields = {f.name for f in dataclasses.fields(kind)}
    assert fields <= set(PUBLISHED["$defs"][name]["properties"])


def test_a_verdict_comes_back_whatever_is_told_beside_it() -> None:
    verdict, told = read(dumps(whole()), "x")
    assert verdict == conclude(jobs()) and told == whole()


# ---- JUnit ---------------------------------------------------------------------------------------


def test_junit_tells_the_time_of_each_case() -> None:
    (suite,) = ET.fromstring(junit_xml(whole()))
    times = [float(case.attrib["time"]) for case in suite.iter("testcase")]
    assert times == [0.25] * len(jobs()) and float(suite.attrib["time"]) == sum(times)
    properties = {p.attrib["name"]: p.attrib["value"] for p in suite.iter("property")}
    assert properties["candidate.size_bytes"] == "8000"


# ---- GitHub --------------------------------------------------------------------------------------


def decoded(line: str) -> tuple[str, str]:
    """Title and message, as the runner reads them."""
    found = re.fullmatch(r"::error title=([^:,\r\n]*)::([^\r\n]*)", line)
    assert found, line

    def plain(text: str) -> str:
        for escape, character in (
            ("2C", ","),
            ("3A", ":"),
            ("0A", "\n"),
            ("0D", "\r"),
            ("25", "%"),
        ):
            text = text.replace(f"%{escape}", character)
        return text

    return plain(found[1]), plain(found[2])


@pytest.mark.parametrize("count", [1, 9, 10, 11, 100])
def test_annotations_keep_to_their_limit_and_count_the_rest(count: int) -> None:
    lines = error_lines(whole(many(count)))
    assert len(lines) == min(count, ANNOTATIONS) and "\n" not in "".join(lines)
    if count > ANNOTATIONS:
        assert decoded(lines[-1])[0] == f"and {count - ANNOTATIONS + 1} more"
    else:
        assert decoded(lines[-1])[0] == f"differs: gdn-tiny/p63/mt{count + 1}"


def test_annotations_of_hostile_text_stay_one_line_each() -> None:
    lines = error_lines(whole(jobs(HOSTILE)))
    titles = [decoded(line)[0] for line in lines]
    assert titles[:2] == ["differs: gdn-tiny/p63/mt2", "differs: gdn-tiny/p63/mt4"]
    assert len(lines) == 6  # not the same one, not the one that merely lacks something
    assert f"candidate: {HOSTILE}" in [decoded(line)[1] for line in lines]


def test_an_annotation_begins_with_where_to_look() -> None:
    found = Divergence(
        ("baseline", "candidate"), 65, "mixer", (2, 0), ("0x3b443eac", "0x3bca2d10"), row=2, rows=4,
        layer=7, layer_kind="attention", part="head 0", different=3, total=256, also=("keys",),
    )  # fmt: skip
    told = whole([dataclasses.replace(many(1)[0], divergence=found)])
    _, message = decoded(error_lines(told)[0])
    assert message.startswith("first difference: step 65 (row 2 of the 4-row step), layer 7")
    text = page(told)
    assert "<strong>First difference: step 65 (row 2 of the 4-row step), layer 7" in text
    assert "3 of 256 elements differ; so does the layer&#x27;s state: keys" in text
    assert "0x3b<mark>443eac</mark>" in text


def test_jobs_that_were_not_run_are_announced_once() -> None:
    reason = f"{NOT_RUN}3 runs of the candidate timed out"
    failed = [JobVerdict(f"gdn-tiny/p63/mt{m}", JobStatus.FAILED, reason, True) for m in (6, 7, 8)]
    told = whole([*failed[:2], *many(3), failed[2]])
    lines = error_lines(told)
    assert [decoded(line)[0] for line in lines[:3]] == [
        f"differs: gdn-tiny/p63/mt{m}" for m in (2, 3, 4)
    ]
    assert decoded(lines[3]) == ("failed: 3 jobs", reason) and len(lines) == 4
    assert summary(told).count("3 runs of the candidate") == 1
    assert f"- `failed 3 jobs {reason}`\n" in summary(told)
    every = error_lines(whole([*many(12), *failed]))
    assert decoded(every[-1])[0] == "and 6 more" and len(every) == ANNOTATIONS


def test_a_summary_of_many_red_jobs_fits_and_keeps_its_end() -> None:
    told = summary(whole(many(100, "x" * 20_000)))
    assert len(told.encode()) <= SUMMARY_BYTES < 1 << 20
    assert re.search(r"\d+ more lines do not fit", told)
    assert told.endswith("Again: `run-ab replay run-1`\n")
    assert "more lines" not in summary(whole(many(100)))


def test_a_summary_has_the_matrix_and_no_live_markup() -> None:
    told = summary(whole(jobs(HOSTILE), HOSTILE))
    assert "| mt2 | **D** | **U** |" in told and "| m1 | S |  |" in told
    outside = re.sub(r"`[^`\n]*`", "", told)
    assert "<script" not in outside and "\x1b" not in told and "\u202e" not in told


def test_announced_only_to_github(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(whole())
    assert capsys.readouterr() == ("", "")
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (tmp_path / "GITHUB_OUTPUT").write_text("other=1\n")
    announce(whole())
    assert capsys.readouterr().out.splitlines() == error_lines(whole())
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text() == summary(whole())
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == "other=1\nverdict=differs\n"
    announce(whole(), to_stderr=True)
    assert capsys.readouterr().out == ""


def test_the_summaries_of_one_step_fit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    for _ in range(3):
        announce(whole(many(100, "x" * 10_000)))
    told = (tmp_path / "summary").read_text()
    assert len(told.encode()) < 1 << 20 and told.count("## run-ab: ") == 3
    assert told.count("Again: `run-ab replay run-1`") == 3 and "more lines do not fit" in told


def test_a_summary_that_cannot_be_written_changes_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "summary"))
    announce(whole())
    assert "GITHUB_STEP_SUMMARY" in capsys.readouterr().err


def test_an_error_before_a_verdict_is_announced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["gate", "--archive", str(tmp_path / "none"), "--pin", str(tmp_path / "pin")]
    (tmp_path / "pin").write_text("not a pin\n")
    assert cli.run(line) == Exit.REFUSED and "::error" not in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    assert cli.run(line) == Exit.REFUSED
    plain, command = capsys.readouterr().err.splitlines()
    title, message = decoded(command)
    assert title == "run-ab: refused" and plain == f"run-ab: {message}"
    assert (tmp_path / "output").read_text() == "verdict=refused\n"


# ---- the attestation -----------------------------------------------------------------------------


def test_the_statement_has_the_members_of_its_specification() -> None:
    made = attestation(whole())
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert set(made) == {"_type", "subject", "predicateType", "predicate"}
    lists = {"configuration", "passedTests", "warnedTests", "failedTests"}
    assert set(made["predicate"]) == {"result", *lists}
    for described in (*made["subject"], *made["predicate"]["configuration"]):
        assert re.fullmatch("[0-9a-f]{64}", described["digest"]["sha256"])
    for key in ("name", "digest"):  # each artifact is one subject
        found = [json.dumps(s[key]) for s in made["subject"]]
        assert len(found) == len(set(found))


def test_the_subjects_are_the_candidate_and_what_it_dumped() -> None:
    told = whole()
    made = attestation(told)
    found = {f"sha256:{s['digest']['sha256']}" for s in made["subject"]}
    dumped = {f["sha256"] for job in told["jobs"] for f in job["dumps"]["candidate"]["files"]}
    assert found == {told["libraries"]["candidate"]["digest"], *dumped}
    configuration = [c["name"] for c in made["predicate"]["configuration"]]
    assert configuration == ["baseline", "plan.json", "record.json", "/tokens.npy"]


def test_every_job_is_passed_warned_or_failed_once() -> None:
    predicate = attestation(whole())["predicate"]
    assert predicate["passedTests"] == ["gdn-tiny/p63/m1"]
    assert predicate["warnedTests"] == ["gdn-tiny/p63/rb2"]
    named = [n for k in ("passedTests", "warnedTests", "failedTests") for n in predicate[k]]
    assert sorted(named) == sorted(job.id for job in jobs())


@pytest.mark.parametrize(
    ("chosen", "result"), [((0,), "PASSED"), ((0, 3), "WARNED"), ((0, 1), "FAILED"), ((), "FAILED")]
)
def test_the_result(chosen: tuple[int, ...], result: str) -> None:
    every = jobs()
    assert attestation(whole([every[i] for i in chosen]))["predicate"]["result"] == result


def test_what_is_made_of_a_document_does_not_change_it() -> None:
    told = whole()
    before = copy.deepcopy(told)
    junit_xml(told), attestation(told), summary(told), error_lines(told)
    assert told == before
