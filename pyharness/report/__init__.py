"""A verdict for people (terminal, text, html), for programs (document, attestation) and for CI
servers (junit, github).
"""
