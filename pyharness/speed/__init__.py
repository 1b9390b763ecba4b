"""``run-ab speed``: two warm sides timed in pairs, and what the pairs show."""
