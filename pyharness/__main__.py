"""``python -m pyharness``, and what the console script calls."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Python itself ends with 1 where a module cannot be imported; here 1 says that bits differ."""
    try:
        from pyharness.cli import main as run
    except Exception as e:
        print(f"run-ab: cannot start: {type(e).__name__}: {e}", file=sys.stderr)
        sys.exit(70)  # Exit.DEFECT, which may be what cannot be imported
    except KeyboardInterrupt:
        print("run-ab: interrupted", file=sys.stderr)
        sys.exit(130)  # Exit.INTERRUPTED
    run()


if __name__ == "__main__":
    main()
