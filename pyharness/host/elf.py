"""Reads what a shared library exports and needs, without loading it.

Goes by the dynamic segment, as the loader does, so a library without section headers reads too.
Only 64-bit little-endian ELF: what the supported machines load.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyharness.errors import InputError, LibraryFailure
from pyharness.files import LARGEST_LIBRARY, read_regular

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 1, 4, 5, 6, 10, 11
_DT_SONAME, _DT_GNU_HASH = 14, 0x6FFFFEF5
# names after which the loader opens further files, or where it looks for them first
_BORROWING = {15: "RPATH", 29: "RUNPATH", 0x7FFFFFFD: "AUXILIARY", 0x7FFFFFFF: "FILTER"}
# what a system brings itself, and the sanitizers' libraries that have to come before Python's
_OF_THE_SYSTEM = re.compile(
    r"lib(c|m|stdc\+\+)\.so\.6|lib(dl|pthread|rt|gcc_s|gomp|cuda|asan|ubsan)\.so\.\d"
    r"|ld-linux[a-z0-9-]*\.so\.\d"
)
_LARGEST_DYNAMIC = 1 << 14  # bytes
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_KINDS = {0: "notype", 1: "object", 2: "function", 5: "common", 6: "tls", 10: "ifunc"}
_BINDINGS = {1: "global", 2: "weak", 10: "unique"}
_MACHINES = {62: "x86-64", 183: "aarch64", 243: "riscv64"}
_SHN_UNDEF, _SHN_ABS, _ET_DYN = 0, 0xFFF1, 3
_LONGEST_NAME = 1 << 14  # bytes; names may overlap, so that they could be far more than the file
_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN


@dataclass(frozen=True, order=True)
class Symbol:
    name: str
    kind: str  # function, object, ifunc, ...
    binding: str  # global, weak, unique (merged process-wide: a hazard when two versions meet)
    address: int  # 0: the name is there and leads nowhere
    size_bytes: int


@dataclass(frozen=True)
class ElfFacts:
    machine: str
    soname: str
    needed: tuple[str, ...]
    borrows: tuple[tuple[str, str], ...]  # RPATH, FILTER and the like, with what they name
    exported: tuple[Symbol, ...]  # by name
    size_bytes: int

    @property
    def names(self) -> frozenset[str]:
        """Exported names that lead somewhere."""
        return frozenset(s.name for s in self.exported if s.address or s.kind == "tls")


def read_elf_file(path: Path) -> ElfFacts:
    try:
        data = read_regular(path, limit=LARGEST_LIBRARY)
    except InputError as e:
        raise InputError(f"cannot read {e}") from None
    return read_elf(data, str(path))


def require_self_contained(data: bytes | mmap.mmap, name: str) -> None:
    """What has the digest is what runs: InputError where the loader would bring files beside this
    one and the system's own, LibraryFailure where a required entry is not defined in this one. Of a
    file that cannot be read here nothing is said: ``loader`` does not load it.
    """
    from pyharness.host import abi  # with numpy, which a look at the archive does without

    try:
        facts = _Reader(data).facts()
    except _Malformed:
        return
    if foreign := [n for n in facts.needed if not _OF_THE_SYSTEM.fullmatch(n)]:
        raise InputError(
            f"{name}: needs {', '.join(foreign)}: link it in, its bytes would not be the verified "
            "ones"
        )
    for kind, value in facts.borrows:
        raise InputError(
            f"{name}: has DT_{kind} {value}: link without it, what it leads to would not be the "
            "verified bytes"
        )
    if lacking := [entry for entry in abi.REQUIRED if entry not in facts.names]:
        raise LibraryFailure(f"{name}: lacks required entries: {', '.join(lacking)}")


def read_elf(data: bytes, name: str = "library") -> ElfFacts:
    """Facts of a shared library's bytes. InputError names what is malformed."""
    try:
        return _Reader(data).facts()
    except _Malformed as e:
        raise InputError(f"{name} is not a usable shared library: {e}") from None


class _Malformed(Exception):
    pass


