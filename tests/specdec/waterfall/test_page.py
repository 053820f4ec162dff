"""The structure of the page; test_page_in_browser.py opens it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from specdec.waterfall import page as page_module
from specdec.waterfall.page import page
from specdec.waterfall.parts import PARTS
from tests.specdec.waterfall.made import REQUEST, ROUNDS

_VOID = {"meta", "link", "rect", "br"}


class Read(HTMLParser):
    """Elements with their attributes, and the text of each kind of element; every element must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        # A rect of SVG has a title inside, or ends itself.
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.text.setdefault(self._open[-1], []).append(data)

    def of_class(self, name: str) -> list[tuple[str, dict[str, str | None]]]:
        return [each for each in self.elements if name in (each[1].get("class") or "").split()]


def test_each_round_has_its_parts_to_scale() -> None:
    html = page(REQUEST)
    rows = re.findall(r'<li class="round".*?</li>', html, re.DOTALL)
    assert len(rows) == len(ROUNDS)
    for row, each in zip(rows, ROUNDS, strict=True):
        rects = [attributes for tag, attributes in Read(row).elements if tag == "rect"]
        drawn = {rect["class"]: float(str(rect["width"]).rstrip("%")) for rect in rects}
        left = 0.0
        for part in PARTS:
            seconds = each.durations.parts.get(part.name)
            if seconds is None:
                continue
            expected = min(100.0, left + 100 * seconds / REQUEST.scale_seconds) - left
            assert drawn.get(part.name, 0.0) == pytest.approx(expected, abs=0.01)
            left += expected
    assert 'class="bar cut"' in rows[-1]
    assert 'class="bar cut"' not in rows[1]


def test_it_is_said_in_words_too() -> None:
    read = Read(page(REQUEST))
    labels = [attributes["aria-label"] for _, attributes in read.of_class("round")]
    assert labels[1] == (
        "Round 1, 20.0 ms, 4 of 4 draft tokens accepted, draft queue 2.0 ms, drafting 4.0 ms, network 2.0 ms, "
        "verification 10.0 ms, orchestrator 2.0 ms, K=4"
    )
    assert "no draft: unavailable, failover" in str(labels[3])
    table = next(attributes for tag, attributes in read.elements if tag == "table")
    assert table["class"] == "all"
    assert len([tag for tag, attributes in read.elements if tag == "th" and attributes.get("scope") == "row"]) == 4


def test_what_is_not_decoration_has_a_name() -> None:
    read = Read(page(REQUEST))
    for tag, attributes in read.elements:
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or (
                attributes.get("role") == "img" and attributes.get("aria-label")
            )
        if tag == "section" and "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in [each.get("id") for _, each in read.elements]
    assert read.text["title"][0].startswith("Rounds of request 0123456789ab")
    assert dict(read.elements[0][1])["lang"] == "en"


def test_nothing_is_fetched() -> None:
    html = page(REQUEST)
    read = Read(html)
    for tag, attributes in read.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert str(attributes.get("href", "data:")).startswith("data:")
    assert "url(" not in html
    assert "@import" not in html
    # The namespace of SVG is a name, and is fetched from nowhere.
    assert set(re.findall(r"https?://[^\"']+", html)) <= {"http://www.w3.org/2000/svg"}
    (policy,) = [each["content"] for _, each in read.elements if each.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'")


def test_what_others_wrote_is_escaped() -> None:
    evil = '"><script>alert(1)</script>'
    rounds = (replace(ROUNDS[1], fallback=evil, draft_source=evil, next_token_kind=evil, events=(evil,), error=evil),)
    html = page(replace(REQUEST, model=evil, request_id=evil, trace_id=evil, status=evil, rounds=rounds))
    assert "alert(1)" in html
    assert "<script>alert" not in html
    assert len([tag for tag, _ in Read(html).elements if tag == "script"]) == 1


def test_light_and_dark_have_a_colour_for_each_part() -> None:
    html = page(REQUEST)
    light, dark = html.split("@media (prefers-color-scheme: dark)")
    for part in PARTS:
        assert f"--{part.name}:" in light
        assert f"--{part.name}:" in dark.split("}")[0]
        assert f"rect.{part.name} " in html


def test_a_page_of_many_rounds_leaves_some_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_ROUNDS", 2)
    html = page(REQUEST)
    assert len(Read(html).of_class("round")) == 2
    assert "2 later rounds are left out" in html


def test_the_figures() -> None:
    text = " ".join(page(REQUEST).split())
    assert (
        '<dt>mean acceptance length</dt><dd><span class="value">2.67</span><span class="detail">bonus counted' in text
    )
    assert "6.0 ms of drafting and verification were hidden" in text


def test_rounds_that_overlap_are_not_drawn_in_one_line() -> None:
    assert 'id="time"' in page(REQUEST)
    assert 'id="time"' not in page(replace(REQUEST, rounds=(ROUNDS[0], *ROUNDS)))


def test_a_request_without_rounds_is_a_page() -> None:
    Read(page(replace(REQUEST, rounds=(), request_id="", model="", status="")))
