"""The checks of the arguments of an engine's commands, each before anything is sent."""

from __future__ import annotations

import datetime as dt
from types import EllipsisType

from shardq.core.layout import destinations
from shardq.core.layout.topology import Limit, Route
from shardq.core.model.checks import check_id, check_shards, check_topic, due_spec
from shardq.core.producer.packing import MAX_BATCH
from shardq.errors import InvalidDelay, InvalidId, InvalidOption, InvalidShardCount
from shardq.features.sinks import registry
from shardq.features.sinks.base import NO_MAXLEN
from shardq.features.sinks.functions import BatchFunction


def moved_due(delay: float | dt.timedelta | None, at: float | dt.datetime | None) -> int:
    """Returns the due word of a reschedule. A push without a time is due now; a reschedule without one is a mistake."""
    if delay is None and at is None:
        raise InvalidDelay("reschedule needs a time: give delay=seconds or at=instant; delay=0 makes it due now")
    return due_spec(delay, at)


def check_batch(batch: int) -> None:
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MAX_BATCH:
        raise InvalidOption(f"batch={batch!r} is not possible; give an int from 1 to {MAX_BATCH}")


def check_rate(rate: float | None) -> None:
    # Every process must be able to read what is stored: a bool is no number there.
    if isinstance(rate, bool) or (rate is not None and not (isinstance(rate, int | float) and 0 < rate <= 1e9)):
        raise InvalidOption(f"rate={rate!r} is not possible; give tasks a second, more than 0, or None for no limit")


def limit_of(topic: str, rate: float | EllipsisType | None, concurrency: int | EllipsisType | None) -> Limit:
    check_topic(topic)
    if rate is ... and concurrency is ...:
        raise InvalidOption("limit needs rate= or concurrency=; limit(topic, None) lifts the limits of the topic")
    rate, concurrency = None if rate is ... else rate, None if concurrency is ... else concurrency
    check_rate(rate)
    if isinstance(concurrency, bool) or (
        concurrency is not None and not (isinstance(concurrency, int) and 1 <= concurrency <= 1_000_000)
    ):
        raise InvalidOption(f"concurrency={concurrency!r} is not possible; give an int from 1, or None for no limit")
    return Limit(rate=rate, concurrency=concurrency)


def check_resize(shards: int | None, rate: float | None, *, dry_run: bool) -> None:
    if not isinstance(dry_run, bool):
        raise InvalidOption(f"dry_run={dry_run!r} is not possible; give True to change nothing")
    if shards is not None:
        check_shards(shards)
    elif not dry_run:
        raise InvalidShardCount(
            "resize needs the number of shards, from 1 to 1024; resize(dry_run=True) returns the change under way"
        )
    check_rate(rate)
    if dry_run and rate is not None:
        raise InvalidOption("rate= is for a change that moves tasks: leave it out with dry_run=True")


def checked_id(id: str) -> str:
    """Returns the id if it is a whole one, as push returned it: TOPIC/UNIQUE or UNIQUE."""
    if not isinstance(id, str):
        raise InvalidId(f"an id can't be {type(id).__name__}; give the str that push returned")
    topic, slash, unique = id.partition("/")
    if slash:
        check_topic(topic)
        if not topic:
            raise InvalidId(
                f"the id {id!r} begins with '/'; an id is TOPIC/UNIQUE, or just UNIQUE in the default topic"
            )
        check_id(unique)
    else:
        check_id(id)
    return id


MAX_LENGTH = 10**15


def route_of(
    topic: str, to: str | BatchFunction | None, side: str, maxlen: int | None = None, *, keep: bool = False
) -> Route | None:
    """Checks where a topic is to be forwarded. None: it no longer is."""
    check_topic(topic)
    if isinstance(maxlen, bool) or (maxlen is not None and not (isinstance(maxlen, int) and 1 <= maxlen <= MAX_LENGTH)):
        raise InvalidOption(f"maxlen={maxlen!r} is not possible; give an int from 1, or None to keep all entries")
    if side not in ("right", "left"):
        raise InvalidOption(f"side={side!r} is not possible; use 'right' (RPUSH) or 'left' (LPUSH)")
    if not isinstance(keep, bool):
        raise InvalidOption(f"keep={keep!r} is not possible; give True for a route that outlives its processes")
    if to is None:
        return None
    if callable(to):
        return _route_to_function(to, side, maxlen, keep=keep)
    if keep:
        raise InvalidOption("keep=True is for functions; a route to anything else stays until it is ended")
    if not isinstance(to, str) or not destinations.key_of(to):
        raise InvalidOption(
            f"to={to!r} is not possible; give the name of a list, stream:NAME, a URL, a function, or None to stop "
            "forwarding"
        )
    if destinations.key_of(to).startswith("shardq:{"):
        raise InvalidOption(f"to={to!r} is a key of shardq's own; give the name of another list")
    if side == "left" and destinations.is_stream(to):
        raise InvalidOption("side='left' is for lists; leave it out")
    if destinations.is_function(to):
        raise InvalidOption(f"to={to!r} is not possible; give the function itself: forward(topic, to=function)")
    route = Route(to=to, side="left" if side == "left" else "right", maxlen=maxlen)
    if maxlen is not None and route.is_here and not destinations.is_stream(to):
        raise InvalidOption(NO_MAXLEN)
    if not route.is_here:
        registry.check(route)
    return route


def _route_to_function(function: BatchFunction, side: str, maxlen: int | None, *, keep: bool) -> Route:
    if side == "left":
        raise InvalidOption("side='left' is for lists; leave it out")
    if maxlen is not None:
        raise InvalidOption(NO_MAXLEN)
    place = getattr(function, "__qualname__", type(function).__qualname__)
    return Route(to=f"{destinations.PYTHON}{getattr(function, '__module__', '')}.{place}", keep=keep)


def check_reason(reason: str | None) -> None:
    if reason is not None and not (isinstance(reason, str) and reason.strip()):
        raise InvalidOption(
            f"reason={reason!r:.80} is not possible; give the reason as pages group it, such as "
            "'TimeoutError: no answer in # s', or None for any"
        )
