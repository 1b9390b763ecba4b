"""Faults planted in the CPU library's sources and in stubs: the operation that is named is the one
that has the fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pyharness import plan, record
from pyharness.differences.findings import Divergence
from pyharness.errors import Exit
from pyharness.host.script import TAPS
from pyharness.plan import Request, Suite, Workload
from pyharness.report.text import job_lines
from pyharness.tests import place as place_module
from pyharness.tests.faults.mutant import H_OUT, Mutant
from pyharness.tests.faults.workshop import Workshop
from pyharness.tests.stubs import stub
from pyharness.verdict import JobVerdict

BACK = "  now_ = marked_;\n  position_ = marked_position_;\n  marked_ = -1;\n"
ATTENTION_OUT = "b.project_add(l.attention.out, work.mixed, m, work.x);"
# One library, a fault for each M and for the rollback. Layers 3 and 7 of the hybrid model are
# attention, so the third GDN layer is layer 2, the second attention layer is layer 7.
PLANTED = (
    Mutant(
        "residual-of-row-0",
        "row 1 gets an element of row 0's residual stream",
        "model/forward.cpp",
        ATTENTION_OUT,
        f"{ATTENTION_OUT} if (m == 2 && i == 3) work.x[c.hidden + 77] = work.x[77];",
        *("mt2", H_OUT),
    ),
    Mutant(
        "decay-of-head-0",
        "head 1 of one layer decays as head 0",
        "cpu/backend.cpp",
        "h.a_neg = l.gdn.a_neg[j],",
        "h.a_neg = l.gdn.a_neg[m == 3 && l.index == 2 && j == 1 ? 0 : j],",
        *("mt3", H_OUT),
    ),
    Mutant(
        "position-of-row-2",
        "the rotary position of row 2 in one layer",
        "cpu/backend.cpp",
        "static_cast<double>(in.position + i)",
        "static_cast<double>(in.position + i + (m == 4 && i == 2 && l.index == 1))",
        *("mt4", H_OUT),
    ),
    Mutant(
        "conv-of-layer-1",
        "the convolution window of one layer is not restored",
        "model/model.cpp",
        BACK,
        "  const size_t n = config_.conv_size();\n"
        "  std::memcpy(slots_[marked_].conv + n, slots_[now_].conv + n, n * sizeof(float));\n"
        + BACK,
        *("rb2", H_OUT),
    ),
)
KEY_AS_VALUE = Mutant(
    "key-as-value",
    "one key of the prefix goes into the cache as a value",
    "cpu/backend.cpp",
    "static_cast<size_t>(position) * d, v,",
    "static_cast<size_t>(position) * d, position == 3 && kv_head == 1 && l.index == 1 ? k : v,",
    *("m1", H_OUT),
)


class Place(place_module.Place):
    def red(self, candidate: Path, *arguments: str) -> dict[str, JobVerdict]:
        """The verdicts of a run that must be red, by the jobs' names."""
        line = [*arguments, "--prefix", "5", "--candidate", str(candidate), *self.out]
        assert self.run(*line) == Exit.DIFFERS
        jobs = record.read_verdict(self.runs[-1])[0].jobs
        return {job.id.rsplit("/", 1)[1]: job for job in jobs}


@pytest.fixture(autouse=True)
def plain_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """One job for each M."""
    build = plan.build

    def plain(workloads: Iterable[Workload], request: Request) -> Suite:
        suite = build(workloads, request)
        return Suite(tuple(job for job in suite.jobs if not job.case), suite.notes)

    monkeypatch.setattr(plan, "build", plain)


def found(job: JobVerdict) -> Divergence:
    assert job.divergence is not None
    return job.divergence


# ---- the CPU library -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    sound: Path
    planted: Path
    key_as_value: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("workshop")
    shop = Workshop(folder / "shop")
    first, *others = PLANTED
    return Built(
        shop.unchanged,
        shop.build(first, folder / "planted", *others),
        shop.build(KEY_AS_VALUE, folder / "value"),
    )


