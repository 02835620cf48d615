"""The keys of `shardq top`, from bytes to what they change. No terminal and no server."""

from __future__ import annotations

import pytest

from shardq.cli.top_keys import VIEWS, State, names


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA", ["up"]),
        (b"\x1b[5~\x1b[6~", ["page up", "page down"]),
        (b"\t\x1b[Z", ["tab", "back tab"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[200~x", ["x"]),  # a sequence that is not known types nothing
        (b"\r\n", ["enter", "enter"]),
        ("é€".encode(), ["é", "€"]),
        (b"\xff\xfe", []),
        (b"\x01\x02", []),
        (b" \x7f", ["space", "backspace"]),
    ],
)
def test_bytes_are_keys(typed: bytes, keys: list[str]) -> None:
    assert list(names(typed)) == keys


def pressed(*keys: str, columns: int = 3) -> State:
    state = State()
    for key in keys:
        state.press(key, columns=columns, page=5)
    return state


def test_views_are_reached_by_number_and_in_a_circle() -> None:
    assert pressed("3").view == VIEWS[2]
    assert pressed("tab").view == VIEWS[1]
    assert pressed("back tab").view == VIEWS[-1]
    assert pressed("9").view == VIEWS[0]
    assert pressed(*["tab"] * len(VIEWS)).view == VIEWS[0]


def test_each_view_keeps_its_order() -> None:
    state = pressed("s", "s", "2", "s", "1")
    assert state.sorts == {VIEWS[0]: 1, VIEWS[1]: 0}
    assert pressed("s", "s", "s", "s").sorts[VIEWS[0]] == 0
    assert pressed("S").turned


def test_a_filter_is_typed_until_enter() -> None:
    state = pressed("/", "q", "space", "x", "x", "backspace")
    assert (state.filter, state.typing, state.ended) == ("q x", True, False)
    state.press("enter")
    assert (state.filter, state.typing) == ("q x", False)
    state.press("escape")
    assert state.filter == ""
    assert pressed("/", "a", "escape").filter == ""


def test_scrolling_ends_at_the_first_row() -> None:
    assert pressed("down", "down", "up").top == 1
    assert pressed("up").top == 0
    assert pressed("page down", "down").top == 6
    assert pressed("page down", "home").top == 0
    assert pressed("down", "tab").top == 0


def test_the_verdict_is_scrolled_and_left_with_any_other_key() -> None:
    reading = pressed("down", "v")
    assert reading.reading
    for key, line in (("down", 1), ("page down", 6), ("up", 5), ("end", 5 + (1 << 30)), ("home", 0), ("down", 1)):
        reading.press(key, page=5)
        assert reading.line == line
    reading.press("2", page=5)
    assert (reading.reading, reading.line, reading.view, reading.top) == (False, 0, VIEWS[0], 1)
    assert pressed("v", "q").ended


def test_pause_help_and_the_end() -> None:
    assert pressed("p").paused
    assert not pressed("p", "space").paused
    assert pressed("r", "r").looks == 2
    helping = pressed("?")
    assert helping.helping
    helping.press("2")  # any key goes back, and does nothing else
    assert (helping.helping, helping.view) == (False, VIEWS[0])
    assert pressed("q").ended
    assert pressed("?", "q").ended
