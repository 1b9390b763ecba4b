from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from pyharness.errors import InputError
from pyharness.host import abi
from pyharness.host.elf import read_elf, read_elf_file
from pyharness.tests.stubs import compiler, stub

MARK = "vcuda_dev_model_mark"


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_exports_of_either_hash_table(style: str) -> None:
    facts = read_elf_file(stub(flags=(f"-Wl,--hash-style={style}",)))
    assert facts.names == set(abi.REQUIRED + abi.OPTIONAL)
    assert [s.name for s in facts.exported] == sorted(facts.names)
    assert {s.kind for s in facts.exported} == {"function"}
    assert any(name.startswith("libc.so") for name in facts.needed)


def test_machine_size_and_soname() -> None:
    path = stub(flags=("-Wl,-soname,libstub.so.1",))
    facts = read_elf_file(path)
    assert facts.soname == "libstub.so.1"
    assert facts.size_bytes == path.stat().st_size
    assert facts.machine in ("x86-64", "aarch64")


def test_exports_without_section_headers(tmp_path: Path) -> None:
    data = bytearray(stub().read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    assert read_elf(bytes(data)) == read_elf(stub().read_bytes())


def test_a_missing_entry_is_not_exported() -> None:
    assert MARK not in read_elf_file(stub(without=(MARK,))).names


def test_an_entry_at_address_0_is_exported_and_leads_nowhere() -> None:
    facts = read_elf_file(stub(without=(MARK,), flags=(f"-Wl,--defsym={MARK}=0",)))
    assert [s.address for s in facts.exported if s.name == MARK] == [0]
    assert MARK not in facts.names


def test_kinds_and_bindings(tmp_path: Path) -> None:
    source, path = tmp_path / "kinds.c", tmp_path / "kinds.so"
    source.write_text(
        "int data = 3; __thread int local; static int hidden; "
        "__attribute__((weak)) int soft(void) { return hidden; } "
        '__attribute__((visibility("hidden"))) int inner(void) { return 1; } '
        "extern int elsewhere(void); int calls(void) { return elsewhere(); }"
    )
    subprocess.run([compiler(), "-shared", "-fPIC", source, "-o", path], check=True)
    symbols = {s.name: s for s in read_elf_file(path).exported}
    assert symbols.keys() == {"data", "local", "soft", "calls"}
    assert (symbols["data"].kind, symbols["data"].size_bytes) == ("object", 4)
    assert symbols["local"].kind == "tls"
    assert (symbols["soft"].kind, symbols["soft"].binding) == ("function", "weak")


def test_the_name_of_a_symbol_version_is_no_export(tmp_path: Path) -> None:
    script = tmp_path / "exports.map"
    script.write_text("STUB_1 { global: vcuda_*; local: *; };")
    facts = read_elf_file(stub(flags=(f"-Wl,--version-script={script}",)))
    assert {s.name for s in facts.exported} == set(abi.REQUIRED + abi.OPTIONAL)


def test_agrees_with_nm() -> None:
    if not shutil.which("nm"):
        pytest.skip("no nm on this machine")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", stub()], capture_output=True, text=True, check=True
    ).stdout
    expected = {line.split()[2]: int(line.split()[0], 16) for line in listed.splitlines()}
    assert {s.name: s.address for s in read_elf_file(stub()).exported} == expected


def patched(offset: int, value: bytes) -> bytes:
    data = bytearray(stub().read_bytes())
    data[offset : offset + len(value)] = value
    return bytes(data)


def dynamic_head(data: bytes | bytearray) -> int:
    """Where the program header of the dynamic segment lies."""
    start, count = int.from_bytes(data[32:40], "little"), data[56]
    heads = range(start, start + 56 * count, 56)
    return next(at for at in heads if data[at : at + 4] == b"\2\0\0\0")


def dynamic_patched(field: int, value: bytes) -> bytes:
    return patched(dynamic_head(stub().read_bytes()) + field, value)


def test_the_last_of_a_tag_counts_as_for_the_loader() -> None:
    """Else a second string table would hide the names of what is loaded beside the library."""
    data = bytearray(stub(flags=("-Wl,-soname,libstub.so.1",)).read_bytes())
    at = dynamic_head(data)
    start, size = (int.from_bytes(data[at + f : at + f + 8], "little") for f in (8, 32))
    slots = [bytes(data[o : o + 16]) for o in range(start, start + size, 16)]
    needed = next(slot[8:] for slot in slots if slot[:8] == b"\1" + bytes(7))
    end = start + 16 * slots.index(bytes(16))
    assert read_elf(bytes(data)).soname == "libstub.so.1" and size > end + 32 - start
    data[end : end + 16] = b"\x0e" + bytes(7) + needed  # DT_SONAME
    assert read_elf(bytes(data)).soname == read_elf(bytes(data)).needed[0] != "libstub.so.1"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (lambda: b"", "does not start with the ELF magic"),
        (lambda: b"#!/bin/sh\n", "does not start with the ELF magic"),
        (lambda: stub().read_bytes()[:50], "ends inside the ELF header"),
        (lambda: patched(4, b"\x01"), "only 64-bit little-endian"),
        (lambda: patched(5, b"\x02"), "only 64-bit little-endian"),
        (lambda: patched(16, b"\x01\x00"), "type 1 is not a shared object"),
        (lambda: patched(32, b"\xff" * 8), "past the end"),
        (lambda: patched(54, b"\x00\x00"), "program headers of 0 bytes"),
        (lambda: patched(56, b"\x00\x00"), "no dynamic segment"),
        (lambda: stub().read_bytes()[:4096], "cut off: 4096 bytes of"),
        (lambda: stub().read_bytes()[:-1], "cut off"),
        (lambda: dynamic_patched(8, b"\0" * 8), "the dynamic segment has two places"),
        (lambda: dynamic_patched(32, b"\x20\0"), "the dynamic segment has no end"),
        (lambda: dynamic_patched(32, b"\xff\xff\xff"), "a dynamic segment of 16777215 bytes"),
    ],
)
def test_a_malformed_library_is_one_line(data, what: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=f"^lib.so is not a usable shared library: .*{what}"):
        read_elf(data(), "lib.so")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*: No such file"):
        read_elf_file(tmp_path / "none.so")


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_any_damage_is_read_or_refused(style: str) -> None:
    """Damaged or cut bytes give facts or an InputError, nothing else, and at once."""
    whole = stub(flags=(f"-Wl,--hash-style={style}",)).read_bytes()
    rng, refused = random.Random(1), 0
    for _ in range(1500):
        data = bytearray(whole[: rng.choice((len(whole), rng.randrange(len(whole))))])
        for _ in range(rng.randrange(1, 6)):
            if data:
                data[rng.randrange(min(len(data), 6000))] = rng.choice((0, 1, 127, 255))
        try:
            read_elf(bytes(data))
        except InputError:
            refused += 1
    assert refused > 500
