"""The state of the screen that the user changes by keys: the view, its order, a filter, a place. It knows neither the
terminal nor the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
