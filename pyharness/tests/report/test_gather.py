"""What a run's document holds: of its record, of its red dumps, of the archive."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyharness import app, config, jobs, record
from pyharness.archive import accept, add
from pyharness.errors import GateRefusal
from pyharness.files import sha256_file
from pyharness.plan import Request, Workload, build
from pyharness.report.files import files
from pyharness.report.gather import GRIDS
from pyharness.report.trajectory import trajectory
from pyharness.tests.archive.samples import NOON, Site, library, small
from pyharness.tests.fake_arms import NEW, OLD, FakeLibrary, FakeRunner, broken, lacking
from pyharness.values import ModelSpec


def run(folder: Path, candidate: FakeLibrary = NEW, **chosen: Any) -> app.Outcome:
    model = ModelSpec("synthetic", "gdn", "tiny")
    request = {"mt": (2, 3), "rb": (), "libs_mt": (), "libs_rb": (), "prefixes": (1,)}
    suite = build([Workload(model, 16)], Request(**{**request, **chosen.pop("request", {})}))
    options = {"out": folder / "runs", "archive": folder / "archive", **chosen}
    settings = config.resolve(options, {}, folder)
    libraries: Any = {"baseline": OLD, "candidate": candidate}
    return app.run(suite, libraries, (), settings, FakeRunner(), workers=2)


def test_every_file_is_made_of_the_document_alone(tmp_path: Path) -> None:
    outcome = run(tmp_path, broken("rows"))
    _, read = record.read_verdict(outcome.folder)
    for name, data in files(read).items():
        assert (outcome.folder / name).read_bytes() == data, name


def test_a_document_binds_its_plan_and_its_record(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    for name, digest in outcome.document["files"].items():
        assert str(sha256_file(outcome.folder / name)[0]) == digest
    assert set(outcome.document["files"]) == {"plan.json", "record.json"}


def test_jobs_tell_what_they_are_and_their_times_add_up(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    told = {job["id"]: job for job in outcome.document["jobs"]}
    mt = told["gdn-tiny/p1/mt3"]
    assert (mt["model"], mt["kind"], mt["m"], mt["prefix"]) == ("gdn-tiny", "mt", 3, 1)
    assert mt["batches"] == [[0, 3]] and told["gdn-tiny/p1/m1"]["batches"] == []
    spent = sum(a.result.wall_s for a in outcome.record.arms)
    assert sum(job["seconds"] for job in told.values()) == pytest.approx(spent, abs=0.01)
    names = [f["name"] for f in mt["dumps"]["candidate"]["files"]]
    assert names == ["h_out.npy", "logits.npy", "state.safetensors"]


def test_a_red_job_has_grids_of_the_dumps_that_stay(tmp_path: Path) -> None:
    outcome = run(tmp_path, broken("rows"))
    told = {job["id"]: job for job in outcome.document["jobs"]}
    assert "grids" not in told["gdn-tiny/p1/m1"]
    grids = {g["file"]: g for g in told["gdn-tiny/p1/mt3"]["grids"]}
    assert grids["h_out.npy"]["different"] == []
    logits = np.array(grids["logits.npy"]["different"])
    assert np.argwhere(logits).tolist() == [[2, 3]]  # the last row of M = 3, one bit in column 3
    assert grids["logits.npy"]["distance"][2][3] == 1


@pytest.mark.parametrize(("budget", "kept"), [(0, 4), (1 << 30, GRIDS)])
def test_more_red_jobs_than_grids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, kept: int
) -> None:
    monkeypatch.setattr(jobs, "RED_BYTES_KEPT", budget)
    outcome = run(tmp_path, broken("rows"), request={"mt": tuple(range(2, 9)), "libs_mt": (2, 3)})
    red = [job for job in outcome.document["jobs"] if job["status"] == "differs"]
    pictured = [("grids" in job) for job in red]
    assert len(red) > GRIDS and pictured == [True] * kept + [False] * (len(red) - kept)
    stay = sum(all(dump["folder"] for dump in job["dumps"].values()) for job in red)
    assert stay == (len(red) if budget else 4)


def test_arms_that_did_not_run_have_no_dumps(tmp_path: Path) -> None:
    told = run(tmp_path, lacking("step_m")).document["jobs"]
    mt = next(job for job in told if job["kind"] == "mt")
    assert set(mt["dumps"]) == {"baseline"} and mt["status"] == "unsupported"


def test_the_command_to_replay_has_the_settings_that_matter(tmp_path: Path) -> None:
    spaced = tmp_path / "a folder"
    outcome = run(tmp_path, out=spaced, pin=tmp_path / "the.pin")
    words = shlex.split(outcome.document["replay"])
    assert words[:3] == ["run-ab", "replay", str(outcome.folder)]
    assert words[3:] == ["--archive", str(tmp_path / "archive"), "--pin", str(tmp_path / "the.pin")]


def test_with_the_default_settings_a_name_is_enough(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.vllm-ab]\n")
    settings = config.resolve({}, {}, tmp_path)
    suite = build([Workload(ModelSpec("synthetic", "gdn", "tiny"), 16)], Request(mt=(2,), rb=()))
    libraries: Any = {"baseline": OLD, "candidate": NEW}
    outcome = app.run(suite, libraries, (), settings, FakeRunner(), workers=1)
    assert outcome.document["replay"] == f"run-ab replay {outcome.folder.name}"


# ---- the archive ---------------------------------------------------------------------------------


def test_the_history_of_the_archive(tmp_path: Path) -> None:
    site = small(tmp_path)
    outcome = run(tmp_path, archive=site.archive, pin=site.pin)
    told = outcome.document["archive"]
    assert [x["label"] for x in told] == ["v0", "v1", "v2"]
    assert [x["baseline"] for x in told] == [False, True, False]
    assert told == trajectory(site.archive, site.pin) and outcome.document["notes"] == []


def test_an_archive_that_was_bent_during_the_run_is_a_note(tmp_path: Path) -> None:
    site = small(tmp_path)
    (site.archive / "index.json").chmod(0o644)
    (site.archive / "index.json").write_bytes(b"{}")
    outcome = run(tmp_path, archive=site.archive, pin=site.pin)
    assert outcome.document["archive"] == [] and outcome.verdict.exit_code == 0
    (note,) = outcome.document["notes"]
    assert note.startswith("no history of the archive: ")
    with pytest.raises(GateRefusal):
        trajectory(site.archive, site.pin)


def accepted(site: Site, seed: int, text: dict[str, Any]) -> dict[str, Any]:
    """The line of a library that was accepted with this record."""
    path = library(site, seed)
    said = add(site.archive, site.pin, path, label=f"v{seed}", why="test", now=NOON)
    digest = said.entry.library
    data = json.dumps({**text, "candidate": str(digest)}).encode()
    accept(site.archive, site.pin, digest, record=data, why="same", now=NOON)
    return trajectory(site.archive, site.pin)[-1]


def test_the_time_of_a_step_comes_from_the_record_of_the_accepted_run(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    text = json.loads((outcome.folder / "record.json").read_bytes())
    for arm in text["arms"]:  # the toy runner takes no times: 1 ms for the prefix, 2 us a step
        script = next(
            j[arm["arm"]]["script"] for j in text["suite"]["jobs"] if j["id"] == arm["job"]
        )
        arm["result"]["step_ns"] = [
            2000 * len(op["tokens"]) if op["record"] else 1_000_000 for op in script
        ]
    site = Site(tmp_path / "place")
    site.root.mkdir()
    line = accepted(site, 5, text)
    assert line["step_ns"] == {"gdn-tiny/p1": 2000.0}
    assert line["cpu"] == text["machine"]["cpu"] and "gpu" not in line
    text["machine"] |= {"gpu": "some GPU"}
    assert accepted(site, 6, text)["gpu"] == "some GPU"


@pytest.mark.parametrize("text", [{}, {"arms": 3}, {"arms": [], "suite": {"jobs": [{}]}}])
def test_a_record_of_another_form_has_no_times(tmp_path: Path, text: dict[str, Any]) -> None:
    line = accepted(Site(tmp_path), 5, text)
    assert "step_ns" not in line and line["accepted"] and line["size_bytes"] > 0
