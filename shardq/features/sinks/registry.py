"""Finds the sink of a URL by its scheme: those that come with shardq, and those of entry points ``shardq.sinks``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import quote

from shardq.core.layout.topology import Route
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.base import Sink

GROUP = "shardq.sinks"

_REDIS = "shardq.features.sinks.redis:RedisSink"
_DRAMATIQ = "shardq.features.sinks.dramatiq:DramatiqSink"
_SIDEKIQ = "shardq.features.sinks.sidekiq:SidekiqSink"
_RQ = "shardq.features.sinks.rq:RqSink"
KOMBU = "kombu+"
"""The schemes of all transports of kombu begin with it: ``kombu+amqp``."""
BUILTIN = {
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "redis+sentinel": _REDIS,
    "http": "shardq.features.sinks.http:HttpSink",
    "https": "shardq.features.sinks.http:HttpSink",
    "amqp": "shardq.features.sinks.amqp:AmqpSink",
    "amqps": "shardq.features.sinks.amqp:AmqpSink",
    "dramatiq+redis": _DRAMATIQ,
    "dramatiq+rediss": _DRAMATIQ,
    "dramatiq+unix": _DRAMATIQ,
    "dramatiq+redis+sentinel": _DRAMATIQ,
    "rq+redis": _RQ,
    "rq+rediss": _RQ,
    "rq+unix": _RQ,
    "rq+redis+sentinel": _RQ,
    "sidekiq+redis": _SIDEKIQ,
    "sidekiq+rediss": _SIDEKIQ,
    "sidekiq+unix": _SIDEKIQ,
    "sidekiq+redis+sentinel": _SIDEKIQ,
    "nats": "shardq.features.sinks.nats:NatsSink",
    "nats+tls": "shardq.features.sinks.nats:NatsSink",
    KOMBU: "shardq.features.sinks.kombu:KombuSink",
}
"""Scheme → the sink."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check(route: Route) -> None:
    """Checks a URL before anything is stored. Raises InvalidUrl, or MissingPackage.

    Variables of the environment are those of the process that forwards, and are not read here.
    """
    _make(_REFERENCE.sub("1", route.to), route)


def sink_of(route: Route) -> Sink:
    """The sink of a route to a URL, in which each ``${NAME}`` stands for a variable of the environment."""

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        if name not in os.environ:
            raise InvalidUrl(
                f"{route.shown} needs the variable {name} in the environment of this process: it is not set"
            )
        return quote(os.environ[name], safe="")

    return _make(_REFERENCE.sub(value, route.to), route)


def _make(url: str, route: Route) -> Sink:
    scheme = url.partition("://")[0]
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,31}", scheme):
        raise InvalidUrl(f"this URL is not understood; {_allowed()}")
    factory = _factory(scheme)
    if factory is None:
        raise InvalidUrl(f"nothing forwards to {scheme}:// URLs; {_allowed()}")
    sink = factory(url)
    if not isinstance(sink, Sink):
        raise InvalidOption(
            f"the entry point {scheme!r} of {GROUP} makes no shardq.features.sinks.Sink: it made {type(sink)}"
        )
    if route.side == "left":
        sink.put_left()
    if route.maxlen is not None:
        sink.trim(route.maxlen)
    return sink


def _factory(scheme: str) -> Callable[[str], Any] | None:
    if scheme.startswith(KOMBU):
        scheme = KOMBU
    if scheme in BUILTIN:
        module, _, name = BUILTIN[scheme].partition(":")
        return getattr(import_module(module), name)  # type: ignore[no-any-return]  # a class of that module
    found = _installed().get(scheme)
    return None if found is None else found.load()


def _installed() -> dict[str, Any]:
    from importlib.metadata import entry_points  # here: few programs need it

    return {point.name: point for point in entry_points(group=GROUP)}


def _allowed() -> str:
    schemes = ", ".join(f"{scheme}://" for scheme in sorted({*BUILTIN, *_installed()}))
    return f"allowed are {schemes}, the name of a list, and stream:NAME"
