"""Where a captured message goes: the topic of shardq that it waits in, and the destination of that topic.

A message for a list of Redis is put on that list as it is. Each list has a topic of its own: a list on the engine's own
server is fed by one script, once; one elsewhere by ``redis://…#LIST``, at least once. Everything else, such as
RabbitMQ, is published by kombu in the process that forwards: ``kombu+amqp://…``, a topic for each exchange and routing
key. So one that nobody can publish to holds up no other, and messages of one id for two queues are two tasks.

A topic's name has the queue's, as far as it may, and a digest of the broker's address and the list's name, or those of
the exchange and the key. So two queues never share a topic, and neither do two brokers; a login is no part of it, and
may change.

Each topic of kombu costs a thread and a connection in every dispatcher, and routing keys can be any number. The first
``OWN_TOPICS`` of an engine have topics of their own; the others share one for each broker.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from kombu.transport import redis

from shardq.core.layout.topology import Route
from shardq.engine.options import Options
from shardq.errors import InvalidOption
from shardq.features.sinks.registry import KOMBU

PREFIX = "celery."
"""The names of all these topics begin with it."""

OWN_TOPICS = 100
"""The exchanges and keys with a topic of their own, about. Processes that add topics at once may exceed it by a few."""

_RETRY_OPTIONS = ("max_retries", "interval_start", "interval_step", "interval_max", "retry_errors", "errback")
"""The options that kombu adds to the transport's when it publishes."""

_NO_DELAY = re.compile(r"^(0\.)+")
"""The beginning of the keys of RabbitMQ's delayed delivery, where nothing is to be delayed."""

_LOCAL = re.compile(r"^(localhost|\[::1\])(?=:)")


class Place(NamedTuple):
    """A topic, and where it is to be forwarded."""

    topic: str
    to: str
    side: Literal["left", "right"]
    shared: str | None = None
    """The topic of all places of this broker for which there is no room any more."""

    def within(self, routes: Mapping[str, Route]) -> Place:
        """This place, or the shared one where there are topics enough."""
        if self.shared is None or self.topic in routes:
            return self
        published = sum(route.to.startswith(KOMBU) for route in routes.values())
        return self if published < OWN_TOPICS else self._replace(topic=self.shared)

    @property
    def is_shared(self) -> bool:
        return self.topic == self.shared


def place_of_list(key: str, channel: Any, connection: Any, options: Options) -> Place | None:
    """The place of a list of the broker; None where only kombu knows how to reach it. ``options``: the engine's."""
    if type(channel) is not redis.Channel or "://" in (connection.hostname or "") or connection.credential_provider:
        return None
    address = f"{connection.hostname or '127.0.0.1'}:{connection.port or connection.transport.default_port}"
    db = int(channel._prepare_virtual_host(connection.virtual_host))
    topic = _topic(key, "redis", _same(address), db)
    if _engine_place(options) == (_same(address), db):
        # "stream:" and "://" mean something else to forward
        return Place(topic, key, "left") if "://" not in key and not key.startswith("stream:") else None
    if connection.ssl:
        return None
    login = f"{quote(connection.userid or '', safe='')}:{quote(connection.password or '', safe='')}@"
    return Place(topic, f"redis://{login if login != ':@' else ''}{address}/{db}#{quote(key, safe='')}", "left")


def place_of_broker(connection: Any, exchange: str, key: str) -> Place:
    """The place of everything else that goes to this broker by an exchange and a routing key."""
    url = ";".join(connection.alt) or connection.as_uri(include_password=True)
    scheme = url.partition("://")[0]
    known = {name: value for name, value in connection.transport_options.items() if name not in _RETRY_OPTIONS}
    try:
        more = msgspec.json.encode(
            {"transport_options": known, "ssl": connection.ssl, "login": connection.login_method}
        )
    except (TypeError, ValueError) as exc:
        raise InvalidOption(
            f"the broker's options can't be stored for the process that publishes: {exc}; keep "
            "broker_transport_options and broker_use_ssl to text, numbers, lists and dicts"
        ) from exc
    mark = "&" if "?" in url else "?"
    broker = scheme, "kombu", connection.as_uri(include_password=False).rpartition("@")[2]
    label = _NO_DELAY.sub("", key) or exchange
    return Place(
        topic=_topic(label if exchange in ("", label) else f"{exchange}-{label}", *broker, exchange, key),
        to=f"{KOMBU}{url}{mark}shardq={urlsafe_b64encode(more).decode()}",
        side="right",
        shared=_topic(f"{scheme}-others", *broker),
    )


def _engine_place(options: Options) -> tuple[str, int] | None:
    """The server and the database of an engine on a single server."""
    if options.is_embedded:
        return None
    settings = options.settings(str(options.url))
    return (_same(settings.addresses[0]), settings.db) if settings.kind == "single" else None


def _same(address: str) -> str:
    return _LOCAL.sub("127.0.0.1", address)


def _topic(label: str, *identity: object) -> str:
    digest = hashlib.blake2b(msgspec.json.encode([label, *identity]), digest_size=6).hexdigest()
    return f"{PREFIX}{re.sub('[^A-Za-z0-9_.-]+', '-', label)[:40]}.{digest}"
