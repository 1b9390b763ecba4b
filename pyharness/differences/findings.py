"""What is said beside a red verdict: where two arms differ first, and how far apart they are.

Frozen values for the document of a run; they explain a verdict and never decide one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Where a difference goes from its first row on: how many of a layer's operations differ in
    each row.
    """

    positions: tuple[int, ...]  # tokens in the state before each row
    operations: int  # of a layer
    layers: tuple[tuple[int, ...], ...]  # [rows][layers]
    outputs: tuple[tuple[bool, bool], ...]  # [rows]: h_out, logits


@dataclass(frozen=True)
class Divergence:
    """The first difference of two arms in the order in which they compute.

    ``operation`` is a tap's name (input_norm, in_proj, mixer, mixer_residual, post_norm, gate_up,
    swiglu, residual), ``h_out``, ``logits``, or ``state S|conv|keys|values``: then ``position``
    is that of the state. ``index`` is [row, column] of the step's [M, columns], or the element of
    the state's part.
    """

    arms: tuple[str, str]  # whose bits: baseline and candidate, or candidate and control
    position: int  # tokens in the state before the row; of a state: tokens in it
    operation: str
    index: tuple[int, ...]
    bits: tuple[str, str]
    row: int = 0  # of the M-row step
    rows: int = 1  # M; 0: no step but the call ``call``
    call: str = "step"  # step, step_m, mark, rollback, rollback_to, poison
    layer: int = -1  # -1: behind the layers, or not known
    layer_kind: str = ""  # GDN or attention
    part: str = ""  # e.g. "v head 2", "query of head 3", "gate"
    different: int = 0  # elements of this row of the operation, or of this part of the state
    total: int = 0
    also: tuple[str, ...] = ()  # parts of the layer's state that differ after the same call
    note: str = ""  # what limits this finding, or who stood in for whom
    spread: Spread | None = None  # None: no traces


@dataclass(frozen=True)
class Distances:
    """Elements by how far their two bit patterns are apart, in units in the last place."""

    equal: int = 0
    sign_of_zero: int = 0  # +0 and -0
    ulp_1: int = 0
    ulp_2: int = 0
    ulp_3_to_10: int = 0
    ulp_11_to_100: int = 0
    ulp_more: int = 0
    infinite: int = 0  # one side or both are infinite
    nan: int = 0  # one side or both are NaN

    @property
    def different(self) -> int:
        return self.total - self.equal

    @property
    def total(self) -> int:
        return sum(self.__dict__.values())


@dataclass(frozen=True)
class Group:
    """One row of h_out.npy or logits.npy, or one tensor of state.safetensors, that differs."""

    name: str  # number of the row, or the tensor
    distances: Distances


@dataclass(frozen=True)
class Element:
    tensor: str
    index: tuple[int, ...]
    baseline_bits: str
    candidate_bits: str
    baseline_value: str
    candidate_value: str


@dataclass(frozen=True)
class Flip:
    """A row whose largest logit is that of another token."""

    row: int
    baseline_token: int
    candidate_token: int


@dataclass(frozen=True)
class Explanation:
    """One file of two arms that differ."""

    file: str
    distances: Distances
    groups: tuple[Group, ...] = ()  # those that differ, at most ``explain.GROUPS``
    groups_differing: int = 0
    first: tuple[Element, ...] = ()
    flips: tuple[Flip, ...] = ()  # logits.npy: at most ``explain.FLIPS``
    flipped: int = 0
    note: str = ""  # why elements could not be compared


# ---- lines for people ----------------------------------------------------------------------------


def divergence_line(d: Divergence) -> str:
    """``first difference: step 66 (row 3 of the 4-row step), layer 5 (GDN), mixer, head 2: ...``"""
    element = f"element {list(d.index)} " if d.index else ""
    bits = f"{d.arms[0]} {d.bits[0]} {d.arms[1]} {d.bits[1]}"
    line = f"first difference: {place_of(d)}: {element}{bits}{extent_of(d)}"
    return line + (f" ({d.note})" if d.note else "")


def place_of(d: Divergence) -> str:
    """Step, row, layer and operation."""
    where = [_step(d)]
    if d.layer >= 0:
        where.append(f"layer {d.layer} ({d.layer_kind})")
    where.append(d.operation or "operation not known")
    return ", ".join([*where, d.part] if d.part else where)


def extent_of(d: Divergence) -> str:
    """How much of the operation differs, and what of the layer's state."""
    count = f"; {d.different} of {d.total} elements differ" if d.total else ""
    return count + (f"; so does the layer's state: {', '.join(d.also)}" if d.also else "")


def _step(d: Divergence) -> str:
    if d.operation.startswith("state"):
        after = {"step": "step", "step_m": f"{d.rows}-row step"}.get(d.call, d.call)
        return f"after the {after} to position {d.position}"
    rows = f" (row {d.row} of the {d.rows}-row step)" if d.rows > 1 else ""
    return f"step {d.position}{rows}"


CLASSES = {  # of elements that differ: field of ``Distances`` -> its name
    "sign_of_zero": "sign of zero",
    "ulp_1": "1 ulp",
    "ulp_2": "2 ulp",
    "ulp_3_to_10": "3-10 ulp",
    "ulp_11_to_100": "11-100 ulp",
    "ulp_more": "over 100 ulp",
    "infinite": "infinite",
    "nan": "NaN",
}


def explanation_line(e: Explanation) -> str:
    """Counts by class, the rows or tensors concerned, and the greedy tokens that flip."""
    if e.note:
        return e.note
    counts = [f"{n} x {told}" for key, told in CLASSES.items() if (n := getattr(e.distances, key))]
    parts = [", ".join(counts), _groups(e)]
    if e.flips:
        first = e.flips[0]
        more = f" and {e.flipped - 1} more" if e.flipped > 1 else ""
        parts.append(
            f"argmax of row {first.row}: {first.baseline_token} -> {first.candidate_token}{more}"
        )
    return "; ".join(p for p in parts if p)


def _groups(e: Explanation) -> str:
    rows = all(g.name.isdecimal() for g in e.groups)
    if not e.groups:
        return ""
    names = [g.name for g in e.groups]
    if rows:
        names = [str(a) if a == b else f"{a}-{b}" for a, b in runs_of(map(int, names))]
    shown = names[:6]
    more = len(names) - len(shown) + e.groups_differing - len(e.groups)
    return f"{'rows ' if rows else ''}{', '.join(shown)}" + (f" and {more} more" if more else "")


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbours: 3, 4, 5, 9 -> (3, 5), (9, 9)."""
    runs: list[tuple[int, int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], n
        else:
            runs.append((n, n))
    return runs
