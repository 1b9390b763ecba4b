"""Host and bit-for-bit A/B harness for prebuilt inference libraries; the command is ``run-ab``."""

__version__ = "0.1.0"
