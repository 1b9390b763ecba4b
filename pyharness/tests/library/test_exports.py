"""What the built libraries export is the list of native/exports.map, no more and no less, and that
list is the header's table.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyharness.host import abi
from pyharness.host.elf import read_elf_file
from pyharness.tests.library.sessions import ROOT

MAP = (ROOT / "native" / "exports.map").read_text()
VERSION = MAP.split()[0]  # the symbol of the version itself
LISTED = re.findall(r"^    (\w+);$", MAP, re.MULTILINE)
BUILT = sorted(ROOT.glob("build/*/libvllm_cuda.so"))


@pytest.mark.parametrize("library", BUILT, ids=lambda path: path.parent.name)
def test_exports(library: Path) -> None:
    if "asan" in library.parent.name:
        pytest.skip("a sanitized build exports its runtime's symbols too")
    assert set(read_elf_file(library).names) - {VERSION} == set(LISTED)


def test_the_list_is_the_headers_table() -> None:
    assert sorted(f.name for f in abi.FUNCTIONS) == LISTED


def test_the_cpu_library_is_built() -> None:
    assert ROOT / "build" / "cpu" / "libvllm_cuda.so" in BUILT
