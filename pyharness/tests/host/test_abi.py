from __future__ import annotations

import ctypes
import dataclasses
import subprocess
from pathlib import Path

import pytest

from pyharness.errors import LibraryFailure
from pyharness.host import abi
from pyharness.tests.host.header import HEADER, differences
from pyharness.tests.stubs import HEADERS, compiler, stub

MARK = "vcuda_dev_model_mark"


def test_table_is_the_header() -> None:
    assert differences(HEADER.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#define VCUDA_ABI_VERSION 1", "#define VCUDA_ABI_VERSION 2"),
        ("VCUDA_E_MEMORY = 7", "VCUDA_E_MEMORY = 8"),
        ("VCUDA_E_INTERNAL = 9", "VCUDA_E_INTERNAL = 9, VCUDA_E_BUSY = 10"),
        ("VCUDA_F16 = 1", "VCUDA_HALF = 1"),
        ("VCUDA_STATE_CONV = 1", "VCUDA_STATE_TAPS = 1"),
        ("VCUDA_LAYER_ATTENTION = 1", "VCUDA_LAYER_ATTENTION = 2"),
        ("  int32_t vocab;  ", "  int64_t vocab;  "),
        ("  float rms_eps;", "  float rms_eps;\n  float rope_theta;"),
        ("  float offset;", "  float bias;"),
        ("  int64_t shape[4];", "  int64_t shape[5];"),
        ("  int32_t hidden, vocab, layers;", "  int32_t vocab, hidden, layers;"),
        ("  uint64_t key;", "  int64_t key;"),
        ("vcuda_synth", "vcuda_seed"),
        (
            "int32_t m, const int32_t* tokens,",
            "const int32_t* tokens, int32_t m,",
        ),
        ("vcuda_dev** out", "vcuda_dev* out"),
        ("const int32_t* tokens", "const int64_t* tokens"),
        ("uint64_t* needed);", "uint64_t* needed, int32_t flags);"),
        ("vcuda_dev_model_reset(vcuda_dev", "vcuda_dev_model_clear(vcuda_dev"),
        ("VCUDA_API int32_t vcuda_abi_version", "VCUDA_API int64_t vcuda_abi_version"),
        ("/* ---- optional", "/* ---- further, optional"),
        ("VCUDA_API vcuda_status vcuda_dev_model_mark(vcuda_dev* dev);", ""),
        ("#ifdef __cplusplus\n}", "VCUDA_API int32_t vcuda_more(void);\n#ifdef __cplusplus\n}"),
    ],
)
def test_a_changed_header_is_noticed(old: str, new: str) -> None:
    text = HEADER.read_text()
    assert old in text
    assert differences(text.replace(old, new))


@pytest.mark.parametrize("name", [f.name for f in abi.FUNCTIONS])
def test_a_changed_table_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = abi.FUNCTIONS
    for changed in (
        tuple(f for f in table if f.name != name),
        tuple(
            dataclasses.replace(f, required=not f.required) if f.name == name else f for f in table
        ),
        tuple(
            dataclasses.replace(f, argtypes=(*f.argtypes, ctypes.c_int64)) if f.name == name else f
            for f in table
        ),
    ):
        monkeypatch.setattr(abi, "FUNCTIONS", changed)
        assert differences(HEADER.read_text())


def test_struct_layout_is_the_compilers(tmp_path: Path) -> None:
    lines = []
    for name, kind in abi.STRUCTS.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        lines += [f'printf("%zu\\n", offsetof({name}, {f[0]}));' for f in kind._fields_]
    lines.append('printf("%zu\\n", sizeof(vcuda_status));')
    source = tmp_path / "layout.c"
    source.write_text(
        '#include "vllm_cuda.h"\n#include <stddef.h>\n#include <stdio.h>\n'
        f"int main(void) {{ {' '.join(lines)} return 0; }}\n"
    )
    program = tmp_path / "layout"
    subprocess.run([compiler(), f"-I{HEADERS}", source, "-o", program], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    expected = []
    for kind in abi.STRUCTS.values():
        expected += [ctypes.sizeof(kind), *(getattr(kind, f[0]).offset for f in kind._fields_)]
    assert [int(p) for p in printed] == [*expected, ctypes.sizeof(ctypes.c_int32)]


def bound(path: Path) -> abi.Bound:
    return abi.bind(ctypes.CDLL(str(path)))


def test_bind_a_whole_library() -> None:
    whole = bound(stub())
    assert whole.symbols == abi.REQUIRED + abi.OPTIONAL
    assert whole.missing == ()
    assert whole.abi_version == abi.ABI_VERSION
    assert whole.step_m is whole.functions["vcuda_dev_model_step_m"]
    with pytest.raises(AttributeError):
        _ = whole.no_such_entry


@pytest.mark.parametrize("name", abi.OPTIONAL)
def test_a_missing_optional_entry_is_recorded(name: str) -> None:
    lacking = bound(stub(without=(name,)))
    assert lacking.missing == (name,)
    assert lacking.functions[name] is None
    assert lacking.lacks((name, "vcuda_dev_open")) == (name,)


@pytest.mark.parametrize(
    "flag",
    [f'-DNULL_ENTRY="{MARK}"', f'-DWEAK_ENTRY="{MARK}"', f"-Wl,--defsym={MARK}=0"],
    ids=["ifunc", "weak undefined", "absolute"],
)
def test_an_entry_at_address_0_is_missing(flag: str) -> None:
    assert bound(stub(without=(MARK,), flags=(flag,))).missing == (MARK,)


@pytest.mark.parametrize("name", abi.REQUIRED)
def test_a_missing_required_entry_is_refused(name: str) -> None:
    with pytest.raises(LibraryFailure, match=rf"lacks required entries: {name}$"):
        bound(stub(without=(name,)))


def test_all_missing_required_entries_are_named_at_once() -> None:
    names = ("vcuda_dev_open", MARK, "vcuda_dev_model_step")
    with pytest.raises(LibraryFailure, match=r"entries: vcuda_dev_open, vcuda_dev_model_step$"):
        bound(stub(without=names))


def test_another_abi_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(LibraryFailure, match="ABI version 7, this harness speaks version 1"):
        bound(stub(flags=("-DSTUB_ABI_VERSION=7",)))
