"""An acceptance or an add that stopped half way: nothing of it is a baseline, every command says
so, and the same command once more finishes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyharness.archive import fsck, store
from pyharness.errors import Exit, InputError
from pyharness.files import write_atomically
from pyharness.tests.place import Place

BUILT = Path(__file__).resolve().parents[2] / "build/cpu/libvllm_cuda.so"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, BUILT)


def another(place: Place) -> Path:
    path = place.folder / "new.so"
    path.write_bytes(BUILT.read_bytes() + b"new")
    return path


def baseline(place: Place) -> str:
    found = fsck.verify(place.folder / "archive", place.folder / "archive.pin").baselines
    return str(found["cpu"])


def test_what_was_to_be_accepted_is_no_baseline_before(place: Place) -> None:
    before = baseline(place)
    archive, pin, new = place.folder / "archive", place.folder / "archive.pin", another(place)
    added = store.add(archive, pin, new, label="new", why="x", record=b'{"of": "a run"}')
    assert added.added and baseline(place) == before
    assert place.run("gate") == Exit.SAME
    of_the_run = f'{{"library": "{added.entry.library}"}}'.encode()
    store.accept(archive, pin, added.entry.library, record=of_the_run, why="x")
    assert baseline(place) == str(added.entry.library)


def test_a_pin_that_cannot_be_written(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes, mode: int = 0o644) -> None:
        if path.name == "archive.pin":
            raise InputError(f"{path}: cannot be written: Read-only file system")
        write_atomically(path, data, mode)

    add = ("archive", "add", str(another(place)), "--label", "new", "--why", "x", "--no-probe")
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_atomically", refuse)
        assert place.run(*add) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Read-only file system" in said
    assert "the log has the entry already: repeat the command" in said

    for command, code in ((("archive", "verify"), Exit.SAME), (("gate",), Exit.REFUSED)):
        assert place.run(*command) == code
        assert "repeat the add or accept that was interrupted" in capsys.readouterr().err
    assert place.run("archive", "log") == Exit.SAME
    assert " baseline " not in "".join(capsys.readouterr().out.splitlines()[1:])

    assert place.run(*add) == Exit.SAME
    capsys.readouterr()
    for whole in (("archive", "verify"), ("gate",)):
        assert place.run(*whole) == Exit.SAME
        assert capsys.readouterr().err == ""
