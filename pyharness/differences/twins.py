"""States of two layers that are the same bytes: a dump that compares one layer several times."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyharness.dumps import Dump

PROBE_BYTES = 4096  # arrays that differ do so early: only where this much is equal, all is read


def twin_layers(folder: Path) -> str:
    """Two layers of one dump with the same state, in words; "" where there are none.

    A part that is empty or all zeros is left out: so is every layer's before the first token.
    """
    groups: dict[tuple[str, tuple[int, ...], bytes], list[tuple[str, npt.NDArray[Any]]]]
    groups = defaultdict(list)
    for name, array in Dump.open(folder).state.items():
        if array.size and array.any():
            flat = array.reshape(-1).view(np.uint8)
            groups[name.rpartition(".")[2], array.shape, flat[:PROBE_BYTES].tobytes()].append(
                (name, flat)
            )
    for alike in groups.values():
        for number, (name, flat) in enumerate(alike):
            for other, bytes_ in alike[number + 1 :]:
                if np.array_equal(flat, bytes_):
                    return f"{name} and {other} are the same bytes"
    return ""
