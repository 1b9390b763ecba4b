"""Two traces made by hand: what is compared with what, and in which order."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pyharness.differences.divergence import Place, described, differing, states_beside
from pyharness.differences.findings import Divergence, divergence_line
from pyharness.differences.traces import MIXER, PARTS, START, TAPS, Call, Site, Trace, extend
from pyharness.inputs.layout import LayerKind
from pyharness.inputs.synthetic import config_of

CONFIG = config_of("hybrid", "tiny")
LAYERS = CONFIG.layers
RESIDUAL = 7


def trace(*calls: tuple[str, tuple[int, ...]]) -> Trace:
    """Each call with its tokens; every digest follows from the tokens so far and the site."""
    made = [Call("reset", 0, START)]
    histories, mark = [START], [START]
    for kind, tokens in calls:
        before = len(histories)
        if kind == "rollback":
            histories = list(mark)
        elif kind == "mark":
            mark = list(histories)
        for token in tokens:
            histories.append(extend(histories[-1], token))
        rows = tuple(histories[before:])
        made.append(Call(kind, len(histories) - 1, histories[-1], rows))
    names = [h for call in made for h in call.rows]
    rows_, states = TAPS * LAYERS + 2, PARTS * LAYERS
    return Trace(
        tuple(made),
        np.array([words(h, rows_) for h in names], np.uint64).reshape(-1, rows_),
        np.array([words(call.history, states) for call in made], np.uint64),
    )


def words(history: str, count: int) -> list[int]:
    first = 0 if history == START else int(history, 16) >> 8
    return [first + i for i in range(count)]


SINGLES = trace(*(("step", (t,)) for t in (1, 2, 3, 4, 5)))


def rows_trace() -> Trace:
    return trace(
        ("step", (1,)), ("step", (2,)), ("mark", ()), ("step_m", (8, 9)), ("rollback", ()),
        ("step_m", (3, 4, 5)),
    )  # fmt: skip


def bend(made: Trace, call: int, row: int, site: Site) -> None:
    """Change one digest; row -1: of the state."""
    made.line(call, row)[made.column(site)] += 1


def first(made: Trace) -> tuple[Site, tuple[Place, Place]] | None:
    return next(differing(SINGLES, made, same_script=False), None)


def test_the_same_tokens_by_other_calls_are_equal() -> None:
    assert first(rows_trace()) is None


@pytest.mark.parametrize(
    ("call", "row", "site", "where"),
    [
        (2, 0, Site(5, 4), Place(2, 0)),  # in the prefix
        (
            6,
            0,
            Site(0, 0),
            Place(3, 0),
        ),  # row i and the single step of its position
        (6, 2, Site(LAYERS - 1, RESIDUAL), Place(5, 0)),
        (6, 1, Site(-1, 1), Place(4, 0)),
        (3, -1, Site(1, 0, state=True), Place(2, -1)),  # after the mark
        (5, -1, Site(1, 1, state=True), Place(2, -1)),  # after the rollback: as before the detour
        (6, -1, Site(3, 1, state=True), Place(5, -1)),
        (0, -1, Site(0, 0, state=True), Place(0, -1)),  # after the reset
    ],
)
def test_one_changed_digest_is_found(call: int, row: int, site: Site, where: Place) -> None:
    made = rows_trace()
    bend(made, call, row, site)
    assert first(made) == (site, (where, Place(call, row)))


def test_a_long_trace_is_compared_in_linear_time() -> None:
    """4000 calls: to look for each call's rows anew, site by site, would be quadratic."""
    tokens = [("step", (t % 251,)) for t in range(4000)]
    ours, theirs = trace(*tokens), trace(*tokens)
    bend(theirs, 4000, 0, Site(7, RESIDUAL))
    began = time.process_time()
    (found,) = differing(ours, theirs, same_script=False)
    assert found == (Site(7, RESIDUAL), (Place(4000, 0), Place(4000, 0)))
    assert time.process_time() - began < 5


