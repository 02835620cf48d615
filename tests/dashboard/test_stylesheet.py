"""The colours of the stylesheet can be read: contrast by WCAG 2, in the light and the dark set."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from shardq.dashboard.web import HERE

TEXT = (HERE / "static/style.css").read_text()

READ, SEEN = 4.5, 3.0
"""The least contrast (AA) of text, and of what is to be told apart otherwise: bars, lines, borders of fields."""

PAIRS = [
    *((color, page, READ) for color in ("text", "muted", "accent") for page in ("page", "raised")),
    *((color, page, READ) for color in ("ok", "bad", "warn") for page in ("page", "raised")),
    *((color, f"{color}-page", READ) for color in ("ok", "bad", "warn")),
    *(("text", page, READ) for page in ("ok-page", "bad-page", "warn-page")),
    ("on-accent", "accent", READ),
    ("muted", "line", 3.0),
    *((color, "page", SEEN) for color in ("bar", "heat-4", "heat-5", "muted")),
    ("bar", "raised", SEEN),
]


def colors(which: str) -> dict[str, str]:
    light, dark = re.findall(r":root \{(.*?)\}", TEXT, re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    return found | (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark)) if which == "dark" else {})


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("which", ["light", "dark"])
def test_colours_can_be_read(which: str) -> None:
    found = colors(which)
    poor = {
        (color, page): round(contrast(found[color], found[page]), 2)
        for color, page, least in PAIRS
        if contrast(found[color], found[page]) < least
    }
    assert poor == {}


def test_neighbouring_levels_of_the_heat_map_differ() -> None:
    for which in ("light", "dark"):
        found = colors(which)
        levels = [found[f"heat-{level}"] for level in range(6)]
        # also for those who see no hues: darker from level to level, or brighter in the dark
        shades = [luminance(level) for level in levels]
        assert shades == sorted(shades, reverse=which == "light")
        assert all(contrast(one, other) > 1.15 for one, other in pairwise(levels))


def test_both_sets_have_every_colour_that_is_used() -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", TEXT)) - {"gap"}
    assert used <= set(colors("light"))
    light, dark = (set(re.findall(r"--([\w-]+): #", part)) for part in re.findall(r":root \{(.*?)\}", TEXT, re.DOTALL))
    assert light == dark
    assert set(re.findall(r"#[0-9a-f]{3,8}\b", TEXT)) <= {*colors("light").values(), *colors("dark").values()}


def test_nothing_is_loaded_from_elsewhere() -> None:
    for name in ("style.css", "live.js", "marks.js", "icon.svg"):
        text = (HERE / "static" / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
        assert "@import" not in text
        assert "url(" not in text
