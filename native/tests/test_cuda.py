"""The CUDA library against the CPU library: every output and the whole state, by bytes.

    python native/tests/test_cuda.py CPU_LIBRARY CUDA_LIBRARY
        [--checks bits,graphs,cuts,extremes,taps,memory] [--sizes tiny,mid,27b:4]
        [--families hybrid,gdn,attn] [--golden FOLDER]

The libraries live in this process and get the same calls. Checks:

  bits          single steps, M rows, marks and rollbacks at cursors around the edges of chunks
  graphs        schedules of M that replay each graph at other cursors, 300 tokens, short, long and
                short contexts; streamed launches and the default beside each other
  cuts          every compiled cut of the projections' rows
  extremes      activations from 1e-15 to the largest, alike and mixed in a group and a row
  taps          what each operation leaves, up to 16 rows, and the same steps without taps
  memory        each allocation fails once, then a device that is really full (memory.py)
  architecture  CUDA_LIBRARY has no code for this device: it is refused by name

Size 27b:4 is the 27B's width, heads and vocabulary with 4 layers. Exit status 0: every byte equal;
1: a difference, named.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import memory
from arms import Arm, Arms, Different, bind, same

from pyharness.host import abi
from pyharness.host.session import CallFailed, Session
from pyharness.inputs.layout import Model, TensorType
from pyharness.inputs.model import load_model
from pyharness.inputs.synthetic import config_of, described_model
from pyharness.values import ModelSpec

SEED = 7
RING = Path(__file__).resolve().parents[1] / "cuda" / "project.cu"


def check_bits(arms: Arms, prefixes: list[int], rows: list[int]) -> None:
    random, most = np.random.default_rng(3), max(rows)
    for prefix in prefixes:
        arms.forward_to(prefix, random, most)
        tokens = arms.draw(random, most)
        arms.each("mark")
        singles = [arms.step([t]) for t in tokens]
        arms.state()
        arms.each("rollback")
        arms.state()
        for m in (m for m in rows if m > 1):
            arms.each("mark")
            h, logits = arms.step(tokens[:m])
            for i in range(m):
                what = f"{arms.name}: prefix {prefix}, M = {m}: row {i}"
                same(f"{what} h_out", "single", singles[i][0][0], "row", h[i])
                same(f"{what} logits", "single", singles[i][1][0], "row", logits[i])
            arms.step(arms.draw(random, 1))
            if m == most:
                arms.state()
            arms.each("rollback")
        if most > 2:
            arms.each("mark")
            arms.step(tokens)
            arms.each("rollback_to", most - 2)
            arms.state()
            _, logits = arms.step(tokens[most - 2 : most - 1])
            what = f"{arms.name}: prefix {prefix}: after rollback_to"
            same(what, "single", singles[most - 2][1][0], "row", logits[0])
    arms.state()


def check_graphs(arms: Arms) -> None:
    random = np.random.default_rng(5)
    for prefix in (0, 5, 200, 5, 62, 0):  # short, long, short again
        arms.forward_to(prefix, random, 8)
        for m in (8, 2, 8, 5, 2, 1):
            arms.step(arms.draw(random, m))
        arms.state()
        arms.each("mark")  # the M-row step after a mark has a graph of its own
        for m in (8, 8, 1):
            arms.step(arms.draw(random, m))
        arms.each("rollback")
        arms.each("mark")
        arms.step(arms.draw(random, 5))
        arms.each("rollback_to", 3)
        arms.step(arms.draw(random, 2))
        arms.state()
    arms.each("reset")
    for _ in range(300):
        arms.step(arms.draw(random, 1))
    arms.state()


def extreme_models(model: Model) -> dict[str, Model]:
    """The model with other weights of one kind of norm, from 2^-24 (the library adds 1, so none is
    smaller) to 2^105: the final norm's outputs are the head's activations, an input norm's pass
    through the mixer, of post norms the activations of down are about the square.
    """
    random, found = np.random.default_rng(11), {}
    hidden = model.config.hidden
    for norm, most in (
        ("model.norm", 105),
        ("input_layernorm", 20),
        ("post_attention_layernorm", 20),
    ):
        shapes = {f"2^{e}": np.full(hidden, e) for e in (-24, most)}
        shapes["groups mixed"] = np.repeat(random.integers(-24, most, hidden // 32), 32)
        shapes["elements mixed"] = random.integers(-24, most, hidden)
        for shape, exponents in shapes.items():
            tensors = []
            for t in model.tensors:
                if t.name.endswith(f"{norm}.weight"):
                    data = np.ldexp(random.choice([-1.0, 1.0], hidden), exponents) - 1.0
                    t = replace(t, type=TensorType.F32, synth=None, data=data.astype(np.float32))
                tensors.append(t)
            found[f"{norm} {shape}"] = Model(model.config, tensors)
    return found


def check_rows(arms: Arms) -> None:
    random = np.random.default_rng(13)
    for m in (1, 2, 4, 5, 8):
        arms.step(arms.draw(random, m))


def check_taps(arms: Arms) -> None:
    random = np.random.default_rng(17)
    for m in (1, 2, 5, 8, 11, 16):  # a pass over the weights serves eight
        tokens = arms.draw(random, m)
        arms.each("mark")
        arms.each("taps", True)
        arms.step(tokens)
        arms.taps()
        arms.each("taps", False)
        arms.each("rollback")
        arms.step(tokens)
    arms.state()


def cuts() -> list[str]:
    """Tiles of a cell of each compiled cut; 0 is the simple kernel."""
    tiles = re.findall(r"ring_variant<(\d+)>\(\)", RING.read_text())
    if not tiles:
        raise SystemExit(f"{RING.name}: no compiled cut found")
    return ["0", *tiles]


def check_architecture(library: abi.Bound, model: Model) -> str:
    """Refused at open: with the device's name and capability, and what the library has."""
    try:
        Session(library, model).close()
    except CallFailed as e:
        wanted = r".+ \(compute capability \d+\.\d+\): this library has code for sm_"
        if e.status != abi.Status.E_DEVICE or not re.match(wanted, e.text):
            raise Different(f"refused, but not by name: {e}") from None
        return f"refused: {e.text}"
    raise Different("a library without code for this device opened it")


