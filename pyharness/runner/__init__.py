"""Runners start the worker process of one arm and say how it ended."""
