"""Exit codes, and one exception class for each; ``cli`` turns them into one line on stderr."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    SAME = 0  # everything that was asked for was compared and is equal
    DIFFERS = 1  # at least one byte differs
    USAGE = 2  # wrong options or bad input files
    REFUSED = 3  # the gate: a digest, the archive or its pin does not match
    # a library could not run: load, crash, signal, time-out, out of memory, its own error
    FAILED = 4
    UNPROVED = 5  # nothing was proved: unsupported, nondeterministic, indistinct, nothing compared
    DEFECT = 70  # a defect of this harness
    HUNG_UP = 129  # SIGHUP: the terminal went away
    INTERRUPTED = 130  # Ctrl-C
    TERMINATED = 143  # SIGTERM


class HarnessError(Exception):
    """An error with an exit code. The message is one line: what is wrong and what to do."""

    exit_code = Exit.DEFECT


class UsageError(HarnessError):
    exit_code = Exit.USAGE


class InputError(HarnessError):
    """A file the user gave is missing, malformed or does not fit the model."""

    exit_code = Exit.USAGE


class GateRefusal(HarnessError):
    """Something does not have the digest it must have. Nothing was loaded or dumped."""

    exit_code = Exit.REFUSED


class LibraryFailure(HarnessError):
    """A library could not be loaded or run."""

    exit_code = Exit.FAILED


class NothingProved(HarnessError):
    exit_code = Exit.UNPROVED
