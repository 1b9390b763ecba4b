"""``run-ab speed``: the bit check, the self-test, the comparison, and one document of all three."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pyharness import app, commands, identity, jobs, leftovers, plan, record
from pyharness.commands import ModelOptions, SuiteOptions
from pyharness.config import Settings
from pyharness.device import Gpu, cpu_state, open_gpu
from pyharness.errors import Exit, NothingProved, UsageError
from pyharness.files import write_atomically
from pyharness.inputs.watch import InputFile, require_unchanged
from pyharness.options import parse_prefixes, parse_rows
from pyharness.plan import Job, Workload
from pyharness.report import document, github
from pyharness.report.html import page
from pyharness.report.speed import speed_lines
from pyharness.report.terminal import Terminal
from pyharness.rows import DIGITS
from pyharness.runner.base import Runner
from pyharness.runner.local import LocalRunner
from pyharness.runner.process import Children
from pyharness.runner.warm import SpeedRequest, WarmWorker
from pyharness.speed import pairs, stats
from pyharness.speed.pairs import Design
from pyharness.speed.stats import Word
from pyharness.speed.timing import FILE, SCHEMA, Timing, timing_json
from pyharness.values import Arm, ArmPlan, to_json

STREAM_TOKENS = 1024  # generated for a synthetic model: more than lie between two resets


@dataclass(frozen=True)
class SpeedOptions:
    models: ModelOptions
    mt: str | None = None
    prefix: str | None = None
    pairs: int = 20
    rounds: int = 1
    margin: str = "1%"
    cold: bool = False
    strict: bool = False
    fail_if_slower: bool = False
    json: str | None = None


def speed_test(options: SpeedOptions, settings: Settings, runner: Runner | None = None) -> int:
    """Numbers only after a green bit check; otherwise that one's exit code and no number. Nor where
    the timed steps themselves differ, of which the bit check made only the first.
    """
    design = Design(
        _count("--pairs", options.pairs),
        settings["seed"],
        parse_margin(options.margin),
        _count("--rounds", options.rounds),
    )
    workload = _workload(options, settings)
    rows = _rows(options.mt)
    sources = record.sources_digest()
    with ExitStack() as stack:
        libraries = commands.open_pair(stack, settings)
        terminal = stack.enter_context(Terminal(results_to_stderr=options.json == "-"))
        inputs = commands.read_inputs(options.models, [workload])
        bits, job = _check_bits(options, settings, workload, inputs, libraries, runner, terminal)
        stack.enter_context(leftovers.held(bits.folder))  # its verdict is there, its times are not
        told = _frame(options, design, bits, rows, job)
        if bits.verdict.exit_code != Exit.SAME:
            terminal.say("no speed: the bit check is not green")
            terminal.run_folder(bits.folder)
            return _finish(options, bits, told, bits.verdict.exit_code)
        request = _request(options, settings, workload, job, rows)
        try:
            timing = _measure(libraries, request, design)
        except _OtherRows as e:
            terminal.say(f"no speed: {e}")
            terminal.run_folder(bits.folder)
            return _finish(options, bits, told, Exit.DIFFERS)
        if record.sources_digest() != sources:
            raise NothingProved("the harness's own files changed during the run: run it again")
        require_unchanged(inputs)
        lines = commands.library_lines(bits.document)
        terminal.say(*speed_lines(timing), *lines)
        terminal.run_folder(bits.folder)
        word = timing.result.word
        code = exit_code(word, strict=options.strict, fail_if_slower=options.fail_if_slower)
        write_atomically(bits.folder / "report.html", page(bits.document, timing).encode())
        return _finish(options, bits, {**told, **timing_json(timing)}, code, timing)


def exit_code(word: Word, *, strict: bool, fail_if_slower: bool) -> Exit:
    """A speed is no defect unless it is asked to be one."""
    if word is Word.SLOWER and fail_if_slower:
        return Exit.DIFFERS
    if word is Word.INCONCLUSIVE and strict:
        return Exit.UNPROVED
    return Exit.SAME


# ---- options -------------------------------------------------------------------------------------


def parse_margin(text: str) -> float:
    """``1%`` or ``0.5`` -> per cent."""
    match = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,6})?)\s*%?\s*", text)
    if not match or not 0 < float(match[1]) <= 100:
        raise UsageError(f"--margin: a number of per cent above 0, e.g. 1%, not {text!r}")
    return float(match[1])


def _count(option: str, count: int) -> int:
    if not 1 <= count <= stats.MOST_PAIRS:
        raise UsageError(f"{option}: 1 to {stats.MOST_PAIRS}, not {count}")
    return count


def _rows(mt: str | None) -> int:
    if mt is None:
        return 1
    chosen = parse_rows(mt)
    if len(chosen) != 1:
        raise UsageError(f"--mt {mt}: speed is measured for one M at a time")
    return chosen[0]


def _workload(options: SpeedOptions, settings: Settings) -> Workload:
    """One model; the hybrid one where none is named."""
    models = options.models
    if len(set(models.synthetic)) + len(models.model) > 1:
        raise UsageError("speed is measured on one model: name one --synthetic or --model")
    if not models.synthetic and not models.model:
        models = dataclasses.replace(models, synthetic=("hybrid",))
    if options.prefix is not None and len(parse_prefixes(options.prefix)) != 1:
        raise UsageError(f"--prefix {options.prefix}: speed is measured after one prefix")
    return commands.read_workloads(models, settings)[0]


# ---- the bit check -------------------------------------------------------------------------------


def _check_bits(
    options: SpeedOptions,
    settings: Settings,
    workload: Workload,
    inputs: tuple[InputFile, ...],
    libraries: Mapping[Arm, app.Library],
    runner: Runner | None,
    terminal: Terminal,
) -> tuple[app.Outcome, Job]:
    """m1, and mt where M rows are timed, like every other run; and its first job."""
    asked = SuiteOptions(options.models, m1=True, mt=options.mt, prefix=options.prefix)
    workers = settings["workers"] or jobs.parallel_workers([workload.model])
    suite = commands.planned([workload], commands.suite_request(asked, settings, workers))
    suite = identity.check_pair(suite, libraries, asked_for=True)  # a note where they are one
    commands.tell(suite.notes)
    outcome = app.run(
        suite, libraries, inputs, settings, runner or LocalRunner(), workers=workers,
        listener=app.Listener(terminal.job, terminal.arm),
    )  # fmt: skip
    return outcome, suite.jobs[0]


# ---- the measurement -----------------------------------------------------------------------------


def _request(
    options: SpeedOptions, settings: Settings, workload: Workload, job: Job, rows: int
) -> SpeedRequest:
    stream = workload.tokens
    if not workload.given:
        count = max(STREAM_TOKENS, job.prefix)
        stream = plan.generated_tokens(workload.model.seed, count, workload.vocab)
    return SpeedRequest(
        plan=ArmPlan(
            arm="candidate",
            role="arm",
            model=workload.model,
            script=(),
            mmax=rows if rows > 1 else 0,
            threads=settings["threads"],
            environment=commands.plan_environment(settings),
            timeout_s=settings["timeout"],
        ),
        rows=rows,
        prefix=stream[: job.prefix],
        stream=stream,
        cold=options.cold,
    )


def _measure(libraries: Mapping[Arm, app.Library], request: SpeedRequest, design: Design) -> Timing:
    """The baseline stays for both parts of a round; never more than two models are in memory."""
    children = Children()

    def worker(name: str, arm: Arm) -> WarmWorker:
        placed = dataclasses.replace(request, plan=dataclasses.replace(request.plan, arm=arm))
        return WarmWorker(name, placed, libraries[arm], children)

    before = cpu_state()
    self_test, comparison = [], []
    for round_ in range(design.rounds):
        with worker("baseline", "baseline") as baseline, _gpu(baseline) as gpu:
            watch = gpu.state if gpu else lambda: None
            with worker("the baseline's copy", "baseline") as copy:
                self_test.append(pairs.measure(baseline, copy, design, round_=round_, device=watch))
                if where := _unlike(baseline, copy, request):
                    raise NothingProved(f"the baseline differs from its copy {where}")
            with worker("candidate", "candidate") as candidate:
                comparison.append(
                    pairs.measure(baseline, candidate, design, round_=round_, device=watch)
                )
                if where := _unlike(baseline, candidate, request):
                    raise _OtherRows(f"the candidate differs from the baseline {where}")
                others = _others(gpu)
                by_rows = {
                    "baseline": baseline.ready.by_rows,
                    "candidate": candidate.ready.by_rows,
                }
            facts = gpu.facts() if gpu else None
    return Timing(
        design=design,
        call=called(request.rows, by_rows),
        by_rows=by_rows,
        result=pairs.judge(self_test, comparison, design),
        self_test=tuple(self_test),
        comparison=tuple(comparison),
        cores=os.cpu_count() or 1,
        cpu=(before, cpu_state()),
        gpu=facts,
        other_gpu_processes=others,
    )


class _OtherRows(Exception):
    """What was timed is not what the bit check compared."""


def _unlike(one: WarmWorker, other: WarmWorker, request: SpeedRequest) -> str:
    """Where the timed rows of two workers differ first; both read the same tokens."""
    digests = one.rows(), other.rows()
    for at in range(0, min(map(len, digests)), DIGITS):
        if digests[0][at : at + DIGITS] != digests[1][at : at + DIGITS]:
            return f"at position {len(request.prefix) + at // DIGITS} of the timed steps"
    return ""


def called(rows: int, by_rows: Mapping[str, bool]) -> str:
    """What was timed, for people."""
    if rows == 1:
        return "a single step"
    names = {True: f"a step of {rows} rows", False: f"{rows} single steps"}
    ours, theirs = (names[by_rows[arm]] for arm in ("candidate", "baseline"))
    return ours if ours == theirs else f"{ours} against {theirs} of the baseline"


@contextmanager
def _gpu(worker: WarmWorker) -> Iterator[Gpu | None]:
    """Where the library says that it computes on one."""
    if worker.ready.library.build_info.get("backend") != "cuda":
        yield None
        return
    with open_gpu(os.environ.get("CUDA_VISIBLE_DEVICES", "")) as gpu:
        yield gpu


def _others(gpu: Gpu | None) -> int | None:
    count = gpu.compute_processes() if gpu else None
    return None if count is None else max(0, count - 2)


# ---- what is told --------------------------------------------------------------------------------


def _frame(
    options: SpeedOptions, design: Design, bits: app.Outcome, rows: int, job: Job
) -> dict[str, Any]:
    """What is true before anything was timed."""
    return {
        "schema": SCHEMA,
        "run": bits.folder.name,
        "word": None,
        "bits": {"exit_code": bits.verdict.exit_code, "summary": bits.verdict.summary},
        "libraries": {
            arm: {"digest": str(lib.digest), "size_bytes": lib.size_bytes, "origin": lib.origin}
            for arm, lib in bits.record.libraries.items()
        },
        "model": to_json(job.baseline.model),
        "rows": rows,
        "prefix": job.prefix,
        "cold": options.cold,
        "design": to_json(design),
        "machine": bits.record.machine,
    }


def _finish(
    options: SpeedOptions,
    bits: app.Outcome,
    told: dict[str, Any],
    code: int,
    timing: Timing | None = None,
) -> int:
    data = document.dumps({**told, "exit_code": int(code)})
    write_atomically(bits.folder / FILE, data)
    commands.write(options.json, data)
    github.announce(bits.document, options.json == "-", timing)
    return int(code)
