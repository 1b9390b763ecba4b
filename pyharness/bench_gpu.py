"""The numbers of ``make bench-gpu``: python -m pyharness.bench_gpu [STEPS.json OPERATIONS.json]

``step_bench`` and ``kernel_bench`` write a document each; here they become
``native/cuda/bench-gpu.json`` (schema: ``bench-gpu.schema.json`` beside it), and that becomes the
tables of README.md, between two marks. Without arguments the tables are made again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pyharness.errors import Exit
from pyharness.values import shown_revision

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ROOT / "native" / "cuda" / "bench-gpu.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- bench-gpu -->\n", "<!-- /bench-gpu -->\n"
MACHINE = ("device", "driver", "date", "revision")

# How often a step of the 27B makes each call of kernel_bench; ALONE: what some of them contain.
CALLS = {
    "embed": 1,
    "norm, gdn in": 48,
    "norm, attention in": 16,
    "gdn": 48,
    "attention at 512": 16,
    "project out": 64,
    "norm, gate_up, swiglu": 64,
    "project down": 64,
    "norm": 1,
    "project head": 1,
}
ALONE = ("project gdn in", "project attention in", "project gate_up", "norm, gate_up", "swiglu")

# llama.cpp (the source of llama-cpp-python 0.3.36), CUDA, sm_90, Q4_0 file of the same shapes, one
# decode of M tokens with logits of all, median of 24, context under 500, in another session.
LLAMA_MS = (9.58, 9.84, 11.07, 12.71, 13.98, 15.47, 16.89, 18.50)
LLAMA_DIFFERS = ("0", "100 %", "100 %", "99.9 %", "100 %", "100 %", "100 %", "100 %")


def merged(steps: dict[str, Any], operations: dict[str, Any]) -> dict[str, Any]:
    """One document; the two runs must be of one machine and day."""
    if other := [key for key in MACHINE if steps[key] != operations[key]]:
        raise ValueError(f"the two runs are of different machines or days: {', '.join(other)}")
    run = {key: steps[key] for key in (*MACHINE, "copy_gb_s")}
    rest = {key: value for key, value in steps.items() if key not in run}
    measured = {"copy_gb_s": operations["copy_gb_s"], "measured": operations["operations"]}
    return {**run, **rest, "operations": measured}


def _revision(text: str) -> str:
    """As the tools write it, with a + where native/ was not as committed."""
    return shown_revision(text.rstrip("+"), text.endswith("+"))


def _row(head: str, cells: list[str]) -> str:
    return f"| {' | '.join([head, *cells])} |"


def _table(head: list[str], rows: list[str]) -> str:
    return "\n".join([_row(head[0], head[1:]), "|---" * len(head) + "|", *rows]) + "\n"


def _steps(numbers: dict[str, Any]) -> str:
    rows = []
    found = {(s["context"], s["m"]): s for s in numbers["steps"]}
    contexts = sorted({context for context, _ in found})
    ms = sorted({m for _, m in found})
    for context in contexts:
        cells = [f"{found[context, m]['device_ms']:.2f}" for m in ms]
        rows.append(_row(f"context {context}, ms", cells))
    cells = [f"{found[contexts[0], m]['host_ms']:.2f}" for m in ms]
    rows.append(_row(f"context {contexts[0]}, h_out and all logits in host memory, ms", cells))
    rows.append(
        _row(
            "llama.cpp Q4_0, same shapes, another session on such a machine, ms",
            [f"{LLAMA_MS[m - 1]:.2f}" for m in ms],
        )
    )
    rows.append(
        _row("its logits that differ from M single steps", [LLAMA_DIFFERS[m - 1] for m in ms])
    )
    return _table(["M", *(str(m) for m in ms)], rows)


def _operations(numbers: dict[str, Any]) -> str:
    found = {(o["operation"], o["m"]): o for o in numbers["operations"]["measured"]}
    ms = sorted({m for _, m in found})
    if absent := [n for n in (*CALLS, *ALONE) for m in ms if (n, m) not in found]:
        raise ValueError(f"kernel_bench did not measure {absent[0]} at every M: make bench-gpu")
    rows: list[str] = []
    total = dict.fromkeys(ms, 0.0)

    def row(name: str, calls: str) -> None:
        cells = [calls]
        for m in ms:
            o = found[name, m]
            cells += [f"{o['us']:.1f}", f"{100 * o['share_of_copy']:.0f} %"]
        rows.append(_row(name, cells))

    for name, calls in CALLS.items():
        row(name, str(calls))
        for m in ms:
            total[m] += calls * found[name, m]["us"] / 1e3
    sums = [cell for m in ms for cell in (f"{total[m]:.2f} ms", "")]
    rows.append(_row("all calls, each alone", ["", *sums]))
    for name in ALONE:
        row(name, "")
    head = [cell for m in ms for cell in (f"M = {m}, us", "of the copy rate")]
    return _table(["operation", "calls a step", *head], rows)


def tables(numbers: dict[str, Any]) -> str:
    """What stands between the marks in README.md."""
    model = numbers["model"]
    return f"""\
One {numbers["device"]}, driver {numbers["driver"]}, {numbers["date"]}, \
revision {_revision(numbers["revision"])}, the whole step in a graph, \
{model["weight_bytes"] / 1e9:.1f} GB of weights, copy rate {numbers["copy_gb_s"] / 1e3:.2f} TB/s.
Checked by bytes in the same run: {numbers["equal_bytes"]}.

{_steps(numbers)}
Mark plus rollback {numbers["mark_rollback_us"]:.2f} us; load, weights made on the device, \
{model["load_s"]:.2f} s; the first step of 8 rows, its capture included,
{model["first_step_s"]:.2f} s. Each operation alone, equal to the CPU backend's by bytes before it \
is timed; moving what it must at the copy rate is 100 %:

{_operations(numbers)}"""


def rewrite(readme: str, numbers: dict[str, Any]) -> str:
    """README.md with the tables of these numbers."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("README.md has no place for the tables: its two marks are missing")
    return before + begin + "\n" + tables(numbers) + "\n" + end + after


@click.command()
@click.argument("documents", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(documents: tuple[Path, ...]) -> None:
    """Merge STEPS.json and OPERATIONS.json, if given, and write README.md's tables."""
    try:
        if documents:
            if len(documents) != 2:
                raise ValueError("two documents or none: of step_bench and of kernel_bench")
            numbers = merged(*(json.loads(path.read_text()) for path in documents))
        else:
            numbers = json.loads(NUMBERS.read_text())
        readme = rewrite(README.read_text(), numbers)  # before anything is written
        NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
        README.write_text(readme)
    except (ValueError, KeyError, OSError) as e:
        click.echo(f"bench_gpu: {e}", err=True)
        sys.exit(Exit.USAGE)


if __name__ == "__main__":
    main()
