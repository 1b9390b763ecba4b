"""``run-ab speed`` over stub libraries that sleep: nothing finer than a factor of two decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from pyharness import cli, plan
from pyharness.errors import Exit, UsageError
from pyharness.speed import command as speed_command
from pyharness.speed import pairs
from pyharness.speed.command import exit_code, parse_margin
from pyharness.speed.stats import Word
from pyharness.speed.timing import SCHEMA_FILE
from pyharness.tests import place as place_module
from pyharness.tests.stubs import stub

OLD_LACKS = ("vcuda_dev_model_step_m", "vcuda_dev_model_mark", "vcuda_dev_model_rollback")


class Place(place_module.Place):
    def speed(self, candidate: Path, *arguments: str) -> int:
        model = ["--synthetic", "gdn", "--prefix", "2", "--candidate", str(candidate)]
        json_ = ["--json", str(self.folder / "speed.json")]
        return self.run("speed", *arguments, *model, *self.out, *json_)

    @property
    def told(self) -> dict[str, Any]:
        """The document, the same beside the verdict of the bit check; it fits its schema."""
        data = (self.folder / "speed.json").read_bytes()
        told: dict[str, Any] = json.loads(data)
        SCHEMA.validate(told)
        run = self.folder / "runs" / told["run"]
        assert (run / "speed.json").read_bytes() == data and (run / "verdict.json").exists()
        return told


SCHEMA = jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text()))


def sleeping(us: int, fault: str = "", without: tuple[str, ...] = ()) -> Path:
    return stub(fault, without, (f"-DSTEP_SLEEP_US={us}",))


def test_twice_the_sleep_is_slower(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, sleeping(6000))
    capfd.readouterr()
    chosen = ["--pairs", "12", "--seed", "5", "--margin", "50%", "--fail-if-slower"]
    code = place.speed(sleeping(12000), *chosen)
    said = capfd.readouterr().out
    assert code == Exit.DIFFERS, said
    lines = said.splitlines()
    assert lines[0].startswith("same ") and "/m1" in lines[0]
    (line,) = (x for x in lines if x.startswith("A/B"))
    assert "SLOWER" in line and "12 pairs" in line and "95 % interval" in line
    assert any(x.startswith("A/A") and "its own copy" in x for x in lines)
    assert "a single step: baseline " in said and "load average" in said
    told = place.told
    assert told["schema"] == "ab-speed/1" and told["word"] == "SLOWER" and told["exit_code"] == 1
    assert told["design"]["seed"] == 5 and told["bits"]["exit_code"] == 0
    assert told["change"]["pairs"] == 12 and told["change"]["low"] > 0
    for part in ("self_test", "comparison"):
        (samples,) = told["samples"][part]
        assert len(samples["pairs"]) == 12 and len(samples["warm_up_ns"]) >= 8
        # a sleep is never shorter than asked for, so this is no matter of luck
        assert min(p["baseline_ns"] for p in samples["pairs"]) >= samples["calls"] * 6_000_000
    assert min(p["candidate_ns"] for p in told["samples"]["comparison"][0]["pairs"]) >= 12_000_000
    assert [p["baseline_first"] for p in told["samples"]["self_test"][0]["pairs"]].count(True) == 6
    assert len(told["cpu"]) == 2 and told["cpu"][0]["load"] and told["gpu"] is None
    (run,) = place.runs
    section = (run / "report.html").read_text().partition(">Speed</h2>")[2]
    assert "<strong>SLOWER</strong>" in section and section.count('class="dot"') == 24
    assert place.run("show", run.name, *place.out) == Exit.SAME  # of the bits
    assert set(lines) <= set(capfd.readouterr().out.splitlines())
    (run / "speed.json").write_text("{}")
    assert place.run("show", run.name, *place.out) == Exit.USAGE
    assert "speed.json: not a speed: schema is not ab-speed/1" in capfd.readouterr().err


def test_a_ci_server_hears_of_bits_and_speed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, stub())
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    capfd.readouterr()
    assert place.speed(sleeping(100), "--pairs", "2") == Exit.SAME
    told = (tmp_path / "GITHUB_OUTPUT").read_text().splitlines()
    assert told == ["verdict=same", "speed=inconclusive"]
    said = capfd.readouterr().out.splitlines()
    (line,) = (x for x in said if x.startswith("A/B"))
    assert f"\n{line}\n" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert place.speed(stub("forgets"), "--pairs", "2") == Exit.DIFFERS
    assert (tmp_path / "GITHUB_OUTPUT").read_text().splitlines()[2:] == ["verdict=differs"]
    assert "::error title=differs%3A gdn-tiny/p2/m1::" in capfd.readouterr().out


def test_too_few_pairs_are_no_result(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rows against the single steps of a baseline that has no M-row step."""
    place = Place(tmp_path, sleeping(1000, without=OLD_LACKS))
    capfd.readouterr()
    assert (
        place.speed(sleeping(1000), "--mt", "3", "--pairs", "2", "--rounds", "2", "--strict")
        == Exit.UNPROVED
    )
    said = capfd.readouterr().out
    assert "/mt3" in said and "2 rounds cannot give a p of 5% or less" in said
    assert "a step of 3 rows against 3 single steps of the baseline: baseline " in said
    told = place.told
    assert told["word"] == "INCONCLUSIVE" and told["pairs_needed"] == 6 and told["rows"] == 3
    assert [len(part["pairs"]) for part in told["samples"]["comparison"]] == [2, 2]
    assert told["by_rows"] == {"baseline": False, "candidate": True}


