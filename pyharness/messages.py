"""What may be said: text that a terminal shows as one line, and that a record can hold."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyharness.errors import UsageError

LONGEST = 2000  # characters


def one_line(message: str) -> str:
    """A message, which may quote any file, as one line of plain text."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ... ({len(line)} characters)"


def printable(text: str) -> str:
    """What a terminal would obey (control characters, those that turn text around) as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def check_text(arguments: Sequence[str]) -> None:
    """A record holds the command line, and its JSON is UTF-8."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{argument}: is not UTF-8; give the file another name") from None


def refused_by_system(error: OSError) -> str:
    """What this machine does not do: a name that is too long, a folder that may not be read."""
    named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return f"{named}{error.strerror or error}"
