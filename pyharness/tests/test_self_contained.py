"""A library is one file: one whose code lies in others is refused where its bytes are verified."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pyharness.archive import add, store
from pyharness.errors import InputError, LibraryFailure
from pyharness.gate import open_baseline, open_candidate
from pyharness.host import abi
from pyharness.host.elf import read_elf
from pyharness.tests.archive.samples import Site
from pyharness.tests.stubs import compiler, stub

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def linked(folder: Path, *flags: str) -> Path:
    """A library without entries of its own."""
    source, path = folder / "shell.c", folder / "shell.so"
    source.write_text("int version = 1;\n")
    command = [compiler(), "-shared", "-fPIC", str(source), "-o", str(path), *flags]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize("way", ["candidate", "add"])
def test_a_library_whose_code_lies_in_another_is_refused(tmp_path: Path, way: str) -> None:
    """A digest of the shell says nothing of the core, which can be built anew beside it."""
    core = stub(flags=("-Wl,-soname,libcore.so",))
    shell = linked(tmp_path, f"-Wl,--no-as-needed,-rpath,{tmp_path}", str(core))
    site = Site(tmp_path)
    with pytest.raises(InputError, match=f"^{shell}: needs libcore.so: link it in, its bytes"):
        if way == "candidate":
            open_candidate(shell)
        else:
            add(site.archive, site.pin, shell, label="shell", why="x")
    assert not site.archive.exists()
    open_candidate(shell, to_load=False).close()  # what only looks at the bytes


def test_an_archived_library_whose_code_lies_in_another_is_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = stub(flags=("-Wl,-soname,libcore.so",))
    site, shell = Site(tmp_path), linked(tmp_path, "-Wl,--no-as-needed", str(core))
    with monkeypatch.context() as before:  # as an archive may hold it since before the rule
        before.setattr(store, "require_self_contained", lambda data, name: None)
        add(site.archive, site.pin, shell, label="shell", why="x")
    for _ in range(2):  # the second one finds no descriptor of the first
        opened = sorted(os.listdir("/proc/self/fd"))
        with pytest.raises(InputError, match=r"needs libcore\.so: link it in"):
            open_baseline(site.archive, site.pin)
        assert sorted(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("-Wl,-rpath,/opt/x",), "has DT_RUNPATH /opt/x: link without it"),
        (("-Wl,-rpath,/opt/x,--disable-new-dtags",), "has DT_RPATH /opt/x: link without it"),
        (("-Wl,-f,libx.so",), "has DT_AUXILIARY libx.so: link without it"),
        (("-Wl,-F,libx.so",), "has DT_FILTER libx.so: link without it"),
    ],
)
def test_what_leads_the_loader_to_other_files_is_refused(flags: tuple[str, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        open_candidate(stub(flags=flags))


def test_an_entry_is_defined_in_the_file_itself(tmp_path: Path) -> None:
    """Also where a name of the system's own would bring it."""
    core = stub(flags=("-Wl,-soname,libgomp.so.1",))
    shell = linked(tmp_path, "-Wl,--no-as-needed", str(core))
    lacks = f"lacks required entries: {', '.join(abi.REQUIRED)}"
    with pytest.raises(LibraryFailure, match=lacks):
        open_candidate(shell)
    with pytest.raises(LibraryFailure, match=lacks):
        add(tmp_path / "archive", tmp_path / "pin", shell, label="shell", why="x")


def test_what_every_system_has_may_be_needed() -> None:
    needed = (
        "-Wl,--no-as-needed",
        "-lm",
        "-lpthread",
        "-ldl",
        "-lrt",
        "-lgcc_s",
        "-l:libstdc++.so.6",
    )
    with open_candidate(stub(flags=needed)) as opened:
        facts = read_elf(os.pread(opened.fd, 1 << 20, 0))
        assert {"libm.so.6", "libc.so.6", "libstdc++.so.6", "libgcc_s.so.1"} <= set(facts.needed)