def models(options: argparse.Namespace) -> dict[str, Model]:
    found = {}
    for size in filter(None, options.sizes.split(",")):
        width, _, layers = size.partition(":")
        for family in options.families.split(","):
            config = config_of(family, width)
            if layers:
                config = replace(config, layer_kinds=config.layer_kinds[: int(layers)])
            found[f"{size} {family}"] = described_model(config, SEED)
    for folder in sorted(options.golden.iterdir()) if options.golden else ():
        if folder.is_dir():
            found[folder.name] = load_model(ModelSpec("checkpoint", path=str(folder)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cpu", type=Path)
    parser.add_argument("cuda", type=Path)
    parser.add_argument("--checks", default="bits")
    parser.add_argument("--sizes", default="tiny")
    parser.add_argument("--families", default="hybrid,gdn,attn")
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--prefixes", default="0,1,5,17,63,64,65,200,1000")
    parser.add_argument("--rows", default="1,2,3,4,5,6,7,8")
    options = parser.parse_args()
    cpu, cuda = Arm("cpu", bind(options.cpu)), Arm("cuda", bind(options.cuda))
    prefixes = [int(p) for p in options.prefixes.split(",")]
    rows = [int(m) for m in options.rows.split(",")]

    def compare(
        name: str, model: Model, others: list[Arm], check: Callable[[Arms], None], most: int = 0
    ) -> str:
        context = max(300, *prefixes) + 2 * max(rows) + 32
        arms = Arms(name, [cpu, *others], model, max(2, most, *rows), context)
        check(arms)
        arms.close()
        return f"{arms.calls} steps equal in {', '.join(a.name for a in arms.arms)}"

    def variant(name: str, **settings: str) -> Arm:
        return Arm(name, cuda.bound, settings)

    # A cut whose kernels make the norm in front of them; tiny's own has too few tiles.
    normed = variant("8 tiles", VLLM_CUDA_Q4_TILES="8")
    ways = [
        cuda,
        variant("streamed", VLLM_CUDA_STREAMED="1"),
        variant("one by one", VLLM_CUDA_SERIAL="1"),
        normed,
    ]
    simple = variant("simple kernel", VLLM_CUDA_Q4_TILES="0")
    runs: dict[str, Callable[[str, Model], str]] = {
        "bits": lambda name, model: compare(
            name, model, [cuda], lambda arms: check_bits(arms, prefixes, rows)
        ),
        "graphs": lambda name, model: compare(name, model, ways, check_graphs),
        "extremes": lambda name, model: "; ".join(
            f"{shape}: " + compare(f"{name}, {shape}", extreme, [cuda, simple, normed], check_rows)
            for shape, extreme in extreme_models(model).items()
        ),
        "cuts": lambda name, model: compare(
            name,
            model,
            [variant(f"tiles {t}", VLLM_CUDA_Q4_TILES=t) for t in cuts()],
            lambda arms: check_bits(arms, prefixes, rows),
        ),
        "taps": lambda name, model: compare(
            name, model, [cuda, variant("7 tiles", VLLM_CUDA_Q4_TILES="7"), normed], check_taps, 16
        ),
        "memory": lambda name, model: memory.check(name, cpu, cuda, model),
        "architecture": lambda name, model: check_architecture(cuda.bound, model),
    }
    failed = 0
    for check in options.checks.split(","):
        for name, model in models(options).items():
            begin = time.monotonic()
            try:
                told = runs[check](name, model)
                print(f"{check}: {name}: {told}, {time.monotonic() - begin:.1f} s", flush=True)
            except Different as e:
                failed += 1
                print(f"DIFFERS {check}: {name}: {e}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
