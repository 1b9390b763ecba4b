"""The command line, click only: options become values, ``commands`` does the work, one place turns
errors into exit codes.

Nothing heavy is imported before a command runs: ``--help`` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

import pyharness
from pyharness.cli_archive import archive
from pyharness.cli_runs import runs_group
from pyharness.endings import catch_signals, guard_output, ignore_signals, said_of_signal
from pyharness.errors import Exit, HarnessError
from pyharness.messages import check_text, one_line, refused_by_system
from pyharness.options import (
    ARCHIVE,
    AS_JSON,
    EXIT_CODES,
    JSON,
    LIBRARIES,
    LIBRARY,
    MODEL,
    PATH,
    PROFILE,
    RUN,
    RUNNING,
    SEED,
    SETTINGS,
    WORKERS,
    models_of,
    remove_earlier_results,
    settings_of,
    target,
)


@click.group(
    invoke_without_command=True,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--m1", is_flag=True, help="Single steps of both libraries.")
@click.option("--mt", metavar="M", help="M rows against M single steps: 4, 2-8 or 2,4.")
@click.option("--rb", metavar="M", help="Rollback after M rows, every case.")
@click.option("--libs", is_flag=True, help="M rows of the baseline against those of the candidate.")
@PROFILE
@click.option("--only", metavar="NAME", multiple=True, help="Jobs of that name; * is any text.")
@MODEL
@click.option(
    "--prefix", metavar="P[,P]", help="Tokens before the first recorded one.  [default: 63]"
)
@click.option(
    "--continuation", metavar="C|all", help="Single steps after the M rows.  [default: 4]"
)
@LIBRARIES
@SETTINGS
@SEED
@RUNNING
@WORKERS
@JSON
@click.option("--junit", type=PATH, callback=target, is_eager=True, help="The result as JUnit XML.")
@click.option("--same-library", is_flag=True, help="Compare a library with itself all the same.")
@click.option(
    "--trace/--no-trace", default=True, help="Of a red job, find the first operation that differs."
)
@click.option("--debug", is_flag=True, help="A traceback for a defect of the harness.")
@click.version_option(pyharness.__version__, prog_name="run-ab")
@click.pass_context
def cli(context: click.Context, /, **given: Any) -> None:
    """Proves, bit for bit, that M rows equal M single steps, that a rollback gives the past back,
    and that a new library equals the archived one. Alone it runs the whole suite on three synthetic
    models.
    """
    context.obj = given
    if context.invoked_subcommand:
        strange = [
            p.opts[0] for p in context.command.params
            if context.get_parameter_source(p.name or "") is click.core.ParameterSource.COMMANDLINE
            and p.name != "debug"
        ]  # fmt: skip
        if strange:
            raise click.UsageError(f"{strange[0]} goes after {context.invoked_subcommand!r}")
        return
    from pyharness import commands

    names = (
        *("m1", "mt", "rb", "libs", "profile", "only", "prefix", "continuation", "junit"),
        *("same_library", "trace"),
    )
    made = commands.SuiteOptions(
        models_of(given), json=given["json_path"], **{name: given[name] for name in names}
    )
    context.exit(commands.suite(made, settings_of(given)))


@cli.command()
@click.option("--library", type=PATH, required=True)
@MODEL
@click.option("--out", "folder", type=PATH, required=True, help="Folder to make.")
@SEED
@RUNNING
def dump(library: Path, folder: Path, **given: Any) -> int:
    """One library's single steps on one input. Three files: h_out.npy, logits.npy,
    state.safetensors.
    """
    from pyharness import commands

    return commands.dump(library, models_of(given), folder, settings_of(given))


@cli.command()
@click.argument("baseline", type=PATH)
@click.argument("candidate", type=PATH)
@JSON
def compare(baseline: Path, candidate: Path, json_path: str | None) -> int:
    """memcmp of two dumps. Of a difference, the first element and how many there are."""
    from pyharness import commands

    return commands.compare_folders(baseline, candidate, json_path)


@cli.command()
@RUN
@click.option("--candidate", type=PATH, help="Where the candidate of the run is now.")
@SETTINGS
@JSON
def replay(run: str, candidate: Path | None, json_path: str | None, **given: Any) -> int:
    """Do a run again. Exits 0 when every arm ended as recorded, those that ended well with their
    recorded digests; 1 when one gave others.
    """
    from pyharness import commands

    return commands.replay(run, settings_of(given), json_path, candidate)


@cli.command()
@RUN
@click.option("--full", is_flag=True, help="Every job that differs in full, not the first four.")
@SETTINGS
@JSON
def show(run: str, full: bool, json_path: str | None, **given: Any) -> int:
    """The verdict of a run. By its folder, its name or 'last'; exits as the run did."""
    from pyharness import runs

    return runs.show(run, settings_of(given), json_path, full=full)


@cli.command()
@RUN
@click.option("--label", help="Label in the archive.  [default: the run's name]")
@click.option("--why", required=True, help="One line for the log.")
@click.option(
    "--library", type=PATH, help="The candidate's bytes, where the run was on another machine."
)
@SETTINGS
def accept(run: str, label: str | None, why: str, library: Path | None, **given: Any) -> int:
    """Make the candidate of a green run the baseline of its backend."""
    from pyharness import acceptance

    return acceptance.accept(run, settings_of(given), label, why, library)


@cli.command("speed")
@click.option("--mt", metavar="M", help="Time a step of M rows.  [default: a single step]")
@MODEL
@click.option("--prefix", metavar="P", help="Tokens before the first timed one.  [default: 63]")
@click.option("--pairs", type=int, default=20, show_default=True, help="Pairs of samples a round.")
@click.option(
    "--rounds", type=int, default=1, show_default=True,
    help="Rounds, each in fresh processes; with several, a round is what counts.",
)  # fmt: skip
@click.option(
    "--margin", default="1%", show_default=True, help="Smallest change that matters, in per cent."
)
@click.option("--cold", is_flag=True, help="Evict the caches before each timed call.")
@click.option("--strict", is_flag=True, help="Exit 5 when the result is INCONCLUSIVE.")
@click.option("--fail-if-slower", is_flag=True, help="Exit 1 when the candidate is SLOWER.")
@LIBRARIES
@SETTINGS
@SEED
@RUNNING
@WORKERS
@JSON
def speed_command(**given: Any) -> int:
    """Is the candidate faster? Pairs of times in an order drawn by --seed, the baseline against its
    own copy first, and no number unless the bits are the same. FASTER, SLOWER, SAME and
    INCONCLUSIVE all exit 0 unless an option says otherwise.
    """
    from pyharness.speed import command

    names = ("mt", "prefix", "pairs", "rounds", "margin", "cold", "strict", "fail_if_slower")
    made = command.SpeedOptions(
        models_of(given), json=given["json_path"], **{name: given[name] for name in names}
    )
    return command.speed_test(made, settings_of(given))


@cli.command()
@LIBRARIES
@ARCHIVE
def gate(**given: Any) -> int:
    """Check without running. The archive against its pin, every blob, both libraries."""
    from pyharness import archive_commands

    return archive_commands.check_gate(settings_of(given))


cli.add_command(runs_group)
cli.add_command(archive)


@cli.command()
@LIBRARY
@AS_JSON
def symbols(library: Path, as_json: bool) -> int:
    """What a library exports, without loading it."""
    from pyharness import archive_commands

    return archive_commands.symbols(library, as_json)


@cli.command()
@click.argument("folder", type=PATH)
@click.argument("out", type=PATH)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def pack(folder: Path, out: Path, force: bool) -> int:
    """Quantize a checkpoint once."""
    from pyharness import archive_commands

    return archive_commands.pack(folder, out, force=force)


@cli.command()
@AS_JSON
@LIBRARIES
@SETTINGS
def doctor(as_json: bool, **given: Any) -> int:
    """What is installed, what can run here and why not. Exits 0 when a run can work."""
    from pyharness import doctor as module

    return module.doctor(settings_of(given), as_json=as_json)


@cli.group("config")
def config_group() -> None:
    """Settings: defaults < [tool.vllm-ab] of pyproject.toml < VLLM_AB_* < options."""


@config_group.command("show")
def config_show() -> int:
    """Each setting with its source."""
    from pyharness import archive_commands

    return archive_commands.show_config(settings_of({}))


# ---- exit codes ----------------------------------------------------------------------------------


def run(arguments: list[str]) -> int:
    """The exit code of a command line; whatever went wrong is one line on stderr."""
    try:
        remove_earlier_results(cli, arguments)
        check_text(arguments)
        code = cli.main(arguments, prog_name="run-ab", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except click.exceptions.NoArgsIsHelpError as e:  # a group without a command: its help
        e.show()
        return Exit.USAGE
    except click.ClickException as e:
        return _say(_said_by_click(e), Exit.USAGE)
    except (KeyboardInterrupt, click.Abort) as e:  # click makes the one from the other
        return _say(*said_of_signal(e.__cause__ or e))
    except HarnessError as e:
        known = e.exit_code is not Exit.DEFECT
        return _say(str(e), e.exit_code) if known else _defect(e, arguments)
    except OSError as e:
        return _say(refused_by_system(e), Exit.USAGE)
    except SystemExit as e:  # click's way with a broken pipe; stdout's own never gets here
        return _defect(e.__context__ or e, arguments)
    except Exception as e:
        return _defect(e, arguments)


def _said_by_click(error: click.ClickException) -> str:
    """What is wrong with an option, and where the right ones are listed."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "run-ab"
    return f"{error.format_message().rstrip('.')}; see {path} --help"


def _defect(error: BaseException, arguments: list[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exception(error)
    hint = "" if "--debug" in arguments else "; --debug shows where"
    return _say(f"defect of the harness: {type(error).__name__}: {error}{hint}", Exit.DEFECT)


def _say(message: str, code: Exit) -> Exit:
    print(f"run-ab: {(line := one_line(message))}", file=sys.stderr)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        importlib.import_module("pyharness.report.github").refused(line, code)
    return code


def main() -> NoReturn:
    """Of the console script."""
    catch_signals()
    lost = guard_output()
    code = run(sys.argv[1:])
    ignore_signals()
    if reason := lost():
        code = _say(f"{reason}; the command itself went on to its end", Exit.USAGE)
    # Not sys.exit: with PYTHONINSPECT the interpreter would go on, and end with 0.
    os._exit(code)
