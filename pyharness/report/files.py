"""The files beside verdict.json, each made from the document alone."""

from __future__ import annotations

from typing import Any

from pyharness.report.attestation import attestation
from pyharness.report.document import dumps
from pyharness.report.html import page
from pyharness.report.junit import junit_xml


def files(document: dict[str, Any]) -> dict[str, bytes]:
    """By name."""
    return {
        "junit.xml": junit_xml(document),
        "attestation.json": dumps(attestation(document)),
        "report.html": page(document).encode(),
    }
