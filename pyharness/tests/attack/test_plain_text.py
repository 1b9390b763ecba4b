"""What others wrote is shown as text: no terminal obeys it, nothing takes it for markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyharness.errors import Exit
from pyharness.tests.attack.command import Ended, call, toy_runs
from pyharness.tests.stubs import stub


def test_names_in_a_library_are_shown_as_text(tmp_path: Path) -> None:
    name = b"vcuda_dev_poison"
    data = stub().read_bytes().replace(name + b"\0", b"vcuda_\x1b[2J\n:x:[/b]"[: len(name)] + b"\0")
    path = tmp_path / "library.so"
    path.write_bytes(data)
    ended = call(["symbols", path])
    assert not ended.complaint and "vcuda_\\x1b[2J\\n:x:" in ended.out


def test_reasons_in_the_log_are_shown_as_text(tmp_path: Path) -> None:
    """Square brackets once were markup, and a closing one took the command down."""
    where = ["--archive", str(tmp_path / "archive"), "--pin", str(tmp_path / "pin")]
    why = "[/bold] twice [red]as fast[/red] :warning:"
    assert call(["archive", "add", stub(), "--label", "x", "--why", why, *where]).code == Exit.SAME
    for command in ("list", "log"):
        ended = call(["archive", command, *where])
        assert ended.code == Exit.SAME and not ended.complaint, ended
    assert why in ended.out


def test_a_folder_whose_name_is_markup(tmp_path: Path) -> None:
    out = tmp_path / "[bold]:x:[/red]"
    with toy_runs():
        ended = call(["--m1", "--synthetic", "gdn", "--prefix", "1", "--out", out])
    assert ended.code == Exit.SAME and f"run {out}/" in ended.out, ended


@pytest.mark.parametrize("out", ["a\x1b[2Jb", "a\u202eb", "a\u009bb"])
def test_the_check_on_the_checker(out: str) -> None:
    assert "what a terminal obeys" in Ended(Exit.SAME, f"{out}\n", "").complaint
