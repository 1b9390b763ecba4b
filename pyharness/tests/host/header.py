"""Parses the public header and says where the ABI table differs from it."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyharness.host import abi

HEADER = Path(__file__).parents[3] / "native" / "include" / "vllm_cuda.h"
_SCALARS = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint8_t": ctypes.c_uint8,
    "float": ctypes.c_float,
}


@dataclass
class Header:
    version: int = 0
    opaque: list[str] = field(default_factory=list)
    enums: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    structs: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    # name -> (return type, argument types, required)
    functions: dict[str, tuple[Any, tuple[Any, ...], bool]] = field(default_factory=dict)


def parse(text: str) -> Header:
    header = Header()
    text = re.sub(r"/\* -+ (required|optional)\b.*?\*/", r"@\1;", text, flags=re.S)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    header.version = int(re.findall(r"#define VCUDA_ABI_VERSION (\d+)", text)[0])
    text = re.sub(r'^#.*$|extern "C" \{', "", text, flags=re.M)
    required: bool | None = None
    for statement in _statements(text):
        if statement in ("@required", "@optional"):
            required = statement == "@required"
        elif m := re.fullmatch(r"typedef enum (\w+) \{(.*)\} \1", statement):
            members = [part.split("=") for part in m[2].split(",")]
            header.enums[m[1]] = [(name.strip(), int(value)) for name, value in members]
        elif m := re.fullmatch(r"typedef struct (\w+) \{(.*)\} \1", statement):
            header.structs[m[1]] = [f for d in m[2].split(";") if d.strip() for f in _fields(d)]
        elif m := re.fullmatch(r"typedef struct (\w+) \1", statement):
            header.opaque.append(m[1])
        elif m := re.fullmatch(r"VCUDA_API (.*?)(\w+)\((.*)\)", statement):
            assert required is not None, f"{m[2]} stands before the required section"
            arguments = [] if m[3] == "void" else [_declared(a)[1] for a in m[3].split(",")]
            header.functions[m[2]] = (_type(m[1]), tuple(arguments), required)
        else:
            raise AssertionError(f"not understood: {statement}")
    return header


def _statements(text: str) -> list[str]:
    """Split at semicolons outside of braces, white space made single."""
    found, depth, current = [], 0, ""
    for c in text.replace("@", ";@"):
        depth += (c == "{") - (c == "}")
        if c == ";" and depth <= 0:
            found.append(current)
            current = ""
        else:
            current += c
    squeezed = (" ".join(s.split()) for s in found)
    return [s for s in squeezed if s.strip("} ")]


def _fields(declaration: str) -> list[tuple[str, Any]]:
    """``int32_t hidden, vocab`` declares two."""
    first, *more = (" ".join(d.split()) for d in declaration.split(","))
    name, kind = _declared(first)
    return [(name, kind), *((other, kind) for other in more)]


def _declared(text: str) -> tuple[str, Any]:
    m = re.fullmatch(r"\s*(.*?[\s*])(\w+)(?:\[(\d+)\])?\s*", text)
    assert m, text
    kind = _type(m[1])
    return m[2], kind * int(m[3]) if m[3] else kind


def _type(text: str) -> Any:
    m = re.fullmatch(r"(?:const )?(\w+)\s*(\**)", text.strip())
    assert m, text
    base, stars = m[1], len(m[2])
    if base == "char" and stars == 1:
        return ctypes.c_char_p
    if (base == "void" or base in abi.OPAQUE) and stars:
        kind: Any = ctypes.c_void_p
        stars -= 1
    elif base in abi.ENUMS:
        kind = ctypes.c_int32
    else:
        kind = _SCALARS.get(base) or abi.STRUCTS[base]
    for _ in range(stars):
        kind = ctypes.POINTER(kind)
    return kind


def differences(text: str) -> list[str]:
    """Every disagreement of header and table, in words."""
    try:
        header = parse(text)
    except (KeyError, IndexError, ValueError) as e:
        return [f"the header has something that the table does not know: {e!r}"]
    found = []

    def same(what: str, in_header: Any, in_table: Any) -> None:
        if in_header != in_table:
            found.append(f"{what}: header {in_header}, table {in_table}")

    same("version", header.version, abi.ABI_VERSION)
    same("opaque types", header.opaque, list(abi.OPAQUE))
    table = {f.name: (f.restype, f.argtypes, f.required) for f in abi.FUNCTIONS}
    same("function names, in order", list(header.functions), list(table))
    for name in header.functions.keys() & table.keys():
        same(name, header.functions[name], table[name])
    same("enum names", sorted(header.enums), sorted(abi.ENUMS))
    for name in header.enums.keys() & abi.ENUMS.keys():
        kind, prefix = abi.ENUMS[name]
        same(name, header.enums[name], [(prefix + m.name, m.value) for m in kind])
    same("struct names", sorted(header.structs), sorted(abi.STRUCTS))
    for name in header.structs.keys() & abi.STRUCTS.keys():
        same(name, header.structs[name], list(abi.STRUCTS[name]._fields_))
    return found
