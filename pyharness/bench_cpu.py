"""How long a step takes on the CPU backend: ``make bench-cpu``, or ``python -m pyharness.bench_cpu
[--json PATH|-]``.

For M = 1..8 the median time of a step inside the library, the weight bytes that it reads, and the
share of the rate at which this machine reads memory at all, measured in the same process. Each size
runs in a process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from pyharness import config, gate
from pyharness.errors import InputError, LibraryFailure

SIZES = ("tiny", "mid")
ROWS = range(1, 9)
PREFIX = 64  # tokens in the state before the first timed step: one whole chunk of attention
WARM, TIMED = 3, 15
READ_BYTES = 1 << 30  # several times the last-level cache
READ_PASSES = 5


@dataclass(frozen=True)
class StepTime:
    m: int
    milliseconds: float  # median of one step of M rows
    best_milliseconds: float  # far below the median: the machine was busy with something else
    milliseconds_a_token: float
    bytes_read: int  # weights
    share_of_read_rate: float  # of what the machine reads in that time; above 1: from a cache


@dataclass(frozen=True)
class SizeTimes:
    size: str
    threads: int  # 0: one per core
    cores: int
    build_info: dict[str, object]
    read_gb_s: float
    steps: tuple[StepTime, ...]


def read_rate(threads: int) -> float:
    """Bytes per second: the best of a few passes of integer sums over a big array, every core
    reading its part.
    """
    parts = np.array_split(np.ones(READ_BYTES // 4, np.int32), threads * 8)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(READ_PASSES):
            begin = time.perf_counter()
            for _ in pool.map(lambda part: np.add.reduce(part, dtype=np.int32), parts):
                pass
            best = max(best, READ_BYTES / (time.perf_counter() - begin))
    return best


def measure(library: Path, size: str, threads: int) -> SizeTimes:
    """Of one size of the hybrid model, in this process."""
    from pyharness.host import abi, loader
    from pyharness.host.session import Session, build_info
    from pyharness.inputs.synthetic import synthetic_model

    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    rate = read_rate(cores)  # before the library's threads exist
    with gate.open_candidate(library) as sealed:
        bound = abi.bind(loader.load(sealed.fd, sealed.digest, sealed.size_bytes).library)
        model = synthetic_model("hybrid", size, 0)
        context = PREFIX + (WARM + TIMED) * max(ROWS)
        with Session(bound, model, max(ROWS), threads, context=context) as session:
            weight_bytes = session.load().weight_bytes
            steps = tuple(_step_time(session, m, weight_bytes, rate) for m in ROWS)
    return SizeTimes(size, threads, cores, build_info(bound), rate / 1e9, steps)


def _step_time(session: object, m: int, weight_bytes: int, rate: float) -> StepTime:
    from pyharness.host.session import Session

    assert isinstance(session, Session)
    session.reset()
    for token in range(PREFIX):
        session.step(token)
    times = []
    for i in range(WARM + TIMED):
        tokens = [(7 * i + j) % 500 for j in range(m)]
        before = session.native_ns
        if m == 1:
            session.step(tokens[0])
        else:
            session.step_m(tokens)
        times.append(session.native_ns - before)
    seconds = statistics.median(times[WARM:]) / 1e9
    return StepTime(
        m=m,
        milliseconds=seconds * 1e3,
        best_milliseconds=min(times[WARM:]) / 1e6,
        milliseconds_a_token=seconds * 1e3 / m,
        bytes_read=weight_bytes,
        share_of_read_rate=weight_bytes / seconds / rate,
    )


# ---- the command ---------------------------------------------------------------------------------


def in_child(library: Path, size: str, threads: int) -> SizeTimes:
    """``measure`` in a fresh process, whose crash is not ours."""
    command = [sys.executable, "-m", "pyharness.bench_cpu", "--child", size]
    command += ["--library", str(library), "--threads", str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise LibraryFailure(f"{library}: measuring {size} ended with {done.returncode}")
    from pyharness.values import from_json

    times: SizeTimes = from_json(SizeTimes, json.loads(done.stdout))
    return times


def print_table(times: SizeTimes, to_stderr: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    rate = f"memory reads {times.read_gb_s:.1f} GB/s"
    title = f"synthetic hybrid {times.size}, {times.cores} cores, {rate}"
    table = Table(box=None, pad_edge=False)
    for name in ("M", "ms a step", "best", "ms a token", "MB read", "share of read rate"):
        table.add_column(name, justify="right")
    for s in times.steps:
        times_ms = (s.milliseconds, s.best_milliseconds, s.milliseconds_a_token)
        cells = [str(s.m), *(f"{t:.2f}" for t in times_ms), f"{s.bytes_read / 1e6:.1f}"]
        table.add_row(*cells, f"{s.share_of_read_rate:.0%}")
    console = Console(stderr=to_stderr, highlight=False)
    console.print(title, soft_wrap=True)
    console.print(table)


@click.command()
@click.option(
    "--library", type=click.Path(path_type=Path), help="[default: the candidate of run-ab]"
)
@click.option("--size", "sizes", multiple=True, type=click.Choice(SIZES), help="[default: all]")
@click.option("--threads", type=click.IntRange(0), default=0, help="0: one per core.")
@click.option("--json", "json_path", metavar="PATH|-", help="The same as JSON; - is stdout.")
@click.option("--child", hidden=True)
def main(
    library: Path | None,
    sizes: tuple[str, ...],
    threads: int,
    json_path: str | None,
    child: str | None,
) -> None:
    """Times a step of M = 1..8 rows on the CPU backend."""
    from pyharness.files import write_atomically

    path = library or config.resolve()["candidate"]
    if child:
        print(json.dumps(dataclasses.asdict(measure(path, child, threads))))
        return
    if not path.exists():
        raise InputError(f"{path}: no such library; build it with `make native`")
    found = []
    for size in sizes or SIZES:
        found.append(in_child(path, size, threads))
        print_table(found[-1], json_path == "-")
    text = json.dumps(
        {"schema": "bench-cpu/1", "sizes": [dataclasses.asdict(t) for t in found]}, indent=1
    )
    if json_path == "-":
        print(text)
    elif json_path:
        write_atomically(Path(json_path), f"{text}\n".encode())


def run() -> int:
    from pyharness.errors import HarnessError

    try:
        main(standalone_mode=True)
    except HarnessError as e:
        print(f"bench-cpu: {e}", file=sys.stderr)
        return int(e.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(run())
