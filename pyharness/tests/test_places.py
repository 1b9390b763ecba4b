"""Columns and elements under the names of the heads and parts that they belong to."""

from __future__ import annotations

from collections import Counter

import pytest

from pyharness.differences import places
from pyharness.host.abi import StateKind, TapKind
from pyharness.inputs.layout import LayerKind
from pyharness.inputs.synthetic import config_of

CONFIG = config_of("hybrid", "tiny")
GDN = CONFIG.layer_kinds.index(LayerKind.GDN)
ATTENTION = CONFIG.layer_kinds.index(LayerKind.ATTENTION)


def widths(layer: int, tap: str, columns: int) -> dict[str, int]:
    """Columns of each name, and that no name comes back after another one."""
    names = [places.tap_part(CONFIG, layer, tap, i) for i in range(columns)]
    runs = [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]
    assert len(runs) == len(set(runs))
    return dict(Counter(names))


def test_the_names_are_those_of_the_header() -> None:
    assert tuple(kind.part for kind in TapKind) == places.TAPS
    parts = places.STATE_PARTS[LayerKind.GDN] + places.STATE_PARTS[LayerKind.ATTENTION]
    assert tuple(kind.part for kind in StateKind) == parts


def test_first_projection_of_a_gdn_layer() -> None:
    c = CONFIG
    columns = c.conv_dim + c.value_dim + 2 * c.gdn_v_heads
    found = widths(GDN, "in_proj", columns)
    expected = {f"{n} head {i}": c.gdn_k_dim for n in "qk" for i in range(c.gdn_k_heads)}
    expected |= {f"{n} head {i}": c.gdn_v_dim for n in "vz" for i in range(c.gdn_v_heads)}
    expected |= {f"{n} of head {i}": 1 for n in "ba" for i in range(c.gdn_v_heads)}
    assert found == expected
    assert places.tap_part(c, GDN, "in_proj", columns) == ""
    assert places.tap_part(c, GDN, "in_proj", c.conv_dim) == "z head 0"


def test_first_projection_of_an_attention_layer() -> None:
    c = CONFIG
    found = widths(ATTENTION, "in_proj", 2 * (c.q_heads + c.kv_heads) * c.head_dim)
    heads = [f"{n} of head {i}" for i in range(c.q_heads) for n in ("query", "gate")]
    heads += [f"{n} of KV head {i}" for n in ("keys", "values") for i in range(c.kv_heads)]
    assert found == dict.fromkeys(heads, c.head_dim)
    assert places.tap_part(c, ATTENTION, "in_proj", 3 * c.head_dim - 1) == "query of head 1"


def test_heads_of_the_mixers_and_halves_of_the_mlp() -> None:
    c = CONFIG
    assert widths(GDN, "mixer", c.value_dim) == {
        f"head {i}": c.gdn_v_dim for i in range(c.gdn_v_heads)
    }
    assert widths(ATTENTION, "mixer", c.q_heads * c.head_dim) == {
        f"head {i}": c.head_dim for i in range(c.q_heads)
    }
    halves = {"gate": c.intermediate, "up": c.intermediate}
    assert widths(GDN, "gate_up", 2 * c.intermediate) == halves
    for tap in ("input_norm", "mixer_residual", "post_norm", "swiglu", "residual"):
        assert places.tap_part(c, GDN, tap, 3) == ""


@pytest.mark.parametrize(
    ("part", "index", "name"),
    [
        ("S", (1, 2, 3), "head 1"),
        ("conv", (0, 2), "q head 0"),
        ("conv", (CONFIG.conv_dim - 1, 0), f"v head {CONFIG.gdn_v_heads - 1}"),
        ("keys", (1, 63, 5), "KV head 1, position 63"),
        ("values", (0, 0, 0), "KV head 0, position 0"),
    ],
)
def test_elements_of_the_state(part: str, index: tuple[int, ...], name: str) -> None:
    assert places.state_part(CONFIG, part, index) == name
    shape = places.state_shape(CONFIG, part, 64)
    assert len(shape) == len(index) and all(i < n for i, n in zip(index, shape, strict=True))
