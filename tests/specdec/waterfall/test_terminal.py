import io
from dataclasses import replace
from typing import Literal

import pytest
from rich.console import Console, RenderableType

from specdec.waterfall.parts import PARTS, Durations
from specdec.waterfall.round_view import RoundView
from specdec.waterfall.terminal import GLYPHS, Bar, requests_table, waterfall
from tests.specdec.waterfall.made import REQUEST


def drawn(shown: RenderableType, width: int, colours: Literal["truecolor"] | None = None) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=colours, force_terminal=colours is not None)
    console.print(shown)
    return file.getvalue().splitlines()


def bar(parts: dict[str, float], width: int, scale_seconds: float = 1.0) -> str:
    (line,) = drawn(Bar(RoundView(1, 0.0, sum(parts.values()), Durations(parts)), scale_seconds), width)
    return line


def test_a_bar_is_to_scale() -> None:
    parts = {"draft_queue": 0.1, "draft_compute": 0.2, "network": 0.1, "target_queue": 0.1, "target_compute": 0.3}
    assert bar({**parts, "waiting": 0.1}, 20) == "ddDDDD~~ttTTTTTT..  "


def test_many_small_parts_do_not_lengthen_a_bar() -> None:
    # Each of them is a little more than half a column.
    parts = {part.name: 0.051 for part in PARTS[:6]}
    assert len(bar(parts, 10).rstrip()) == 3


def test_a_bar_that_is_longer_than_the_scale_says_so() -> None:
    assert bar({"target_compute": 5.0}, 10) == "TTTTTTTTT›"
    assert bar({"target_compute": 1.0}, 10) == "TTTTTTTTTT"


def test_one_slow_round_does_not_hide_the_others() -> None:
    # The last one takes half a second, the others 10 and 20 ms.
    assert REQUEST.scale_seconds == pytest.approx(0.08)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_a_waterfall_keeps_to_its_width(width: int) -> None:
    lines = drawn(waterfall(REQUEST, width=width), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "tiny" in text
    rows = [line for line in lines if line.strip().startswith(("0 ", "1 ", "2 ", "3 "))]
    assert len(rows) == 4


def test_a_waterfall_says_what_happened() -> None:
    lines = drawn(waterfall(REQUEST, width=140), 140)
    text = " ".join(" ".join(lines).split())
    for words in (
        "request 0123456789abcdef0123456789abcdef · tiny · coupled · OK, length",
        "tokens 9 (prompt 11, 8 cached)",
        "TTFT 50.0 ms",
        "TPOT 66.0 ms",
        "rounds 3 (1 without drafts that were wanted)",
        "acceptance rate 62% (5 of 8 draft tokens)",
        "mean acceptance length 2.67 (bonus counted)",
        "6.0 ms of drafting and verification were hidden",
    ):
        assert words in text
    rows = [line.split() for line in lines if line.strip().startswith(("1 ", "2 ", "3 "))]
    assert rows[0][:5] == ["1", "50.0", "4/4", "bonus", "model"]
    assert rows[1][:5] == ["2", "70.0", "1/4", "recovered", "model"]
    assert rows[1][-1] == "candidate"
    assert " ".join(rows[2][-4:]) == "failover, no draft: unavailable"


def test_the_totals_are_the_legend() -> None:
    lines = [line.split() for line in drawn(waterfall(REQUEST, width=100), 100)]
    assert ["DD", "drafting", "4.0", "ms", "1%"] in lines
    assert ["TT", "verification", "78.0", "ms", "13%"] in lines
    assert ["~~", "network", "492.0", "ms", "85%"] in lines


def test_only_the_newest_rounds_fit() -> None:
    text = "\n".join(drawn(waterfall(REQUEST, width=100, last=1), 100))
    assert "failover" in text
    assert "candidate" not in text


def test_colours_where_there_are_some() -> None:
    text = "\n".join(drawn(waterfall(REQUEST, width=120), 120, "truecolor"))
    assert 4 * GLYPHS["target_compute"][0] in text
    assert "TT" not in text.replace("TTFT", "")


def test_brackets_are_no_markup() -> None:
    lines = drawn(waterfall(replace(REQUEST, model="[red]x[/red]"), width=120), 120)
    assert "[red]x[/red]" in lines[0]


@pytest.mark.parametrize("width", [80, 120])
def test_a_list_of_requests(width: int) -> None:
    unknown = replace(REQUEST, rounds=(), status="CANCELLED", ttft_seconds=None, num_generated_tokens=None)
    lines = drawn(requests_table([REQUEST, unknown], width=width), width)
    assert max(map(len, lines)) <= width
    first, second = (line.split() for line in lines if "0123456789ab" in line)
    assert "0af7651916cd" in first
    assert "62%" in first
    assert "CANCELLED" in second


def test_a_request_without_rounds_is_drawn() -> None:
    assert drawn(waterfall(replace(REQUEST, rounds=()), width=100), 100)