@pytest.mark.parametrize(
    ("fault", "arguments", "code"),
    [
        ("forgets", [], Exit.DIFFERS),
        ("step-m-differs", ["--mt", "2"], Exit.DIFFERS),
        ("unstable", [], Exit.UNPROVED),
    ],
)
def test_no_number_on_a_red_bit_check(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    arguments: list[str],
    code: Exit,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was timed all the same")

    monkeypatch.setattr(speed_command, "_measure", never)
    place = Place(tmp_path, stub())
    capfd.readouterr()
    assert place.speed(stub(fault), *arguments) == code
    said = capfd.readouterr().out
    assert "no speed: the bit check is not green" in said and "A/B" not in said
    told = place.told
    assert told["word"] is None and told["exit_code"] == code and told["bits"]["exit_code"] == code
    assert not {"change", "self_test", "samples"} & set(told)


def test_a_run_that_is_being_timed_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, stub())

    def measure(*_: object) -> None:
        assert place.run("runs", "prune", "--keep", "0", "--yes", *place.out) == Exit.SAME
        raise speed_command._OtherRows("and that is that")

    monkeypatch.setattr(speed_command, "_measure", measure)
    assert place.speed(stub("another")) == Exit.DIFFERS
    assert place.told["exit_code"] == Exit.DIFFERS
    assert place.run("runs", "prune", "--keep", "0", "--yes", *place.out) == Exit.SAME
    assert place.runs == []


def test_no_number_where_the_timed_steps_themselves_differ(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "MOST_DROPPED", 1)  # no time counts here
    place = Place(tmp_path, stub())
    capfd.readouterr()
    assert place.speed(stub("wrong-far-on"), "--pairs", "1") == Exit.DIFFERS
    said = capfd.readouterr().out
    assert said.startswith("same ") and "A/B" not in said
    reason = "no speed: the candidate differs from the baseline at position 40 of the timed steps"
    assert reason in said.splitlines()
    told = place.told
    assert (told["word"], told["exit_code"], told["bits"]["exit_code"]) == (None, 1, 0)
    assert not {"change", "self_test", "samples"} & set(told)


def test_a_baseline_whose_copy_steps_otherwise_proves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "MOST_DROPPED", 1)  # no time counts here
    place = Place(tmp_path, stub("unstable-far-on"))
    capfd.readouterr()
    assert place.speed(stub(), "--pairs", "1") == Exit.UNPROVED
    said = capfd.readouterr()
    assert "the baseline differs from its copy at position 40 of the timed steps" in said.err
    assert "A/B" not in said.out and not list(tmp_path.glob("runs/*/speed.json"))


def test_a_library_timed_against_itself_is_named_as_such(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, stub())
    assert place.speed(stub(), "--pairs", "1") == Exit.SAME
    (run,) = place.runs
    for text in (capfd.readouterr().err, (run / "report.html").read_text()):
        assert "baseline and candidate are one library, sha256:" in text


def test_an_m_row_step_that_the_candidate_lacks_is_not_measured(tmp_path: Path) -> None:
    place = Place(tmp_path, stub())
    assert place.speed(stub(without=OLD_LACKS), "--mt", "2") == Exit.UNPROVED
    assert place.told["word"] is None


def test_a_library_that_fails_only_while_it_is_timed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit 4, and no document of the speed."""
    place = Place(tmp_path, stub())
    capfd.readouterr()
    late = _Late(plan, "generated_tokens", (999_999,) * 1024)  # outside the vocabulary
    monkeypatch.setattr(speed_command, "plan", late)
    assert place.speed(sleeping(1), "--pairs", "6") == Exit.FAILED
    said = capfd.readouterr()
    assert "A/B" not in said.out and not list(tmp_path.glob("runs/*/speed.json"))
    assert (
        said.err.strip().count("\n") == 0 and "run-ab: baseline: vcuda_dev_model_step" in said.err
    )


class _Late:
    """A module with one function that returns something else."""

    def __init__(self, module: object, name: str, value: object) -> None:
        self._module, self._name, self._value = module, name, value

    def __getattr__(self, name: str) -> object:
        if name == self._name:
            return lambda *_: self._value
        return getattr(self._module, name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--margin", "0"], "--margin"),
        (["--margin", "one"], "--margin"),
        (["--pairs", "0"], "--pairs: 1 to 1000"),
        (["--pairs", "1001"], "--pairs"),
        (["--rounds", "0"], "--rounds: 1 to 1000"),
        (["--mt", "2-4"], "one M at a time"),
        (["--mt", "1"], "an M-row step has 2 to"),
        (["--synthetic", "gdn", "--synthetic", "attn"], "one model"),
        (["--prefix", "1,2"], "one prefix"),
    ],
)
def test_options_that_mean_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    line = ["speed", *arguments, "--out", str(tmp_path / "runs"), "--candidate", str(stub())]
    assert cli.run(line) == Exit.USAGE
    assert said in capfd.readouterr().err and not (tmp_path / "runs").exists()


def test_margins() -> None:
    assert parse_margin("1%") == 1 and parse_margin(" 0.25 % ") == 0.25 and parse_margin("3") == 3
    for text in ("", "-1", "101%", "1e3", "nan", "%"):
        with pytest.raises(UsageError):
            parse_margin(text)


def test_exit_codes() -> None:
    def code(word: Word, strict: bool = False, fail: bool = False) -> Exit:
        return exit_code(word, strict=strict, fail_if_slower=fail)

    assert {code(word) for word in Word} == {Exit.SAME}
    assert code(Word.SLOWER, strict=True) == Exit.SAME
    assert code(Word.SLOWER, fail=True) == Exit.DIFFERS
    assert code(Word.INCONCLUSIVE, strict=True) == Exit.UNPROVED
    assert code(Word.INCONCLUSIVE, fail=True) == Exit.SAME
    assert code(Word.FASTER, True, True) == code(Word.SAME, True, True) == Exit.SAME
