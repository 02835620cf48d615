"""Checks of the arguments of clocks and assertions. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping

from shardq.errors import InvalidOption, NaiveDatetime
from shardq.testing.virtual import EPOCH, US

MS_US = 1000

_END = "its time ends with the year 9999"


def step_of(delta: dt.timedelta | None, parts: Mapping[str, float]) -> dt.timedelta:
    """The time to move on by."""
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidOption(f"{name} can't be {value!r:.80}; give a finite number, such as {name}=1")
    given = {name: value for name, value in parts.items() if value}
    if delta is not None and given:
        raise InvalidOption(f"give a timedelta, or {', '.join(given)}, not both")
    if delta is None:
        try:
            delta = dt.timedelta(**given)
        except OverflowError:
            asked = ", ".join(f"{name}={value:g}" for name, value in given.items())
            raise InvalidOption(f"the clock can't move on by {asked}: {_END}") from None
    if not isinstance(delta, dt.timedelta):
        raise InvalidOption(f"{delta!r} is no length of time; give days=1, seconds=30 and the like, or a timedelta")
    if delta < dt.timedelta(0):
        raise InvalidOption(f"the clock can't go back by {-delta}; give a length of time from 0")
    return delta


def moved(now: dt.datetime, step: dt.timedelta) -> dt.datetime:
    try:
        return now + step
    except OverflowError:
        raise InvalidOption(f"the clock can't move on by {step}: {_END}") from None


def instant_us(when: dt.datetime) -> int:
    """An instant in µs since the epoch, rounded up to a whole ms, as due times are."""
    if not isinstance(when, dt.datetime):
        raise InvalidOption(f"{when!r} is no instant; give an aware datetime, such as clock.now() + timedelta(days=1)")
    if when.utcoffset() is None:
        raise NaiveDatetime(f"{when!r} has no time zone, so it names no instant; give an aware datetime")
    if when < EPOCH:
        raise InvalidOption(f"a clock can't show {when}: its time begins with 1970")
    return -((EPOCH - when) // US // MS_US) * MS_US
