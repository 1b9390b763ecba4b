"""Planted faults: one change of the library each, which the real command must turn red.

``python -m pyharness.tests.faults [NAMES]`` builds and runs them; ``make faults`` all of them.
"""
