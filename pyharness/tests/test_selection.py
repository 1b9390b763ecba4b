"""Jobs by name."""

from __future__ import annotations

import pytest

from pyharness.errors import UsageError
from pyharness.plan import Request, Workload, build
from pyharness.selection import select
from pyharness.values import ModelSpec

SUITE = build(
    [Workload(ModelSpec("synthetic", f, "tiny"), 512) for f in ("hybrid", "attn")], Request()
)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["mt4"], ["hybrid-tiny/p63/mt4", "attn-tiny/p63/mt4"]),
        (["attn-tiny/p1023/m*"], ["attn-tiny/p1023/m1", "attn-tiny/p1023/mt8"]),
        (["hybrid*/rb8-keep?", "hybrid*/m1"], [
            "hybrid-tiny/p63/m1", "hybrid-tiny/p63/rb8-keep1", "hybrid-tiny/p63/rb8-keep7",
        ]),
    ],
)  # fmt: skip
def test_only(patterns: list[str], names: list[str]) -> None:
    chosen = select(SUITE, patterns)
    assert [job.id for job in chosen.jobs] == names and chosen.notes == SUITE.notes


def test_without_a_pattern_everything() -> None:
    assert select(SUITE, ()) == SUITE


@pytest.mark.parametrize("pattern", ["mt9", "", "MT4", "attn-tiny"])
def test_a_name_that_no_job_has(pattern: str) -> None:
    with pytest.raises(UsageError, match="no job of that name; there are m1, m1-refused, mt2"):
        select(SUITE, ["mt4", pattern])
