"""The page in a real browser: it fits a narrow and a wide screen, follows the theme, asks for
nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyharness.plan import Request, Workload, build
from pyharness.report.document import document
from pyharness.report.html import page
from pyharness.tests.report.samples import HOSTILE, jobs, many, whole
from pyharness.tests.test_speed import throttled
from pyharness.values import JobStatus, ModelSpec
from pyharness.verdict import JobVerdict, conclude

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
THEMES = {"light": (), "dark": ("--blink-settings=preferredColorScheme=0",)}
WIDTHS = (400, 1200)


def default_suite() -> dict[str, Any]:
    """A green run of every job on its three models."""
    models = [ModelSpec("synthetic", family, "tiny") for family in ("hybrid", "gdn", "attn")]
    suite = build([Workload(model, 500) for model in models], Request())
    same = [JobVerdict(job.id, JobStatus.SAME, "", False) for job in suite.jobs]
    facts = {job.id: {"kind": job.kind, "m": job.m, "case": job.case} for job in suite.jobs}
    return document(conclude(same), "run-1", {}, (), jobs=facts)


PAGES = {
    "default": page(default_suite()),
    "red": page(whole(jobs(HOSTILE))),
    "green": page(whole(jobs()[:1])),
    "timed": page(whole(jobs()[:1]), throttled()),
    "many": page(whole(many(100, "a_long_word_without_a_space_" * 8))),
}
# A page for measuring the pages: each in a frame of each width, which a window cannot have below
# 500.
BENCH = """<!DOCTYPE html><html style="color-scheme: light dark"><body><pre id="told"></pre><script>
const pages = PAGES, told = {};
for (const [name, text] of Object.entries(pages)) for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  Object.assign(frame, {width, height: 900, srcdoc: text});
  frame.onload = () => {
    const page = frame.contentDocument, view = frame.contentWindow;
    const box = s => page.querySelector(s).getBoundingClientRect();
    const style = s => view.getComputedStyle(page.querySelector(s));
    for (const folded of page.querySelectorAll("details")) folded.open = true;
    const beyond = [...page.querySelectorAll("h1, h2, svg, dl, p, article, table.rows, .card")]
      .filter(e => !e.closest(".scroll, pre") && e.getBoundingClientRect().right > width + 0.5);
    const cut = [...page.querySelectorAll(".matrix .card")]
      .filter(e => e.scrollWidth > e.clientWidth);
    told[name + " " + width] = {
      width: view.innerWidth, scroll: page.documentElement.scrollWidth,
      ground: style("body").backgroundColor, text: style("body").color,
      heading: box("h1").height, letter: box(".cell").width,
      beyond: beyond.map(e => e.outerHTML.slice(0, 200)),
      cut: cut.length, asked: view.performance.getEntriesByType("resource").length,
    };
  };
  document.body.append(frame);
}
addEventListener("load", () => { document.getElementById("told").textContent =
  JSON.stringify(told); });
</script></body></html>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def browse(file: Path, *options: str) -> str:
    """What headless Chromium prints."""
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={file.with_suffix('')}", *options]
    done = subprocess.run(
        [*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@pytest.fixture(scope="module", params=list(THEMES))
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, dict[str, Any]]]:
    """The theme, and what each frame measured."""
    file = tmp_path_factory.mktemp("bench") / "bench.html"
    texts = json.dumps(PAGES).replace("<", "\\u003c")
    script = BENCH.replace("WIDTHS", json.dumps(WIDTHS)).replace("PAGES", texts)
    file.write_text(script, encoding="utf-8")
    told = browse(file, "--dump-dom", *THEMES[request.param])
    found = re.search(r'<pre id="told">(.*?)</pre>', told, re.S)
    assert found and found[1], told[-2000:]
    return request.param, json.loads(unescape(found[1]))


def test_every_page_fits_a_narrow_and_a_wide_screen(
    measured: tuple[str, dict[str, dict[str, Any]]],
) -> None:
    frames = measured[1]
    assert set(frames) == {f"{name} {width}" for name in PAGES for width in WIDTHS}
    for name, told in frames.items():
        width = int(name.split()[1])
        assert told["width"] == width and told["scroll"] <= width, name
        assert told["beyond"] == [], name
        assert told["cut"] == (1 if name.startswith("many") else 0), name  # that one scrolls
        assert told["heading"] > 20 and told["letter"] > 15 and told["asked"] == 0, name


def test_every_page_follows_the_theme(measured: tuple[str, dict[str, dict[str, Any]]]) -> None:
    theme, frames = measured
    for name, told in frames.items():
        ground, text = brightness(told["ground"]), brightness(told["text"])
        light = ground > 200 > 100 > text
        dark = ground < 60 < 200 < text
        assert (light, dark) == (theme == "light", theme == "dark"), name


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.mark.parametrize("name", ["red", "green"])
def test_a_picture_of_the_page_shows_the_colour_of_its_verdict(tmp_path: Path, name: str) -> None:
    file, shot = tmp_path / f"{name}.html", tmp_path / "shot.png"
    file.write_text(PAGES[name], encoding="utf-8")
    browse(file, "--window-size=400,900", f"--screenshot={shot}")
    shown = pixels(shot.read_bytes())
    assert shown.shape == (900, 400, 3)
    bad, good = (
        int((shown == colour).all(axis=2).sum()) > 500
        for colour in ((0x9B, 0x12, 0x20), (0x11, 0x60, 0x3B))
    )
    assert (bad, good) == (name == "red", name == "green")


def pixels(png: bytes) -> npt.NDArray[np.uint8]:
    """[height, width, 3] of an 8-bit RGB or RGBA picture."""
    chunks, at = [], 8
    while at < len(png):
        length = struct.unpack_from(">I", png, at)[0]
        chunks.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += 12 + length
    width, height, depth, kind = struct.unpack_from(">IIBB", dict(chunks)[b"IHDR"])
    assert depth == 8 and kind in (2, 6)
    size = 3 if kind == 2 else 4
    data = zlib.decompress(b"".join(c for name, c in chunks if name == b"IDAT"))
    lines = []
    above = bytearray(width * size)
    for start in range(0, len(data), width * size + 1):
        line = bytearray(data[start + 1 : start + 1 + width * size])
        unfilter(data[start], line, above, size)
        lines.append(line)
        above = line
    return np.array(lines, np.uint8).reshape(height, width, size)[:, :, :3]


def unfilter(kind: int, line: bytearray, above: bytearray, size: int) -> None:
    """One line, in place, from the filtered bytes of the PNG format."""
    for i in range(len(line)):
        left = line[i - size] if i >= size else 0
        up = above[i]
        corner = above[i - size] if i >= size else 0
        if kind == 4:
            distances = [abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)]
            add = (left, up, corner)[distances.index(min(distances))]
        else:
            add = (0, left, up, (left + up) // 2)[kind]
        line[i] = (line[i] + add) & 255
