"""The models that step_bench makes by itself (native/tools/synthetic.h) are the harness's, tensor
by tensor.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from pyharness.inputs.synthetic import FAMILIES, SIZES, synthetic_model

NATIVE = Path(__file__).resolve().parents[3] / "native"
PROGRAM = """
#include <cstdio>
#include "tools/synthetic.h"
int main() {
  for (const char* family : {"hybrid", "gdn", "attn"})
    for (const char* size : {"tiny", "mid", "27b"}) {
      const bench::Synthetic made(family, size, 7);
      const vcuda_model_desc d = made.desc(1);
      for (uint64_t i = 0; i < d.tensor_count; ++i) {
        const vcuda_tensor& t = d.tensors[i];
        std::printf("%s %s %s %d", family, size, t.name, t.type);
        for (int k = 0; k < t.ndim; ++k) std::printf(" %lld", (long long)t.shape[k]);
        if (t.data) {
          std::printf(" =");
          for (int k = 0; k < t.shape[0]; ++k) std::printf(" %a", ((const float*)t.data)[k]);
        } else {
          std::printf(" %llu %llu %a %a", (unsigned long long)t.synth.seed,
                      (unsigned long long)t.synth.key, t.synth.offset, t.synth.scale);
        }
        std::printf("\\n");
      }
    }
}
"""


def bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def described(words: list[str]) -> list[object]:
    """Shape, then what the values are made from; floats as bits."""
    if "=" in words:
        at = words.index("=")
        return [*map(int, words[:at]), *(bits(float.fromhex(w)) for w in words[at + 1 :])]
    offset, scale = (bits(float.fromhex(w)) for w in words[-2:])
    return [*map(int, words[:-2]), offset, scale]


def test_the_same_tensors(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, program = tmp_path / "list.cpp", tmp_path / "list"
    source.write_text(PROGRAM)
    command = [compiler, "-std=c++17", f"-I{NATIVE}", f"-I{NATIVE}/include", str(source), "-o"]
    subprocess.run([*command, str(program)], check=True)
    listing = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    found: dict[tuple[str, ...], list[object]] = {}
    for line in listing.splitlines():
        family, size, name, kind, *rest = line.split()
        found[family, size, name] = [int(kind), *described(rest)]
    expected: dict[tuple[str, ...], list[object]] = {}
    for family in FAMILIES:
        for size in SIZES:
            for t in synthetic_model(family, size, 7).tensors:
                if t.synth is None:
                    assert t.data is not None
                    values = [bits(float(x)) for x in t.data]
                else:
                    s = t.synth
                    values = [s.seed, s.key, bits(s.offset), bits(s.scale)]
                expected[family, size, t.name] = [int(t.type), *t.shape, *values]
    assert found == expected
