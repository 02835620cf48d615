"""The keys of ``top``: read from the terminal by name, and what they change: the view, its order, a filter, a place."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[Z": "back tab",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
}
_SINGLE = {b"\r": "enter", b"\n": "enter", b"\t": "tab", b"\x7f": "backspace", b"\x08": "backspace", b" ": "space"}
_ESCAPE = b"\x1b"
_LONGEST = max(map(len, _SEQUENCES))


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
    while typed:
        sequence = next((typed[:length] for length in range(_LONGEST, 1, -1) if typed[:length] in _SEQUENCES), None)
        if sequence is not None:
            yield _SEQUENCES[sequence]
            typed = typed[len(sequence) :]
        elif typed[:2] == b"\x1b[":
            end = next((at for at in range(2, len(typed)) if 0x40 <= typed[at] <= 0x7E), len(typed) - 1)
            typed = typed[end + 1 :]
        elif typed[:1] == _ESCAPE:
            yield "escape"
            typed = typed[1:]
        elif typed[:1] in _SINGLE:
            yield _SINGLE[typed[:1]]
            typed = typed[1:]
        else:
            length = _length(typed[0])
            text = typed[:length].decode(errors="ignore")
            if text.isprintable():
                yield from text
            typed = typed[length:]


def _is_partial(typed: bytes) -> bool:
    tail = typed[-_LONGEST:]
    at = tail.rfind(_ESCAPE)
    return at >= 0 and any(known != tail[at:] and known.startswith(tail[at:]) for known in _SEQUENCES)


def _length(first: int) -> int:
    """The bytes of the UTF-8 character that begins so."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


VIEWS = ("shards", "nodes", "topics", "fleet", "dead", "future")

KEYS = (
    ("1-6, tab", "views: " + ", ".join(VIEWS)),
    ("s, S", "sort by the next column, turn the order round"),
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
        elif key == "r":
            self.looks += 1
        else:
            step = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -self.top, "end": 1 << 30}
            self.top = max(0, self.top + step.get(key, 0))

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
