"""A run as an in-toto Statement v1 with the predicate test-result v0.1: what outside tools read.

It is not signed here; whoever has a key wraps these bytes in a DSSE envelope.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyharness.errors import Exit
from pyharness.report.document import verdict_of
from pyharness.values import JobStatus

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"


def attestation(document: Mapping[str, Any]) -> dict[str, Any]:
    """Subjects: the candidate and every distinct file that it dumped. WARNED: the run passed, but a
    library lacks entries that some jobs need.
    """
    passed, warned, failed = _tests(document)
    result = "PASSED" if not warned else "WARNED"
    if document["exit_code"] != Exit.SAME:
        result = "FAILED"
    return {
        "_type": STATEMENT,
        "subject": list(_subjects(document)),
        "predicateType": PREDICATE,
        "predicate": {
            "result": result,
            "configuration": list(_configuration(document)),
            "passedTests": passed,
            "warnedTests": warned,
            "failedTests": failed,
        },
    }


def _tests(document: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    passed: list[str] = []
    warned: list[str] = []
    failed: list[str] = []
    for job in verdict_of(document).jobs:
        kind = passed if job.status is JobStatus.SAME else warned if job.skipped else failed
        kind.append(job.id)
    return passed, warned, failed


def _subjects(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Equal bytes are one subject, under the first name: that is how subjects are matched."""
    seen = set()
    if library := document["libraries"].get("candidate"):
        seen.add(library["digest"])
        yield _descriptor("candidate", library["digest"])
    for job in document["jobs"]:
        for file in job.get("dumps", {}).get("candidate", {}).get("files", ()):
            if file["sha256"] not in seen:
                seen.add(file["sha256"])
                yield _descriptor(f"{job['id']}/{file['name']}", file["sha256"])


def _configuration(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if library := document["libraries"].get("baseline"):
        yield _descriptor("baseline", library["digest"])
    for name, digest in document.get("files", {}).items():
        yield _descriptor(name, digest, "application/json")
    for fact in document.get("inputs", ()):
        yield _descriptor(fact["name"], fact["sha256"])


def _descriptor(name: str, digest: str, media_type: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
    return {**made, "mediaType": media_type} if media_type else made
