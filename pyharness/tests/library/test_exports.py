"""What the built libraries export is the header's table, no more and no less."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyharness.host import abi
from pyharness.host.elf import read_elf_file
from pyharness.tests.library.sessions import ROOT

VERSION = "VLLM_CUDA_1"  # the symbol of exports.map's version itself
BUILT = sorted(ROOT.glob("build/*/libvllm_cuda.so"))


@pytest.mark.parametrize("library", BUILT, ids=lambda path: path.parent.name)
def test_exports(library: Path) -> None:
    if "asan" in library.parent.name:
        pytest.skip("a sanitized build exports its runtime's symbols too")
    assert set(read_elf_file(library).names) - {VERSION} == {f.name for f in abi.FUNCTIONS}


def test_the_cpu_library_is_built() -> None:
    assert ROOT / "build" / "cpu" / "libvllm_cuda.so" in BUILT