def test_planted_faults_are_named_by_row_layer_and_operation(
    tmp_path: Path, built: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--mt", "2-4", "--rb", "2", "--synthetic", "hybrid"]
    jobs = Place(tmp_path, built.sound).red(built.planted, *line)
    residual = found(jobs["mt2"])
    assert (residual.position, residual.row, residual.rows) == (6, 1, 2)
    assert (residual.layer, residual.layer_kind) == (3, "attention")
    assert (residual.operation, residual.index) == ("mixer_residual", (1, 77))
    assert residual.different == 1 and residual.also == ()

    decay = found(jobs["mt3"])
    assert (decay.position, decay.row, decay.layer, decay.layer_kind) == (5, 0, 2, "GDN")
    assert (decay.operation, decay.part, decay.also) == ("mixer", "head 1", ("S",))

    rope = found(jobs["mt4"])
    assert (rope.position, rope.row, rope.rows, rope.layer) == (7, 2, 4, 7)
    assert (rope.operation, rope.part, rope.also) == ("mixer", "head 0", ("keys",))

    conv = found(jobs["rb2"])
    assert (conv.call, conv.position) == ("rollback", 5)
    assert (conv.layer, conv.operation) == (1, "state conv")

    start = "first difference: step 7 (row 2 of the 4-row step), layer 7 (attention), mixer, head 0"
    first, second = (line.strip() for line in job_lines(jobs["mt4"])[1:3])
    assert first.startswith(f"{start}: element [2, 0] baseline 0x")
    assert second.startswith("h_out.npy [2, 0]: ")  # the files come after it
    told = capsys.readouterr().out
    assert start in told and "first difference: after the rollback to position 5, layer 1" in told


def test_the_elements_stay_beside_the_run(tmp_path: Path, built: Built) -> None:
    place = Place(tmp_path, built.planted)
    jobs = place.red(built.sound, "--libs", "--mt", "3", "--synthetic", "gdn")
    decay = found(jobs["libs-mt3"])
    assert (decay.layer, decay.operation, decay.part) == (2, "mixer", "head 1")
    folder = place.runs[-1] / "first-difference" / jobs["libs-mt3"].id.replace("/", ".")
    ours, theirs = (np.load(folder / f"{arm}.npy") for arm in decay.arms)
    column = decay.index[1]
    words = [f"0x{int(x[column : column + 1].view(np.uint32)[0]):08x}" for x in (ours, theirs)]
    assert tuple(words) == decay.bits
    assert int((ours.view("<u4") != theirs.view("<u4")).sum()) == decay.different
    assert [p.name for p in (place.runs[-1] / "first-difference").iterdir()] == [folder.name]


def test_a_fault_in_the_prefix_is_found_there(tmp_path: Path, built: Built) -> None:
    jobs = Place(tmp_path, built.sound).red(built.key_as_value, "--m1", "--synthetic", "hybrid")
    value = found(jobs["m1"])
    assert (value.position, value.rows, value.layer) == (3, 1, 7)  # the first row recorded is 5
    assert (value.operation, value.also) == ("mixer", ("values",))


# ---- stubs ---------------------------------------------------------------------------------------

SMALL = ("--synthetic", "gdn")


@pytest.mark.parametrize("lacking", [(), TAPS])
def test_an_operation_of_the_last_row(tmp_path: Path, lacking: tuple[str, ...]) -> None:
    """A baseline from before the taps has a stand-in where the candidate's single steps are its."""
    jobs = Place(tmp_path, stub(without=lacking)).red(stub("parts-in-layer-1"), "--mt", "3", *SMALL)
    d = found(jobs["mt3"])
    assert (d.position, d.row, d.rows, d.layer, d.operation) == (7, 2, 3, 1, "post_norm")
    assert d.different == 1
    stood_in = "the baseline lacks vcuda_dev_model_taps: its script on the candidate's library"
    assert d.note.startswith(stood_in) if lacking else d.note == ""


def test_without_taps_the_dumps_tell_what_they_can(tmp_path: Path) -> None:
    place = Place(tmp_path, stub())
    candidate = stub("parts-in-layer-1", without=TAPS[:1])
    d = found(place.red(candidate, "--mt", "3", *SMALL)["mt3"])
    assert (d.position, d.row, d.rows, d.operation, d.layer) == (7, 2, 3, "h_out", -1)
    assert d.note == "layer and operation are not known: the candidate lacks vcuda_dev_model_taps"
    d = found(place.red(candidate, "--mt", "3", *SMALL, "--no-trace")["mt3"])
    assert (d.operation, d.note) == ("h_out", "")


def test_a_baseline_without_taps_and_with_other_single_steps(tmp_path: Path) -> None:
    place = Place(tmp_path, stub(without=TAPS))
    d = found(place.red(stub("forgets"), "--m1", *SMALL)["m1"])
    assert (d.position, d.operation) == (5, "h_out")
    assert d.note == "layer and operation are not known: the baseline lacks vcuda_dev_model_taps"


def test_a_fault_that_goes_away_with_taps_on_is_said_to(tmp_path: Path) -> None:
    d = found(Place(tmp_path, stub()).red(stub("taps-hide-it"), "--mt", "3", *SMALL)["mt3"])
    assert (d.row, d.operation) == (2, "h_out")
    assert d.note.endswith("alone and with taps on the candidate gives other bits")


def test_a_row_that_knows_a_later_token(tmp_path: Path) -> None:
    """Both libraries agree; the control, with another token in a later row, is what differs."""
    place = Place(tmp_path, stub("leak"))
    jobs = place.red(stub("leak", flags=("-O2",)), "--libs", "--mt", "3", *SMALL)
    job = jobs["libs-mt3"]
    assert job.comparison is not None and job.comparison.equal and "row 0 depends" in job.reason
    d = found(job)
    assert (d.arms, d.position, d.row, d.operation) == (("candidate", "control"), 5, 0, "h_out")


def test_a_state_that_is_wrong_after_a_rollback(tmp_path: Path) -> None:
    d = found(Place(tmp_path, stub()).red(stub("rollback-differs"), "--rb", "2", *SMALL)["rb2"])
    assert (d.call, d.position, d.layer, d.operation) == ("rollback", 5, 0, "state S")


def test_two_layers_with_one_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, stub("twin-layers"))
    line = ["--mt", "2", *SMALL, "--prefix", "2", "--candidate", str(stub("twin-layers"))]
    assert place.run(*line, *place.out) == Exit.UNPROVED
    told = capsys.readouterr().out
    assert "indistinct" in told and "layers.2.S and layers.3.S are the same bytes" in told