class _Reader:
    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data
        if data[:4] != b"\x7fELF":
            raise _Malformed("it does not start with the ELF magic")
        if len(data) < 64:
            raise _Malformed("it ends inside the ELF header")
        if data[4] != 2 or data[5] != 1:
            raise _Malformed("only 64-bit little-endian ELF is supported")
        kind, self.machine = self._unpack("<HH", 16)
        if kind != _ET_DYN:
            raise _Malformed(f"ELF type {kind} is not a shared object (3)")
        (offset,) = self._unpack("<Q", 32)
        entry, count = self._unpack("<HH", 54)
        if entry < 56:
            raise _Malformed(f"program headers of {entry} bytes")
        heads = [self._unpack("<IIQQQQ", offset + i * entry) for i in range(count)]
        # (type, flags, offset, vaddr, paddr, filesz)
        self._require_whole(heads)
        self.loads = [(h[3], h[2], h[5]) for h in heads if h[0] == _PT_LOAD]
        self.dynamic = list(self._dynamic([h for h in heads if h[0] == _PT_DYNAMIC]))
        self.tags = dict(self.dynamic)  # the last of a tag counts, as for the loader

    def facts(self) -> ElfFacts:
        return ElfFacts(
            machine=_MACHINES.get(self.machine, f"machine {self.machine}"),
            soname=self._string(self.tags[_DT_SONAME]) if _DT_SONAME in self.tags else "",
            needed=tuple(self._string(v) for tag, v in self.dynamic if tag == _DT_NEEDED),
            borrows=tuple(
                (_BORROWING[tag], self._string(v)) for tag, v in self.dynamic if tag in _BORROWING
            ),
            exported=tuple(sorted(self._exported())),
            size_bytes=len(self.data),
        )

    def _require_whole(self, heads: list[tuple[int, ...]]) -> None:
        """To read a byte of a segment that the file lacks is a SIGBUS; what a cut takes first are
        the sections.
        """
        (sections,) = self._unpack("<Q", 40)
        ends = [head[2] + head[5] for head in heads if head[0] == _PT_LOAD]
        if sections:
            ends.append(sections + math.prod(self._unpack("<HH", 58)))
        if (end := max(ends, default=0)) > len(self.data):
            raise _Malformed(f"it is cut off: {len(self.data)} bytes of at least {end}")

    def _unpack(self, form: str, offset: int) -> tuple[int, ...]:
        if offset < 0 or offset + struct.calcsize(form) > len(self.data):
            raise _Malformed(f"a table reaches to byte {offset}, past the end of the file")
        return struct.unpack_from(form, self.data, offset)

    def _dynamic(self, segments: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
        if len(segments) != 1:
            raise _Malformed(
                "it has no dynamic segment" if not segments else "two dynamic segments"
            )
        _, _, start, address, _, size = segments[0]
        if self._offset(address, "dynamic segment") != start:  # the loader goes by the address
            raise _Malformed("the dynamic segment has two places")
        if size > _LARGEST_DYNAMIC:
            raise _Malformed(f"a dynamic segment of {size} bytes")
        for offset in range(start, start + size - 15, 16):
            tag, value = self._unpack("<QQ", offset)
            if tag == 0:
                return
            yield tag, value
        raise _Malformed("the dynamic segment has no end")  # the loader reads on

    def _offset(self, address: int, what: str) -> int:
        for vaddr, offset, size in self.loads:
            if vaddr <= address < vaddr + size:
                return offset + address - vaddr
        raise _Malformed(f"the {what} lies outside of every segment")

    def _tag(self, tag: int, what: str) -> int:
        if tag not in self.tags:
            raise _Malformed(f"the dynamic segment names no {what}")
        return self.tags[tag]

    def _string(self, index: int) -> str:
        size = self._tag(_DT_STRSZ, "string table size")
        start = self._offset(self._tag(_DT_STRTAB, "string table"), "string table")
        if index >= size or start + size > len(self.data):
            raise _Malformed("a name lies outside of the string table")
        end = self.data.find(b"\0", start + index, min(start + size, start + index + _LONGEST_NAME))
        if end < 0:
            raise _Malformed("a name has no end")
        return self.data[start + index : end].decode("utf-8", "replace")

    def _exported(self) -> Iterator[Symbol]:
        table = self._offset(self._tag(_DT_SYMTAB, "symbol table"), "symbol table")
        if self.tags.get(_DT_SYMENT, _SYMBOL.size) != _SYMBOL.size:
            raise _Malformed("symbols have an unknown size")
        for i in range(1, self._symbol_count()):
            name, info, other, section, value, size = self._unpack(_SYMBOL.format, table + i * 24)
            binding, kind = info >> 4, info & 15
            if section == _SHN_UNDEF or binding not in _BINDINGS or kind not in _KINDS:
                continue
            if section == _SHN_ABS and _KINDS[kind] == "object" and value == size == 0:
                continue  # the name of a symbol version
            if other & 3 not in _HIDDEN:
                yield Symbol(self._string(name), _KINDS[kind], _BINDINGS[binding], value, size)

    def _symbol_count(self) -> int:
        if _DT_HASH in self.tags:
            count = self._unpack("<II", self._offset(self.tags[_DT_HASH], "hash table"))[1]
        else:
            count = self._count_by_gnu_hash()
        if count > len(self.data) // _SYMBOL.size:
            raise _Malformed(f"{count} symbols do not fit into the file")
        return count

    def _count_by_gnu_hash(self) -> int:
        """A GNU hash table does not state its number of symbols: its last chain's end does."""
        start = self._offset(self._tag(_DT_GNU_HASH, "hash table"), "hash table")
        buckets, first, bloom, _ = self._unpack("<IIII", start)
        at = start + 16 + 8 * bloom
        if buckets > len(self.data):
            raise _Malformed(f"a hash table of {buckets} buckets")
        last = max(self._unpack(f"<{buckets}I", at), default=0)
        if last < first:
            return first  # nothing is exported
        chains = at + 4 * buckets
        while not self._unpack("<I", chains + 4 * (last - first))[0] & 1:
            last += 1
        return last + 1
