"""The benchmark runs, and its numbers hang together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyharness.bench_cpu import read_rate

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/cpu/libvllm_cuda.so"


@pytest.mark.skipif(not BUILT.exists(), reason="no CPU library; build it with `make native`")
def test_json_of_the_tiny_model() -> None:
    command = [
        sys.executable,
        "-m",
        "pyharness.bench_cpu",
        "--library",
        str(BUILT),
        "--size",
        "tiny",
        "--json",
        "-",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (times,) = json.loads(done.stdout)["sizes"]
    assert times["size"] == "tiny" and times["read_gb_s"] > 0.1
    assert [s["m"] for s in times["steps"]] == list(range(1, 9))
    for step in times["steps"]:
        assert 0 < step["best_milliseconds"] <= step["milliseconds"]
        rate = step["bytes_read"] / step["milliseconds"] / 1e6 / times["read_gb_s"]
        assert step["share_of_read_rate"] == pytest.approx(rate)
        assert step["milliseconds_a_token"] == pytest.approx(step["milliseconds"] / step["m"])
    assert "ms a step" in done.stderr


def test_a_library_that_is_not_there_is_one_line() -> None:
    command = [sys.executable, "-m", "pyharness.bench_cpu", "--library", "/nowhere.so"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "/nowhere.so" in done.stderr


def test_read_rate_is_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyharness.bench_cpu.READ_BYTES", 1 << 24)
    assert 1e8 < read_rate(2) < 1e13
