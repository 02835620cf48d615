"""The keys of ``top``: read from the terminal by name, and what they change: the view, its order, a filter, a place."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[Z": "back tab",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b": "escape",
    **dict.fromkeys("\r\n", "enter"),
    **dict.fromkeys("\x7f\x08", "backspace"),
    "\t": "tab",
    " ": "space",
}
_TOKEN = re.compile(r"\x1b\[[0-?]*[@-~]?|\x1bO.|.", re.DOTALL)


class Keyboard:
    """The keys of a terminal, unechoed, while in its ``with`` block. Ctrl-C stays a signal."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor, termios.TCSANOW)
        return self

    def __exit__(self, *exc: object) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> list[str] | None:
        """The keys that were typed; None when the terminal has gone."""
        try:
            typed = os.read(self._descriptor, 1024)
        except OSError:
            return None
        if not typed:
            return None
        # the rest of a sequence may come in another read
        while _is_partial(typed) and select.select([self._descriptor], [], [], 0.02)[0]:
            more = os.read(self._descriptor, 1024)
            if not more:
                break
            typed += more
        return list(names(typed))


def names(typed: bytes) -> Iterator[str]:
    """The names of the keys that sent these bytes; a sequence that is not known gives nothing.

    >>> list(names(b"s\\x1b[A /\\x1b"))
    ['s', 'up', 'space', '/', 'escape']
    """
    for token in _TOKEN.findall(typed.decode(errors="ignore")):
        if token in _NAMES or token.isprintable():
            yield _NAMES.get(token, token)


def _is_partial(typed: bytes) -> bool:
    """True if the bytes end in the midst of a sequence."""
    _, escape, rest = typed.decode(errors="ignore").rpartition("\x1b")
    tail = escape + rest
    return bool(escape) and any(known != tail and known.startswith(tail) for known in _NAMES)


SCROLL = ("up", "down", "page up", "page down", "home", "end")


def _scrolled(top: int, key: str, page: int) -> int:
    """The first row after a key; whoever draws knows the last one."""
    steps = dict(zip(SCROLL, (-1, 1, -page, page, -top, 1 << 30), strict=True))
    return max(0, top + steps.get(key, 0))


VIEWS = ("shards", "nodes", "topics", "fleet", "dead", "future")

KEYS = (
    ("1-6, tab", "views: " + ", ".join(VIEWS)),
    ("s, S", "sort by the next column, turn the order round"),
    ("v", "the verdict whole, with the warnings"),
    ("/", "show only rows with a text; escape ends it"),
    ("up, down, page up, page down", "scroll"),
    ("p, space", "pause the screen: the engine goes on"),
    ("r", "look now"),
    ("?", "these keys"),
    ("q", "quit"),
)
"""Keys and what they do, for the help."""


@dataclass(slots=True)
class State:
    view: str = VIEWS[0]
    sorts: dict[str, int] = field(default_factory=dict)
    """View → the place of the column by which it is sorted; without one, in its own order."""
    turned: bool = False
    filter: str = ""
    typing: bool = False
    """True while the filter is typed."""
    top: int = 0
    """The first row that is shown."""
    paused: bool = False
    helping: bool = False
    reading: bool = False
    """True while the verdict is shown whole."""
    line: int = 0
    """Its first line that is shown."""
    ended: bool = False
    looks: int = 0
    """How often the user asked for a look."""

    def press(self, key: str, *, columns: int = 1, page: int = 10) -> None:
        """Changes by one key. ``columns`` and ``page``: those of the table as it is shown."""
        if self.typing:
            self._type(key)
        elif self.helping:
            self.helping = False
            self.ended = key == "q"
        elif self.reading:
            self.line = _scrolled(self.line, key, page)
            if key not in SCROLL:
                self.reading, self.line, self.ended = False, 0, key == "q"
        elif key.isdigit() and 1 <= int(key) <= len(VIEWS):
            self._go(int(key) - 1)
        elif key in ("tab", "right"):
            self._go(VIEWS.index(self.view) + 1)
        elif key in ("back tab", "left"):
            self._go(VIEWS.index(self.view) - 1)
        elif key == "s":
            self.sorts[self.view] = (self.sorts.get(self.view, -1) + 1) % columns
            self.top = 0
        elif key == "S":
            self.turned = not self.turned
        elif key == "/":
            self.typing, self.top = True, 0
        elif key == "escape":
            self.filter, self.top = "", 0
        elif key in ("p", "space"):
            self.paused = not self.paused
        elif key in ("q", "Q"):
            self.ended = True
        elif key == "?":
            self.helping = True
        elif key == "v":
            self.reading = True
        elif key == "r":
            self.looks += 1
        else:
            self.top = _scrolled(self.top, key, page)

    def _go(self, at: int) -> None:
        self.view, self.top = VIEWS[at % len(VIEWS)], 0

    def _type(self, key: str) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif key == "space":
            self.filter += " "
        elif len(key) == 1:
            self.filter += key
