"""``python -m pyharness``."""

from pyharness.cli import main

if __name__ == "__main__":
    main()
