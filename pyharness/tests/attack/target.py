"""One parser under attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from pyharness.errors import Exit
from pyharness.tests.attack.command import Ended


@dataclass(frozen=True)
class Target:
    """``attack``: bytes to try. ``work``: gives them to the parser."""

    attack: st.SearchStrategy[bytes]
    work: Callable[[bytes], Ended]
    codes: tuple[int, ...] = (Exit.SAME, Exit.USAGE)  # how it may end
