"""Small pieces of HTML. Every text goes through ``esc``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from pyharness.values import JobStatus

LETTERS = {s.value: s.value[0].upper() for s in JobStatus}
# what a terminal or a page must not obey: control characters and those that turn text around
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: Any) -> str:
    return _CONTROL.sub("\ufffd", str(text))


def esc(text: Any) -> str:
    return escape(plain(text))


def anchor(identity: str) -> str:
    """A job's id as the name of a place in the page."""
    return "job-" + re.sub(r"[^A-Za-z0-9.-]", "_", identity)


def letter(status: str) -> str:
    return f'<span class="cell s-{esc(status)}">{LETTERS.get(status, "?")}</span>'


def section(title: str, *content: str) -> str:
    body = "".join(content)
    name = re.sub(r"[^a-z]+", "-", title.lower())
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{esc(title)}</h2>{body}</section>'


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, kind: str = ""
) -> str:
    """Cells are HTML; the first of a row is its header. On a narrow screen rows become cards."""
    heads = "".join(f'<th scope="col">{esc(h)}</th>' for h in head)
    body = []
    for first, *rest in rows:
        cells = "".join(
            f'<td data-label="{esc(h)}">{cell}</td>' for h, cell in zip(head[1:], rest, strict=True)
        )
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return (
        f'<table class="rows {kind}"><caption>{esc(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def pairs(facts: Iterable[tuple[str, str]]) -> str:
    """A list of names and values; the values are HTML."""
    told = (f"<div><dt>{esc(k)}</dt><dd>{v}</dd></div>" for k, v in facts if v)
    return f"<dl>{''.join(told)}</dl>"


def code(text: Any) -> str:
    return f"<code>{esc(text)}</code>"


def marked(ours: str, theirs: str) -> tuple[str, str]:
    """Two bit patterns with the hexadecimal digits that differ set off."""
    if len(ours) != len(theirs):
        return code(ours), code(theirs)

    def told(text: str) -> str:
        digits = (
            f"<mark>{esc(c)}</mark>" if ours[i] != theirs[i] else esc(c) for i, c in enumerate(text)
        )
        return f"<code>{''.join(digits)}</code>".replace("</mark><mark>", "")

    return told(ours), told(theirs)


def command(text: str) -> str:
    return f'<pre class="command" tabindex="0"><code>{esc(text)}</code></pre>'


def more(summary: str, content: str) -> str:
    return f"<details><summary>{esc(summary)}</summary>{content}</details>"


def figure(picture: str, caption: str, legend: str = "") -> str:
    return f"<figure><figcaption>{caption}</figcaption>{picture}{legend}</figure>"
