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

KOMBU = "kombu+"
"""The schemes of all transports of kombu begin with it: ``kombu+amqp``."""

_ON_REDIS = ("redis", "rediss", "unix", "redis+sentinel")
BUILTIN = {
    **dict.fromkeys((*_ON_REDIS, "redis+cluster", "rediss+cluster"), "redis:RedisSink"),
    **dict.fromkeys([f"dramatiq+{scheme}" for scheme in _ON_REDIS], "redis:DramatiqSink"),
    **dict.fromkeys([f"rq+{scheme}" for scheme in _ON_REDIS], "redis:RqSink"),
    **dict.fromkeys([f"sidekiq+{scheme}" for scheme in _ON_REDIS], "redis:SidekiqSink"),
    **dict.fromkeys(("http", "https"), "http:HttpSink"),
    **dict.fromkeys(("amqp", "amqps"), "amqp:AmqpSink"),
    **dict.fromkeys(("nats", "nats+tls"), "nats:NatsSink"),
    KOMBU: "kombu:KombuSink",
}
"""Scheme → the module beside this one and the class of its sink."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check(route: Route) -> None:
    """Checks a URL before anything is stored. Raises InvalidUrl, or MissingPackage. Variables of the environment are
    those of the process that forwards, and are not read here.
    """
    _make(_REFERENCE.sub("1", route.to), route)


def sink_of(route: Route) -> Sink:
    """The sink of a route to a URL, in which each ``${NAME}`` stands for a variable of the environment."""

    def value(reference: re.Match[str]) -> str:
        if (name := reference[1]) in os.environ:
            return quote(os.environ[name], safe="")
        raise InvalidUrl(f"{route.shown} needs the variable {name} in the environment of this process: it is not set")

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
        return getattr(import_module(f"shardq.features.sinks.{module}"), name)  # type: ignore[no-any-return]  # a class of that module
    found = _installed().get(scheme)
    return None if found is None else found.load()


def _installed() -> dict[str, Any]:
    from importlib.metadata import entry_points  # here: few programs need it

    return {point.name: point for point in entry_points(group=GROUP)}


def _allowed() -> str:
    schemes = ", ".join(f"{scheme}://" for scheme in sorted({*BUILTIN, *_installed()}))
    return f"allowed are {schemes}, the name of a list, and stream:NAME"
