"""Checks of the arguments of clocks and assertions. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from shardq.errors import InvalidOption, NaiveDatetime
from shardq.testing.virtual import EPOCH, US

MS_US = 1000


def step_of(delta: dt.timedelta | None, parts: Mapping[str, float]) -> dt.timedelta:
    """The time to move on by."""
    given = {name: value for name, value in parts.items() if value}
    if delta is not None and given:
        raise InvalidOption(f"give a timedelta, or {', '.join(given)}, not both")
    if delta is None:
        delta = dt.timedelta(**given)
    if not isinstance(delta, dt.timedelta):
        raise InvalidOption(f"{delta!r} is no length of time; give days=1, seconds=30 and the like, or a timedelta")
    if delta < dt.timedelta(0):
        raise InvalidOption(f"the clock can't go back by {-delta}; give a length of time from 0")
    return delta


def instant_us(when: dt.datetime) -> int:
    """An instant in µs since the epoch, rounded up to a whole ms, as due times are."""
    if not isinstance(when, dt.datetime):
        raise InvalidOption(f"{when!r} is no instant; give an aware datetime, such as clock.now() + timedelta(days=1)")
    if when.utcoffset() is None:
        raise NaiveDatetime(f"{when!r} has no time zone, so it names no instant; give an aware datetime")
    return -((EPOCH - when) // US // MS_US) * MS_US
