"""JUnit XML in the shape that pytest writes (xunit2): CI servers show each job as a test."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from typing import Any

from pyharness.report.document import verdict_of
from pyharness.report.text import job_lines
from pyharness.values import JobStatus
from pyharness.verdict import JobVerdict

# what XML 1.0 cannot hold, not even escaped
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(document: Mapping[str, Any]) -> bytes:
    """failure: bits differ; error: could not run or proved nothing; skipped: unsupported and not
    asked for by name. A run that did not end with 0 has at least one failure or error.
    """
    verdict = verdict_of(document)
    jobs = verdict.jobs
    seconds = [job.get("seconds") for job in document["jobs"]]
    elements = [_element(job) for job in jobs]
    kinds = [element for element, _ in elements]
    # what no job says the run says: servers that go by the counts would show it as green
    unsaid = verdict.exit_code != 0 and not {"failure", "error"} & set(kinds)
    count = (kinds + ["error"] * unsaid).count
    suite = ET.Element(
        "testsuite",
        name="run-ab",
        tests=str(len(elements) + unsaid),
        failures=str(count("failure")),
        errors=str(count("error")),
        skipped=str(count("skipped")),
        time=f"{sum(s or 0 for s in seconds):.3f}",
        timestamp=str(document.get("started", "")),
    )
    held = ET.SubElement(suite, "properties")
    for name, value in _properties(document):
        ET.SubElement(held, "property", name=_legal(name), value=_legal(value))
    for job, took, (element, message) in zip(jobs, seconds, elements, strict=True):
        where, _, name = job.id.rpartition("/")
        case = ET.SubElement(
            suite, "testcase", classname=_legal(where.replace("/", ".")), name=_legal(name)
        )
        if took is not None:
            case.set("time", f"{took:.3f}")
        if element:
            child = ET.SubElement(case, element, message=_legal(message))
            child.text = _legal("\n".join(job_lines(job)))
    if unsaid:
        case = ET.SubElement(suite, "testcase", classname="run-ab", name="run")
        message = f"exit {verdict.exit_code}: {verdict.summary}"
        ET.SubElement(case, "error", message=_legal(message))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root, " ")
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "utf-8") + b"\n"


def _properties(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for arm, facts in document["libraries"].items():
        for key in ("digest", "size_bytes", "origin"):
            if key in facts:
                yield f"{arm}.{key}", str(facts[key])


def _element(job: JobVerdict) -> tuple[str, str]:
    message = f"{job.status.value}: {job.reason}" if job.reason else job.status.value
    if job.status is JobStatus.SAME:
        return "", ""
    if job.status is JobStatus.DIFFERS:
        return "failure", message
    return "skipped" if job.skipped else "error", message


def _legal(text: str) -> str:
    return _ILLEGAL.sub("?", text)
