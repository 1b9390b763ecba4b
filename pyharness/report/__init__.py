"""A verdict for people (text), for programs (document) and for CI servers (junit)."""
