"""The tasks that a page is asked for: the fields of its form, which are the query of its address, too."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardq.core.model.durations import Bound, due_range
from shardq.core.model.ids import DEFAULT_TOPIC
from shardq.core.model.printable import printable
from shardq.dashboard.asking import Asker
from shardq.errors import InvalidOption

_LONGEST = 200
"""Characters of a field: no filter that is possible has more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The filter of a list; each field is "" where all match."""

    topic: str = ""
    state: str = ""
    due: str = ""
    """FROM..TO, as in ``shardq list --due``."""
    holder: str = ""

    @classmethod
    def of(cls, word: Callable[[str], str | None]) -> Asked:
        """From the query of an address, or from a form: the function that gives a field."""
        return cls(*(printable((word(name) or "").strip()[:_LONGEST]) for name in cls.__slots__))

    @property
    def fields(self) -> dict[str, str]:
        """The query of its address."""
        return {name: word for name in self.__slots__ if (word := getattr(self, name))}

    @property
    def is_all(self) -> bool:
        return not self.fields

    async def dated(self, ask: Asker) -> Asked:
        """The same with instants in place of lengths of time: these count from the servers' now, and a cursor is good
        for the same instants only.
        """
        if not self.due:
            return self
        begin, end = self._range()
        if isinstance(begin, float) or isinstance(end, float):
            now = (await ask(lambda engine: engine.forecast("hour"))).now
            begin, end = (_instant(bound, now) for bound in (begin, end))
        return Asked(self.topic, self.state, f"{_word(begin)}..{_word(end)}", self.holder)

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``engine.tasks``; it has to be ``dated``."""
        return {
            "topic": topic_of_word(self.topic),
            "state": self.state or None,
            "due": self._range() if self.due else None,
            "holder": self.holder or None,
        }

    def sentence(self, what: str = "tasks") -> str:
        """
        >>> Asked(topic="mail", due="..2030-01-01T00:00:00Z").sentence()
        'scheduled tasks of the topic mail, due ..2030-01-01T00:00:00Z'
        """
        state = self.state or ("scheduled" if self.due else "leased" if self.holder else "")
        text = f"{state} {what}" if state else f"all {what}"
        if self.topic:
            text += f" of the topic {self.topic}"
        if self.due:
            text += f", due {self.due}"
        if self.holder:
            text += f", held by {self.holder}"
        return text

    def _range(self) -> tuple[Bound, Bound]:
        try:
            return due_range(self.due)
        except ValueError as exc:
            raise InvalidOption(f"due: {exc}") from None


def topic_of_word(word: str) -> str | None:
    """The topic; None for all."""
    return None if not word else "" if word == DEFAULT_TOPIC else word


def _instant(bound: Bound, now: dt.datetime) -> dt.datetime | None:
    if isinstance(bound, float):
        try:
            return now + dt.timedelta(seconds=bound)
        except OverflowError:
            raise InvalidOption("due: that is before the year 1 or after the year 9999") from None
    return bound


def _word(bound: Bound) -> str:
    if bound is None:
        return ""
    assert isinstance(bound, dt.datetime), "lengths of time have a now to count from"
    return bound.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
