"""A library that differs and does what it can to hide that: never the same, never green."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyharness.errors import Exit
from pyharness.tests.attack.command import call
from pyharness.tests.attack.kills import Place
from pyharness.tests.stubs import stub

SOURCE = Path(__file__).with_name("hostile.c")


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("hostile"))
    add = ["archive", "add", str(stub()), "--label", "sound", "--why", "x", *place.archive]
    assert call(add).code == Exit.SAME
    return place


@pytest.mark.parametrize(
    ("hostile", "codes"),
    [
        # what does no harm to the harness leaves the finding: the candidate differs
        ("chdir", {Exit.DIFFERS}),
        ("closes", {Exit.FAILED}),
        ("no-files", {Exit.FAILED, Exit.USAGE}),
        ("small-files", {Exit.FAILED, Exit.USAGE}),
        ("forks", {Exit.DIFFERS, Exit.FAILED, Exit.USAGE}),
        ("daemon", {Exit.DIFFERS, Exit.FAILED, Exit.UNPROVED, Exit.USAGE}),
        ("other-arm", {Exit.DIFFERS, Exit.FAILED, Exit.UNPROVED}),
        ("forges-done", {Exit.FAILED}),
        ("forges-unsupported", {Exit.FAILED}),
        ("forges-missing", {Exit.FAILED}),
        ("forges-unneeded", {Exit.FAILED}),
        ("forges-twice", {Exit.FAILED}),
        ("forges-a-line", {Exit.FAILED}),
    ],
)
def test_a_hostile_library_is_never_the_same(
    archived: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: str, codes: set[Exit]
) -> None:
    runs = tmp_path / "runs"
    monkeypatch.setenv("TMPDIR", str(runs))
    library = stub("forgets", (), (str(SOURCE), f'-DHOSTILE="{hostile}"'))
    line = ["--m1", "--synthetic", "gdn", "--prefix", "1", "--out", str(runs), "--timeout", "60"]
    ended = call([*line, "--candidate", str(library), *archived.archive])
    assert ended.code in codes, ended
    assert "defect" not in ended.err and "Traceback" not in ended.out + ended.err, ended
    assert all(line.isprintable() for line in ended.out.splitlines())  # no terminal obeys it
    assert not any(line.startswith("same ") for line in ended.out.splitlines())
    for path in runs.glob("*/verdict.json"):
        statuses = {job["status"] for job in json.loads(path.read_bytes())["jobs"]}
        assert "same" not in statuses
    verify = call(["archive", "verify", *archived.archive])
    assert verify.code == Exit.SAME, verify
