"""The page as a browser makes it of the file: opt-in, `pytest -m browser`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest

from specdec.waterfall.page import page
from specdec.waterfall.parts import PARTS
from tests.specdec.waterfall.made import REQUEST, ROUNDS

pytestmark = pytest.mark.browser

_TIMEOUT_SECONDS = 90
# Runs behind the page's own script, and writes what there is to see into the page.
_PROBE = """
<script>
addEventListener("load", () => {
  const bars = [...document.querySelectorAll("li.round")].map((row) => {
    const bar = row.querySelector(".bar svg").getBoundingClientRect();
    return [...row.querySelectorAll("rect")].map((rect) => {
      const box = rect.getBoundingClientRect();
      return {part: rect.getAttribute("class"), share: box.width / bar.width, height: box.height,
              left: (box.left - bar.left) / bar.width,
              colour: getComputedStyle(rect).fill};
    });
  });
  const row = document.querySelectorAll("li.round")[1];
  row.dispatchEvent(new MouseEvent("mouseenter"));
  const tip = document.getElementById("tip");
  const body = getComputedStyle(document.body);
  const wide = document.documentElement.scrollWidth > innerWidth;
  const seen = {bars, tip: tip.hidden ? "" : tip.innerText, page: body.backgroundColor, ink: body.color, wide};
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
});
</script>
</body>
"""


def seen(directory: Path, scheme: Literal["light", "dark"], *, width: int = 1200) -> dict[str, Any]:
    """What the browser shows of the page."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium")
    path = directory / "page.html"
    path.write_text(page(REQUEST).replace("</body>", _PROBE))
    done = subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={directory / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
            f"--window-size={width},1200",
            "--virtual-time-budget=2000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    shown: dict[str, Any] = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return shown


def brightness(colour: str) -> float:
    """Of rgb(r, g, b), from 0 to 1."""
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return {
        "light": seen(tmp_path_factory.mktemp("light"), "light"),
        "dark": seen(tmp_path_factory.mktemp("dark"), "dark"),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_rounds_parts_are_there_to_scale(shown: dict[str, dict[str, Any]], scheme: str) -> None:
    bars = shown[scheme]["bars"]
    assert len(bars) == len(ROUNDS)
    for bar, each in zip(bars[:-1], ROUNDS[:-1], strict=True):
        assert [rect["part"] for rect in bar] == [part.name for part in PARTS if part.name in each.durations.parts]
        left = 0.0
        for rect in bar:
            assert rect["share"] == pytest.approx(each.durations.parts[rect["part"]] / REQUEST.scale_seconds, abs=0.005)
            # It begins where the one before ends.
            assert rect["left"] == pytest.approx(left, abs=0.005)
            assert rect["height"] > 10
            left += rect["share"]
    # The slow one is cut at the end of its bar.
    assert sum(rect["share"] for rect in bars[-1]) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_parts_differ_in_colour_from_each_other_and_the_page(shown: dict[str, dict[str, Any]], scheme: str) -> None:
    colours = {rect["part"]: rect["colour"] for bar in shown[scheme]["bars"] for rect in bar}
    assert len(set(colours.values())) == len(colours) == 6
    page_brightness = brightness(shown[scheme]["page"])
    assert all(abs(brightness(colour) - page_brightness) > 0.1 for colour in colours.values())


def test_light_and_dark(shown: dict[str, dict[str, Any]]) -> None:
    assert brightness(shown["light"]["page"]) > 0.9 > 0.2 > brightness(shown["light"]["ink"])
    assert brightness(shown["dark"]["page"]) < 0.1 < 0.8 < brightness(shown["dark"]["ink"])


def test_a_round_under_the_pointer_tells_its_values(shown: dict[str, dict[str, Any]]) -> None:
    tip = shown["light"]["tip"]
    for words in ("Round 1 · 20.0 ms", "drafting", "4.0 ms", "verification", "10.0 ms", "K=4"):
        assert words in tip


def test_a_narrow_window_need_not_be_scrolled_sideways(tmp_path: Path) -> None:
    assert not seen(tmp_path, "light", width=520)["wide"]