def test_other_tokens_are_not_compared() -> None:
    made = rows_trace()
    bend(made, 4, 1, Site(0, 0))
    bend(made, 4, -1, Site(0, 0, state=True))
    assert first(made) is None
    same = list(differing(rows_trace(), made, same_script=True))  # but of one script they are
    assert [places for _, places in same] == [
        (Place(4, 1), Place(4, 1)),
        (Place(4, -1), Place(4, -1)),
    ]


def test_the_order_is_that_of_the_forward_pass() -> None:
    """Layer before row, since an M-row step takes all rows through a layer; a layer's state between
    its mixer and what follows.
    """
    made = rows_trace()
    bend(made, 6, 2, Site(2, MIXER))
    bend(made, 6, 0, Site(2, MIXER + 1))
    bend(made, 6, -1, Site(2, 0, state=True))
    bend(made, 6, 0, Site(4, 0))
    bend(made, 6, 1, Site(-1, 0))
    found = list(differing(SINGLES, made, same_script=False))
    assert [site for site, _ in found] == [
        Site(2, MIXER), Site(2, 0, state=True), Site(2, MIXER + 1), Site(4, 0), Site(-1, 0),
    ]  # fmt: skip
    assert states_beside(CONFIG, found) == ("S",)
    assert states_beside(CONFIG, found[1:]) == states_beside(CONFIG, found[3:]) == ()
    bend(made, 2, 0, Site(7, RESIDUAL))  # an earlier call comes first, whatever its layer
    assert first(made) == (Site(7, RESIDUAL), (Place(2, 0), Place(2, 0)))


def test_words_for_a_row_of_an_operation() -> None:
    ours = np.arange(2 * CONFIG.intermediate, dtype=np.float32)
    theirs = ours.copy()
    theirs[[CONFIG.intermediate + 3, -1]] += 1
    place = Place(6, 1)
    arms = ("baseline", "candidate")
    d = described(arms, CONFIG, rows_trace(), Site(3, 5), place, ours, theirs)
    assert (d.position, d.row, d.rows, d.layer, d.layer_kind) == (3, 1, 3, 3, "attention")
    assert (d.operation, d.part, d.index) == ("gate_up", "up", (1, CONFIG.intermediate + 3))
    assert (d.different, d.total) == (2, ours.size)
    assert divergence_line(d).startswith(
        "first difference: step 3 (row 1 of the 3-row step), layer 3 (attention), gate_up, up: "
        f"element [1, {CONFIG.intermediate + 3}] baseline 0x"
    )
    d = described(arms, CONFIG, rows_trace(), Site(-1, 1), Place(2, 0), ours, theirs)
    assert divergence_line(d).startswith("first difference: step 1, logits: element [0, ")
    d = described(arms, CONFIG, rows_trace(), Site(0, 0), Place(2, 0), ours, theirs[:-1])
    assert f"{ours.size} and {ours.size - 1} elements" in divergence_line(d)


def test_words_for_a_state() -> None:
    kv = CONFIG.layer_kinds.index(LayerKind.ATTENTION)
    ours = np.zeros(CONFIG.kv_heads * 5 * CONFIG.head_dim, np.float32)
    theirs = ours.copy()
    theirs[5 * CONFIG.head_dim + 4 * CONFIG.head_dim + 2] = -0.0
    site = Site(kv, 1, state=True)
    d = described(("candidate", "control"), CONFIG, rows_trace(), site, Place(6, -1), ours, theirs)
    assert divergence_line(d) == (
        f"first difference: after the 3-row step to position 5, layer {kv} (attention), state "
        "values, KV head 1, position 4: element [1, 4, 2] candidate 0x00000000 control 0x80000000; "
        f"1 of {ours.size} elements differ"
    )


def test_a_line_without_an_operation() -> None:
    d = Divergence(("baseline", "candidate"), 4, "", (), ("", ""), note="no taps")
    assert divergence_line(d).startswith("first difference: step 4, operation not known: ")
    assert divergence_line(d).endswith("(no taps)")
