"""What each command does, given its options as values. Returns an exit code; errors are exceptions
with one.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyharness import app, compare, device, gate, identity, jobs, plan, record
from pyharness.config import ISA_VARIABLE, Settings
from pyharness.errors import Exit, LibraryFailure, NothingProved, UsageError
from pyharness.files import write_atomically
from pyharness.inputs.checkpoint import POSITIONS
from pyharness.inputs.model import input_files, load_config, model_spec, positions_of
from pyharness.inputs.tokens import read_text, read_tokens
from pyharness.inputs.watch import InputFile, input_file
from pyharness.messages import printable
from pyharness.options import parse_prefixes, parse_rows
from pyharness.plan import Request, Suite, Workload
from pyharness.report import document, github, text
from pyharness.report.junit import junit_xml
from pyharness.report.terminal import Terminal
from pyharness.runner.base import Runner
from pyharness.runner.local import LocalRunner
from pyharness.selection import select
from pyharness.stale import stale
from pyharness.values import Arm, ArmPlan, ModelSpec, Op, to_json


@dataclass(frozen=True)
class ModelOptions:
    """--synthetic, --size, --model, --tokens, --text."""

    synthetic: tuple[str, ...] = ()
    size: str = "tiny"
    model: tuple[Path, ...] = ()
    tokens: Path | None = None
    text: Path | None = None


@dataclass(frozen=True)
class SuiteOptions:
    models: ModelOptions
    m1: bool = False
    mt: str | None = None
    rb: str | None = None
    libs: bool = False
    profile: plan.Profile = "quick"
    only: tuple[str, ...] = ()
    prefix: str | None = None
    continuation: str | None = None
    json: str | None = None
    junit: Path | None = None
    same_library: bool = False
    trace: bool = True


def suite(options: SuiteOptions, settings: Settings, runner: Runner | None = None) -> int:
    """The default command."""
    workloads = read_workloads(options.models, settings)
    workers = settings["workers"] or jobs.parallel_workers(w.model for w in workloads)
    made = select(planned(workloads, suite_request(options, settings, workers)), options.only)
    with ExitStack() as stack:
        libraries = open_pair(stack, settings)
        made = identity.check_pair(made, libraries, options.same_library)
        inputs = read_inputs(options.models, workloads)
        with Terminal(results_to_stderr=options.json == "-") as terminal:
            tell(made.notes)
            outcome = app.run(
                made, libraries, inputs, settings, runner or LocalRunner(),
                workers=workers, listener=app.Listener(terminal.job, terminal.arm),
                trace=options.trace,
            )  # fmt: skip
        terminal.summary(outcome.verdict, *library_lines(outcome.document))
        terminal.run_folder(outcome.folder)
    write(options.json, document.dumps(outcome.document))
    github.announce(outcome.document, options.json == "-")
    if options.junit:
        write_atomically(options.junit, junit_xml(outcome.document))
    return outcome.verdict.exit_code


def planned(workloads: list[Workload], request: Request) -> Suite:
    """The suite, with a note where a model is read beyond the positions it was made for."""
    made = plan.build(workloads, request)
    notes = list(made.notes)
    for model in (w.model for w in workloads):
        lengths = [j.prefix + j.rows for j in made.jobs if j.candidate.model.path == model.path]
        most = positions_of(model)
        if most is not None and max(lengths, default=0) > most:
            notes.append(f"{model.path}: {POSITIONS} is {most}, {max(lengths)} tokens are read")
    return dataclasses.replace(made, notes=tuple(notes))


def suite_request(options: SuiteOptions, settings: Settings, workers: int) -> Request:
    """Which jobs the options ask for; every kind where they name none. UsageError."""
    named = options.mt is not None or options.rb is not None
    explicit = options.m1 or options.libs or named
    none: tuple[int, ...] = ()
    mt, rb = (none, none) if explicit else (plan.DEFAULT_MT, plan.DEFAULT_RB)
    mt = mt if options.mt is None else parse_rows(options.mt)
    rb = rb if options.rb is None else parse_rows(options.rb)
    libs_mt, libs_rb = (mt, rb) if options.libs or not explicit else (none, none)
    if options.libs and not (mt or rb):
        libs_mt, libs_rb = plan.DEFAULT_MT, plan.DEFAULT_RB
    return Request(
        m1=options.m1 or not explicit,
        mt=mt,
        rb=rb,
        libs_mt=libs_mt,
        libs_rb=libs_rb,
        explicit=explicit,
        prefixes=parse_prefixes(options.prefix) if options.prefix is not None else None,
        continuation=_continuation(options.continuation),
        # Two processes at a time leave one core to each. The number of threads never changes a bit.
        threads=settings["threads"] or (1 if workers > 1 else 0),
        timeout_s=settings["timeout"],
        environment=plan_environment(settings),
        profile=options.profile,
    )


def plan_environment(settings: Settings) -> tuple[tuple[str, str], ...]:
    """In the plan rather than inherited, so that a replay has it too."""
    isa = settings["isa"]
    return ((ISA_VARIABLE, isa),) if isa else ()


def _continuation(value: str | None) -> Any:
    if value is None or value == "all":
        return value
    if not value.isdecimal() or len(value) > 7:
        raise UsageError(f"--continuation: a number of tokens or 'all', not {value!r}")
    return int(value)


def read_workloads(options: ModelOptions, settings: Settings) -> list[Workload]:
    """The models that were named, or the three tiny synthetic ones."""
    if options.tokens and options.text:
        raise UsageError("--tokens and --text cannot both be given")
    families = options.synthetic or (() if options.model else ("hybrid", "gdn", "attn"))
    specs = [
        ModelSpec("synthetic", f, options.size, settings["seed"]) for f in dict.fromkeys(families)
    ]
    specs += [model_spec(path) for path in options.model]
    names = [spec.slug for spec in specs]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(f"two models are named {twice}: their jobs could not be told apart")
    return [_workload(spec, options) for spec in specs]


def _workload(spec: ModelSpec, options: ModelOptions) -> Workload:
    vocab = load_config(spec).vocab
    if options.tokens:
        return Workload(spec, vocab, read_tokens(options.tokens, vocab), given=True)
    if options.text:
        return Workload(spec, vocab, read_text(options.text, spec, vocab), given=True)
    return Workload(spec, vocab)


def read_inputs(options: ModelOptions, workloads: list[Workload]) -> tuple[InputFile, ...]:
    """Digests of every file that the run depends on; the token file too, though the plan holds the
    tokens.
    """
    files = [file for w in workloads for file in input_files(w.model)]
    files += [input_file(p.absolute()) for p in (options.tokens, options.text) if p]
    return tuple(files)


# ---- libraries -----------------------------------------------------------------------------------


def open_pair(stack: ExitStack, settings: Settings) -> dict[Arm, app.Library]:
    """Both libraries through the gate, before anything is loaded, hashed or written. The baseline
    first: whether it can run here is known before a candidate is asked for.
    """
    archive, pin = settings["archive"], settings["pin"]
    reference = baseline_reference(settings["baseline"])
    made = gate.open_baseline(archive, pin, reference, settings["backend"])
    baseline = stack.enter_context(made)
    device.require(baseline.backend, f"baseline {baseline.label}")
    candidate = stack.enter_context(open_candidate(settings))
    device.require(candidate.backend, f"candidate {candidate.origin}")
    return {"baseline": baseline, "candidate": candidate}


def open_candidate(settings: Settings) -> gate.SealedLibrary:
    """The library under test. UsageError where it is not there: most often it was not built."""
    path = settings["candidate"]
    if not path.exists():
        raise UsageError(f"{no_such_library(path)} or name one with --candidate")
    tell((stale(path, settings.root),))
    return gate.open_candidate(path)


def no_such_library(path: Path) -> str:
    """What is wrong, and how to build it; the message goes on after it."""
    target = "cuda" if path.parent.name == "cuda" else "native"
    return f"{path}: no such library; build it with `make {target}`"


def baseline_reference(reference: str) -> str:
    """A path becomes the digest of its bytes: a baseline is what the archive's log knows, wherever
    it lies.
    """
    if "/" in reference or reference.endswith(".so"):
        with gate.open_candidate(Path(reference)) as sealed:
            return str(sealed.digest)
    return reference


# ---- dump, compare, replay -------------------------------------------------------------------


def dump(
    library: Path,
    options: ModelOptions,
    out: Path,
    settings: Settings,
    runner: Runner | None = None,
) -> int:
    """One library, one input, single steps, the three files."""
    if len(options.synthetic) + len(options.model) != 1:
        raise UsageError("name one model: --model DIR|PACK or --synthetic FAMILY")
    (workload,) = read_workloads(options, settings)
    tokens = workload.tokens
    if not workload.given:
        tokens = plan.generated_tokens(settings["seed"], 16, workload.vocab)
    arm = ArmPlan(
        "candidate", "arm", workload.model, (Op("step", tokens, record=True),),
        threads=settings["threads"], timeout_s=settings["timeout"],
        environment=plan_environment(settings),
    )  # fmt: skip
    with gate.open_candidate(library) as sealed:
        device.require(sealed.backend, str(library))
        result = (runner or LocalRunner()).run(arm, sealed, out)
    if result.status == "failed":
        raise LibraryFailure(f"{library}: {result.reason}")
    if result.status == "unsupported":
        raise NothingProved(f"{library}: unsupported: {result.reason}")
    for fact in result.files:
        print(f"{fact.sha256}  {fact.size_bytes:>12}  {out / fact.name}")
    return Exit.SAME


def compare_folders(baseline: Path, candidate: Path, json_path: str | None) -> int:
    """memcmp of two dumps."""
    from pyharness.differences.explain import explain

    for folder in (baseline, candidate):
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: no such folder; give two folders with {', '.join(compare.FILES)}"
            )
    compare.require_two(baseline, candidate)
    comparison, ours, theirs = compare.compare_and_hash(baseline, candidate)
    if comparison.equal and not compare.has_rows(baseline):
        raise NothingProved(f"{baseline} and {candidate}: nothing to compare: no row is recorded")
    explanations = explain(baseline, candidate, comparison)
    if json_path != "-":
        print("\n".join(map(printable, text.comparison_lines(comparison, explanations))))
    told = {"schema": "ab-comparison/1", **to_json(comparison)}
    told["explanations"] = to_json(explanations)
    told |= {"baseline": to_json(ours), "candidate": to_json(theirs)}
    write(json_path, document.dumps(told))
    return Exit.SAME if comparison.equal else Exit.DIFFERS


def replay(
    run: str,
    settings: Settings,
    json_path: str | None,
    candidate: Path | None = None,
    runner: Runner | None = None,
) -> int:
    """The same plan on the same libraries again; every arm must give the digests that the record
    holds. ``candidate``: where its library is now.
    """
    from pyharness import replay as again

    folder = record.find_run(settings["out"], run)
    _, _, before = record.read_run(folder)  # an unfinished run has nothing to compare with
    again.check_plans(before)
    before = again.with_candidate(before, candidate)
    inputs = again.check_inputs(before)
    with ExitStack() as stack:
        libraries = again.open_libraries(stack, before, settings)
        with Terminal(results_to_stderr=json_path == "-") as terminal:
            outcome = app.run(
                before.suite, libraries, inputs, settings, runner or LocalRunner(),
                workers=before.workers, replay_of=before.run,
                listener=app.Listener(terminal.job, terminal.arm),
            )  # fmt: skip
        changed = again.changes(before.arms, outcome.record.arms)
        code = again.exit_code(before.arms, outcome.record.arms)
        terminal.say(
            *(changed or [again.reproduced(outcome.record.arms)]),
            f"replay of {before.run}: {outcome.verdict.summary}; exit {int(code)}",
        )
        terminal.run_folder(outcome.folder)
    told = {"schema": "ab-replay/1", "run": outcome.folder.name, "replay_of": before.run}
    write(json_path, document.dumps({**told, "exit_code": int(code), "changes": changed}))
    return code


# ---- output --------------------------------------------------------------------------------------


def library_lines(whole: Mapping[str, Any]) -> list[str]:
    """Digest, size, origin, and under which name the operating system had it mapped."""
    lines = []
    for arm, lib in whole["libraries"].items():
        mapped = f"; mapped {lib['mapped']}" if lib.get("mapped") else ""
        size = text.size(lib["size_bytes"])
        lines.append(f"{arm}: {lib['digest']}, {size}, {lib['origin']}{mapped}")
    return lines


def tell(notes: tuple[str, ...]) -> None:
    """Notes on stderr, each once."""
    for note in dict.fromkeys(filter(None, notes)):
        print(f"note: {printable(note)}", file=sys.stderr)


def write(path: str | None, data: bytes) -> None:
    """To a file, or to stdout for ``-``."""
    if path == "-":
        sys.stdout.write(data.decode())
    elif path:
        write_atomically(Path(path), data)
