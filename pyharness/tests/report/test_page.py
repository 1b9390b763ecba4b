"""The page: one file that reads without a script, in both themes, whatever the document holds."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from pyharness.report.html import STYLE_FILE, page, verdict_sentence
from pyharness.report.svg import Line, heat_map, trend
from pyharness.tests.report.samples import HOSTILE, jobs, many, whole

VOID = {"meta", "br"}
ADDRESSES = {"src", "href", "action", "data", "poster", "srcset", "formaction", "background"}


class Page(HTMLParser):
    """Every element in order; fails on a tag that is not closed where it must be."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str) -> str:
        return "".join(text for inside, text in self.texts if inside == tag)


DOCUMENTS = {
    "every status": whole(),
    "hostile": whole(jobs(HOSTILE), HOSTILE),
    "100 red jobs": whole(many(100)),
    "green": whole(jobs()[:1]),
    "least": {k: v for k, v in whole([]).items() if k in (
        "schema", "run", "exit_code", "summary", "notes", "libraries", "jobs")},
}  # fmt: skip


@pytest.fixture(params=sorted(DOCUMENTS))
def told(request: pytest.FixtureRequest) -> dict[str, Any]:
    return DOCUMENTS[request.param]


def test_the_page_is_well_formed_and_its_links_lead_somewhere(told: dict[str, Any]) -> None:
    made = Page(page(told))
    names = [a["id"] for _, a in made.elements if "id" in a]
    assert len(names) == len(set(names))
    for link in made.all("a"):
        assert link["href"].startswith("#") and link["href"][1:] in names
    for _, attributes in made.elements:
        for name in attributes.get("aria-labelledby", "").split():
            assert name in names


def test_the_page_names_no_address_outside_of_it(told: dict[str, Any]) -> None:
    text = page(told)
    made = Page(text)
    for tag, attributes in made.elements:
        assert not [k for k in attributes if k.startswith("on")], tag
        for key in ADDRESSES & set(attributes):
            assert attributes[key].startswith("#"), (tag, key)
    assert {"link", "img", "iframe", "object", "embed", "base", "form"} & {
        tag for tag, _ in made.elements
    } == set()
    style = made.text("style")
    assert "url(" not in style and "@import" not in style
    if "evil" not in json.dumps(told):
        assert not re.search(r"https?:|//", re.sub(r"<script.*?</script>", "", text, flags=re.S))


def test_the_page_needs_no_script_and_carries_its_document(told: dict[str, Any]) -> None:
    made = Page(page(told))
    assert made.all("script") == [{"type": "application/json", "id": "verdict"}]
    assert json.loads(made.text("script")) == told


def test_hostile_text_stays_text() -> None:
    text = page(whole(jobs(HOSTILE), HOSTILE))
    outside = re.sub(r"<script type=.*?</script>", "", text, flags=re.S)
    assert "alert(1)" in outside and "<script>" not in text
    assert "\x1b" not in outside and "\u202e" not in outside


def test_every_picture_is_xml_with_a_title_and_a_description(told: dict[str, Any]) -> None:
    pictures = re.findall(r"<svg.*?</svg>", page(told), re.S)
    assert bool(pictures) is ("archive" in told)
    for picture in pictures:
        root = ET.fromstring(picture)
        assert root.attrib["role"] == "img"
        title, description = (root.find(tag) for tag in ("title", "desc"))
        assert title is not None and description is not None and title.text and description.text
        assert root.attrib["aria-labelledby"].split() == [
            title.attrib["id"], description.attrib["id"],
        ]  # fmt: skip


@pytest.mark.parametrize(("backend", "bars"), [("cpu", "v6 v7 this run"), ("cuda", "gpu this run")])
def test_libraries_of_another_device_are_no_step_of_a_trend(backend: str, bars: str) -> None:
    told = whole()
    gpu = {"label": "gpu", "backend": "cuda", "size_bytes": 99000, "gpu": "some GPU"}
    told["archive"].insert(1, {**told["archive"][0], **gpu, "digest": f"sha256:{'c' * 64}"})
    told["libraries"]["candidate"]["build_info"]["backend"] = backend
    text = page(told)
    (size,) = (x for x in re.findall(r"<svg.*?</svg>", text, re.S) if 'id="trend-size' in x)
    labels = re.findall(r">(v6|v7|gpu|this run)<", size)
    assert " ".join(labels) == bars
    assert ("accepted for, on some GPU." in text) is (backend == "cuda")
    assert "+900" in text and "+92" not in text and "-92" not in text  # v7 against v6, not gpu


