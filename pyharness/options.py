"""Options that commands share, and what the text of an option means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from pyharness.errors import InputError, UsageError
from pyharness.values import BACKENDS

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path, readable=False)  # what cannot be read is said when it is read
MOST_ROWS = 64  # of one M-row step: what VLLM_CUDA_Q35_MM accepts
EXIT_CODES = """\b
Exit codes
  0    same: everything that was compared is equal, bit for bit. Jobs of the default suite that
       a library does not support are listed by name and do not count
  1    at least one byte differs. Comes before 4: a difference is proved, and no second run
       takes it back
  2    wrong options or bad input files
  3    refused by the gate: a digest, the archive or its pin does not match; nothing was loaded
       or written
  4    a library could not run: load, crash, signal, time-out, out of memory, its own error
  5    nothing was proved: unsupported although asked for by name, or nothing but unsupported
       jobs; a library that differs from itself; a control that stayed green; an unfinished run
  70   a defect of this harness
  129  the terminal went away (SIGHUP)
  130  interrupted (Ctrl-C)
  143  terminated (SIGTERM)"""


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several decorators as one, in the order in which ``--help`` lists them."""

    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def target(context: click.Context, parameter: click.Parameter, path: Any) -> Any:
    """A file that a result goes to: whether it can is known before anything runs. Options with this
    are eager: no other one fails before that.
    """
    if path not in (None, "-"):
        from pyharness.files import require_writable

        require_writable(Path(path))
    return path


def remove_earlier_results(command: click.Command, arguments: Sequence[str]) -> None:
    """Removes what an earlier command left under the names that results are to go to, whatever
    becomes of this command line: click comes to no value of one with an unknown option.
    """
    failed: Exception | None = None
    for path in _targets(command, arguments):
        from pyharness.files import remove_result

        try:
            remove_result(Path(path))
        except (InputError, OSError) as e:  # the others go all the same
            failed = failed or e
    if failed:
        raise failed


def _targets(command: click.Command, arguments: Sequence[str]) -> Iterator[str]:
    """Every file that a result is to go to, read as click reads it: what follows an option that
    takes a value, as in ``--archive archive``, is neither a command nor an option.
    """
    words, strange = iter(arguments), False  # strange: an unknown option, which may take a value
    for word in words:
        if word == "--":
            return
        if not word.startswith("-"):
            if isinstance(command, click.Group) and not strange:
                command = command.commands.get(word, command)
            strange = False
            continue
        name, given, value = word.partition("=")
        known = (p for p in command.params if isinstance(p, click.Option))
        option = next((p for p in known if name in (*p.opts, *p.secondary_opts)), None)
        strange = option is None and not given
        if option is None or option.is_flag:
            continue
        path = value if given else next(words, "-")
        if option.callback is target and path != "-":
            yield path


ARCHIVE = options(
    click.option("--archive", type=PATH, help="Archive of baselines."),
    click.option("--pin", type=PATH, help="Checkpoint of its log, kept outside of it."),
)
SETTINGS = options(
    ARCHIVE,
    click.option("--out", type=PATH, help="Folder of runs.  [default: abruns]"),
)
BACKEND = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    help="What is not named is of this backend: the baseline is the newest archived one of it, "
    "the candidate build/BACKEND/libvllm_cuda.so.  [default: cpu]",
)
CANDIDATE = click.option(
    "--candidate",
    type=PATH,
    help="Library under test, of any backend.  [default: build/cpu/libvllm_cuda.so]",
)
LIBRARIES = options(
    BACKEND,
    click.option("--baseline", metavar="REF|PATH", help="Label or digest in the archive."),
    CANDIDATE,
)
SEED = click.option("--seed", type=int, help="Seed of the synthetic models.")
RUNNING = options(
    click.option("--threads", type=int, help="Threads of a CPU library; never changes a bit."),
    click.option("--timeout", type=float, metavar="S", help="Seconds for one arm.  [default: 600]"),
    click.option(
        "--isa", type=click.Choice(["portable", "avx2", "avx512"]), help="Path of a CPU library."
    ),
)
WORKERS = click.option(
    "--workers", type=int, metavar="N", help="Arms that run at the same time.  [default: 0, chosen]"
)
FAMILIES, SIZES = ["hybrid", "gdn", "attn"], ["tiny", "mid", "27b"]
MODEL = options(
    click.option(
        "--synthetic",
        multiple=True,
        type=click.Choice(FAMILIES),
        help="Synthetic model; may be repeated.",
    ),
    click.option(
        "--size",
        type=click.Choice(SIZES),
        default="tiny",
        show_default=True,
        help="Size of the synthetic models.",
    ),
    click.option(
        "--model",
        multiple=True,
        type=PATH,
        help="Folder of a checkpoint, or a pack; may be repeated.",
    ),
    click.option("--tokens", type=PATH, help="Token ids: .npy or .txt."),
    click.option("--text", type=PATH, help="Text through the checkpoint's tokenizer, or as bytes."),
)
JSON = click.option(
    "--json",
    "json_path",
    metavar="PATH|-",
    callback=target,
    is_eager=True,
    help="The result as JSON; - is stdout.",
)
PROFILE = click.option(
    "--profile",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="How many cases and prefixes.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")
RUN = click.argument("run", metavar="RUN")
LIBRARY = click.argument("library", type=PATH)


def parse_rows(text: str) -> tuple[int, ...]:
    """``4``, ``2-8`` or ``2,4,6-8`` -> the values of M, ascending, each once."""
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not match:
            raise UsageError(f"cannot read {text!r} as numbers of rows; write 4, 2-8 or 2,4,8")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UsageError(f"{part.strip()}: the range is empty; write the smaller number first")
        if first < 2 or last > MOST_ROWS:
            raise UsageError(f"{part.strip()}: an M-row step has 2 to {MOST_ROWS} rows")
        chosen.update(range(first, last + 1))
    return tuple(sorted(chosen))


def parse_prefixes(text: str) -> tuple[int, ...]:
    """``63`` or ``0,1,64`` -> lengths of the prefix, in the order given, each once."""
    parts = [p.strip() for p in text.split(",")]
    if not all(re.fullmatch(r"\d{1,7}", p) for p in parts):
        raise UsageError(f"cannot read {text!r} as lengths of a prefix; write 63 or 0,1,64")
    return tuple(dict.fromkeys(int(p) for p in parts))


def models_of(given: dict[str, Any]) -> Any:
    """The options of ``MODEL`` as a value."""
    from pyharness import commands

    return commands.ModelOptions(
        **{n: given[n] for n in ("synthetic", "size", "model", "tokens", "text")}
    )


def settings_of(given: dict[str, Any]) -> Any:
    """Settings with the options that were given on top. UsageError, InputError."""
    from pyharness import config

    return config.resolve({key: given[key] for key in config.KEYS if key in given})
