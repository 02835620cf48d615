"""Finds the sink of a URL by its scheme: those that come with shardq, and those of entry points ``shardq.sinks``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from shardq.core.layout.topology import Route
from shardq.core.model.ids import shown_topic
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.base import SinkBase
from shardq.features.sinks.egress import Egress, check_places, unfilled
from shardq.features.sinks.urls import UNKNOWN, addresses_in

log: logging.Logger = logging.getLogger("shardq.sinks")

GROUP = "shardq.sinks"

KOMBU = "kombu+"
"""The schemes of all transports of kombu begin with it: ``kombu+amqp``."""

_ON_REDIS = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
BUILTIN = {
    **dict.fromkeys((*_ON_REDIS, "redis+cluster", "rediss+cluster"), "redis:RedisSink"),
    **dict.fromkeys([f"dramatiq+{scheme}" for scheme in _ON_REDIS], "redis:DramatiqSink"),
    **dict.fromkeys([f"rq+{scheme}" for scheme in _ON_REDIS], "redis:RqSink"),
    **dict.fromkeys([f"sidekiq+{scheme}" for scheme in _ON_REDIS], "redis:SidekiqSink"),
    **dict.fromkeys(("http", "https"), "http:HttpSink"),
    **dict.fromkeys(("amqp", "amqps"), "amqp:AmqpSink"),
    **dict.fromkeys(("nats", "nats+tls"), "nats:NatsSink"),
    KOMBU: "kombu:KombuSink",
    "webhook": ".webhooks.sink:WebhookSink",
}
"""Scheme → the module, from this folder on, and the class of its sink."""


ANYWHERE = Egress()
"""The rules of a process that nobody has told anything."""


def check(route: Route, egress: Egress = ANYWHERE) -> Sequence[str]:
    """Checks a URL before anything is stored, and whether this process may send there. Raises InvalidUrl, or
    MissingPackage. Secrets are those of the process that forwards, and are not read here. Returns the servers of the
    URL: HOST:PORT, or the path of a socket.
    """
    check_places(route.to)
    addresses = _make(unfilled(route.to, UNKNOWN), route).addresses
    egress.check(_scheme(route.to), addresses)
    return addresses


def advise(topic: str, route: Route | None) -> None:
    """Logs what is to be said when a topic is forwarded there."""
    if route is not None and not route.is_here and (said := _make(unfilled(route.to, UNKNOWN), route).advice):
        log.warning("topic %s is forwarded to %s: %s", shown_topic(topic), route.named, said)


def sink_of(route: Route, egress: Egress, before: SinkBase | None = None) -> SinkBase:
    """The sink of a route to a URL, in which each ``${NAME}`` stands for a secret of this process. ``before``: the one
    that was made last, and is returned if no secret has changed since.
    """
    addresses = check(route, egress)
    url = egress.filled(route.to, _scheme(route.to), addresses)
    if before is not None and before.made_of == url:
        return before
    sink = _make(url, route)
    if list(sink.addresses) != list(addresses):  # a sink of a package that decodes the URL before it reads it
        raise InvalidUrl(f"a secret of {route.shown} would lead to another server; percent-encode it")
    sink.made_of, sink.is_named, sink.egress = url, egress.sinks is not None, egress
    return sink


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _make(url: str, route: Route) -> SinkBase:
    scheme = _scheme(url)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,31}", scheme):
        raise InvalidUrl(f"this URL is not understood; {_allowed()}")
    factory = _factory(scheme)
    if factory is None:
        raise InvalidUrl(f"nothing forwards to {scheme}:// URLs; {_allowed()}")
    sink = factory(url)
    if not isinstance(sink, SinkBase):
        raise InvalidOption(
            f"the entry point {scheme!r} of {GROUP} makes no Sink or AsyncSink of shardq.features.sinks: it made "
            f"{type(sink)}"
        )
    sink.addresses = sink.addresses or addresses_in(url)
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
        return getattr(import_module(f".{module}", __package__), name)  # type: ignore[no-any-return]  # a class of that module
    found = _installed().get(scheme)
    return None if found is None else found.load()


def _installed() -> dict[str, Any]:
    from importlib.metadata import entry_points  # here: few programs need it

    return {point.name: point for point in entry_points(group=GROUP)}


def _allowed() -> str:
    known = {*BUILTIN, *_installed()} - {KOMBU} | {f"{KOMBU}TRANSPORT"}
    schemes = ", ".join(f"{scheme}://" for scheme in sorted(known))
    return f"allowed are {schemes}, the name of a list, and stream:NAME"