def test_tables_have_headers_and_captions(told: dict[str, Any]) -> None:
    made = Page(page(told))
    assert all(a.get("scope") in ("col", "row") for a in made.all("th"))
    assert len(made.all("caption")) == len(made.all("table"))


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ([0], "Every bit that was compared is equal: 1 job."),
        ([0, 0], "Every bit that was compared is equal: all 2 jobs."),
        ([0, 3], "Every bit that was compared is equal: 1 of 2 jobs."),
        ([0, 1, 2], "Bits differ in 2 of 3 jobs."),
        ([0, 5], "A library could not run: 1 of 2 jobs failed."),
        ([0, 6, 7], "Not everything was proved: 1 of 3 jobs are the same."),
        ([6, 7], "Nothing was proved: 1 nondeterministic, 1 indistinct."),
        ([], "Nothing was proved: no job ran."),
    ],
)
def test_the_verdict_comes_first_in_one_sentence(chosen: list[int], sentence: str) -> None:
    every = jobs()
    told = whole([every[i] for i in chosen])
    made = Page(page(told))
    assert verdict_sentence(told) == sentence == made.text("h1")
    assert sentence in made.text("title")
    headings = [tag for tag, _ in made.elements if tag in ("h1", "h2", "h3")]
    assert headings[0] == "h1" and headings.count("h1") == 1


def test_the_matrix_has_a_letter_for_each_job() -> None:
    made = Page(page(whole()))
    cells = [a["title"] for tag, a in made.elements if tag in ("td", "a") and "title" in a]
    assert sorted(cells) == sorted(f"{job.id}: {job.status.value}" for job in jobs())
    text = page(whole())
    for status in ("same", "differs", "failed", "unsupported", "nondeterministic", "indistinct"):
        assert f'<span class="cell s-{status}">{status[0].upper()}</span>' in text


def test_the_page_tells_where_bits_differ() -> None:
    text = page(whole())
    assert "row 3, column 17" in text and "value head 1, key dimension 2, value dimension 3" in text
    assert "<code>0x3f80000<mark>1</mark></code>" in text
    assert "baseline F32 [2], candidate none" in text
    assert "run-ab replay run-1" in text and "bar: rows of 2 M-row steps" in text
    (rows,) = re.findall(r"<svg[^>]*job-gdn-tiny_p63_mt2-logitsnpy-t.*?</svg>", text, re.S)
    assert rows.count('class="mark"') == 5


def test_a_page_of_many_red_jobs_stays_small_and_names_all() -> None:
    text = page(whole(many(100)))
    assert len(text) < 400_000
    assert all(f'id="job-gdn-tiny_p63_mt{m}"' in text for m in range(2, 102))


# ---- pictures ------------------------------------------------------------------------------------


def test_a_heat_map_has_each_cell_that_differs_and_no_other() -> None:
    lines = [Line("0", [0, 1, 1, 5]), Line("1", []), Line("2", [1, 0, 0, 0])]
    root = ET.fromstring(heat_map("x", "t", "d", lines, []))
    paths = {p.attrib["class"]: p.attrib["d"].count("M") for p in root.iter("path")}
    assert paths == {"q1": 3, "q5": 1}
    assert len([r for r in root.iter("rect") if r.attrib["class"] == "q0"]) == len(lines)


def test_neighbours_of_a_fine_heat_map_are_one_path() -> None:
    root = ET.fromstring(heat_map("x", "t", "d", [Line("0", [0] + [2] * 62 + [0])], []))
    (path,) = root.iter("path")
    assert path.attrib["d"].count("M") == 1


def test_bars_are_as_long_as_their_values() -> None:
    root = ET.fromstring(trend("x", "t", "d", [("a", 1.0, "1"), ("b", 4.0, "4")], True))
    first, second = root.iter("rect")
    widths = [float(r.attrib["width"]) for r in (first, second)]
    assert widths[1] / widths[0] == pytest.approx(4, rel=0.01)
    assert [r.attrib["class"] for r in (first, second)] == ["bar", "bar new"]


# ---- colours -------------------------------------------------------------------------------------


def themes() -> list[dict[str, str]]:
    """The colours of each theme, by name; those of the dark one replace those of the light one."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE_FILE.read_text(), re.S)[:2]
    light, dark = (dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", b)) for b in blocks)
    assert set(light) == set(dark)
    return [light, dark]


def contrast(a: str, b: str) -> float:
    """Of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_text_can_be_read(theme: dict[str, str]) -> None:
    for text in ("text", "soft", "accent", "good", "bad", "odd"):
        for ground in ("bg", "panel"):
            assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
    for name in ("good", "bad", "odd", "skip"):
        assert contrast(theme[name], theme[f"{name}-bg"]) >= 4.5, name
    assert contrast(theme["text"], theme["mark"]) >= 4.5


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_classes_of_a_heat_map_are_told_apart(theme: dict[str, str]) -> None:
    shades = [theme[f"q{i}"] for i in range(6)]
    far = [contrast(shades[0], shade) for shade in shades[1:]]
    assert far == sorted(far) and far[0] >= 1.15
    assert all(contrast(a, b) >= 1.25 for a, b in itertools.pairwise(shades[1:]))
