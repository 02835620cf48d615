"""The genuine message of a task: captured at a producer's last step, placed in a topic, and read again when the task is
cancelled. Everything before that step is Celery's and kombu's: routing, signals, serializer, compression, headers,
declarations, and the retries of kombu while the broker can't be reached.

A message for a list of Redis is put on that list as it is, and each list has a topic of its own. Everything else, such
as RabbitMQ, is published by kombu in the process that forwards: ``kombu+amqp://…``, a topic for each exchange and
routing key. So one that can't be published to holds up no other, and messages of one id for two queues are two tasks.
Each topic of kombu costs a thread and a connection in every dispatcher, and routing keys can be any number. The first
``OWN_TOPICS`` of an engine have topics of their own; the others share one for each broker.

A topic's name has the queue's, as far as it may, and a digest of the broker's address and the list's name, or those of
the exchange and the key. So two queues never share a topic, and neither do two brokers; a login is no part of it, and
may change.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import re
import time
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from celery import signals
from celery.app.task import Context
from kombu.compression import decompress
from kombu.serialization import loads as load_body
from kombu.serialization import prepare_accept_content
from kombu.transport import redis, virtual
from kombu.utils.json import dumps, loads

from shardq.core.layout.topology import Route
from shardq.engine.around import Options
from shardq.errors import InvalidOption
from shardq.features.sinks.registry import KOMBU

log: logging.Logger = logging.getLogger("shardq.integrations")

PREFIX = "celery."
"""The names of all these topics begin with it."""

OWN_TOPICS = 100
"""The exchanges and keys with a topic of their own, about. Processes that add topics at once may exceed it by a few."""

_RETRY_OPTIONS = ("max_retries", "interval_start", "interval_step", "interval_max", "retry_errors", "errback")
"""The options that kombu adds to the transport's when it publishes."""

_NO_DELAY = re.compile(r"^(0\.)+")
"""The beginning of the keys of RabbitMQ's delayed delivery, where nothing is to be delayed."""

_LOCAL = re.compile(r"^(localhost|\[::1\])(?=:)")


class Sent(NamedTuple):
    """The arguments of a producer's last step."""

    body: Any
    priority: Any
    content_type: Any
    content_encoding: Any
    headers: Any
    properties: Any
    routing_key: str
    mandatory: bool
    immediate: bool
    exchange: str
    declare: Any


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


def capturing(producer: Any, take: Callable[[Any, Sent], bool]) -> Any:
    """A copy of a producer. ``take(copy, sent)`` gets the first message instead of the broker; if it is false, the
    broker gets it after all. Events that follow the message are published as always.
    """
    capture = object.__new__(type(producer))  # copied by copy() it would have no channel
    vars(capture).update(vars(producer))

    def last_step(*arguments: Any, **options: Any) -> Any:
        sent = Sent(*arguments[: len(Sent._fields)])
        for entity in sent.declare or ():
            capture.maybe_declare(entity)
        taken = take(capture, sent)
        del capture._publish  # what follows is no task
        return None if taken else capture._publish(*arguments, **options)

    capture._publish = last_step
    return capture


def messages_of(producer: Any, sent: Sent, options: Options) -> list[tuple[Place, bytes]]:
    """The messages and their places: an entry for each list of Redis, or one for a broker. Nothing takes the message
    where there is none at all. ``options``: the engine's.
    """
    channel, connection = producer.channel, producer.connection
    lists = _lists_of(channel, sent)
    if lists is not None:
        places = [_place_of_list(key, channel, connection, options) for key in lists]
        known = [place for place in places if place is not None]
        if len(known) == len(places):
            if not known:
                return []
            message = _prepared(channel, sent)
            channel._inplace_augment_message(message, sent.exchange, sent.routing_key)
            data = dumps(message).encode()
            return [(place, data) for place in known]
    return [(_place_of_broker(connection, sent.exchange, sent.routing_key), _envelope(channel, sent))]


def _lists_of(channel: Any, sent: Sent) -> list[str] | None:
    """The lists on which the Redis transport would put the message; None if it does something else with it."""
    if not isinstance(channel, redis.Channel):
        return None
    queues = [sent.routing_key]
    if sent.exchange:
        if channel.typeof(sent.exchange).type == "fanout":
            return None
        queues = [queue for queue in channel._lookup(sent.exchange, sent.routing_key) if queue]
    if any(queue in channel._expires for queue in queues):
        return None  # each message renews the life of such a queue
    priority = channel._get_message_priority(_prepared(channel, sent), reverse=False)
    return [f"{channel.global_keyprefix}{channel._q_for_pri(queue, priority)}" for queue in queues]


def _prepared(channel: Any, sent: Sent) -> Any:
    properties = copy.deepcopy(sent.properties)
    return channel.prepare_message(
        sent.body, sent.priority, sent.content_type, sent.content_encoding, sent.headers, properties
    )


def _envelope(channel: Any, sent: Sent) -> bytes:
    """All that another process needs to publish the message; ``shardq.features.sinks.kombu`` reads it."""
    properties = dict(sent.properties)
    reply_to = properties.get("reply_to")
    properties["reply_to"] = getattr(reply_to, "name", reply_to)
    expiration = properties.pop("expiration", None)
    virtually = sent.exchange and isinstance(channel, virtual.Channel)
    envelope = {
        "body": b64encode(sent.body).decode() if isinstance(sent.body, bytes) else sent.body,
        "base64": isinstance(sent.body, bytes),
        "priority": sent.priority,
        "content_type": sent.content_type,
        "content_encoding": sent.content_encoding,
        "headers": sent.headers,
        "properties": properties,
        "exchange": sent.exchange,
        "routing_key": sent.routing_key,
        # it counts from now, and not from the day on which another process publishes the message
        "expires_ms": None if expiration is None else time.time() * 1000 + float(expiration),
        "exchange_type": channel.typeof(sent.exchange).type if virtually else None,
    }
    return dumps(envelope).encode()


# ---- places


def _place_of_list(key: str, channel: Any, connection: Any, options: Options) -> Place | None:
    """The place of a list of the broker; None where only kombu knows how to reach it."""
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


def _place_of_broker(connection: Any, exchange: str, key: str) -> Place:
    """The place of everything else that goes to this broker by an exchange and a routing key."""
    url = ";".join(connection.alt) or connection.as_uri(include_password=True)
    scheme = url.partition("://")[0]
    known = {name: value for name, value in connection.transport_options.items() if name not in _RETRY_OPTIONS}
    more = {"transport_options": known, "ssl": connection.ssl, "login": connection.login_method}
    try:
        encoded = urlsafe_b64encode(msgspec.json.encode(more)).decode()
    except (TypeError, ValueError) as exc:
        raise InvalidOption(
            f"the broker's options can't be stored for the process that publishes: {exc}; keep "
            "broker_transport_options and broker_use_ssl to text, numbers, lists and dicts"
        ) from exc
    broker = scheme, "kombu", connection.as_uri(include_password=False).rpartition("@")[2]
    label = _NO_DELAY.sub("", key) or exchange
    return Place(
        topic=_topic(label if exchange in ("", label) else f"{exchange}-{label}", *broker, exchange, key),
        to=f"{KOMBU}{url}{'&' if '?' in url else '?'}shardq={encoded}",
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


# ---- a message that was cancelled


def announce_revoked(app: Any, payload: bytes) -> None:
    """Does what a worker does when it discards a revoked message, as no worker will see this one: stores the state
    REVOKED, fails the chord, and sends the signal and the event. ``payload``: the message as it waited. What goes wrong
    is logged: the task is cancelled all the same.
    """
    with _logged("its result could not be set"):
        request = _request(app, loads(payload))
        app.backend.mark_as_revoked(request.id, "revoked", request=request, store_result=not request.ignore_result)
    with _logged("its event or signal could not be sent"):
        request = _request(app, loads(payload))
        task = app.tasks.get(request.task)  # None: another program has it
        how = {"terminated": False, "signum": None, "expired": False}
        signals.task_revoked.send(task, request=request, **how)
        # workers may send events or not, which is not known here: one that no monitor reads is dropped by the broker
        if task is None or task.send_events:
            with app.events.default_dispatcher() as events:
                events.send("task-revoked", uuid=request.id, **how)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # noqa: BLE001  backends, brokers and serializers raise what they like
        log.warning("a task was revoked, but %s: %s: %s", what, type(exc).__name__, exc)


def _request(app: Any, message: dict[str, Any]) -> Any:
    """The request as a worker makes it of the message, without the arguments."""
    headers, properties, body = message["headers"], message["properties"], message["body"]
    if message.get("base64") or properties.get("body_encoding") == "base64":
        body = b64decode(body)
    if method := headers.get("compression"):
        body = decompress(body, method)
    content_type = message.get("content-type") or message["content_type"]
    encoding = message.get("content-encoding") or message["content_encoding"]
    content = load_body(body, content_type, encoding, accept=prepare_accept_content(app.conf.accept_content))
    if isinstance(content, dict):  # the first protocol
        return Context({**content, "reply_to": properties.get("reply_to")})
    given = {name: properties.get(name) for name in ("reply_to", "correlation_id")}
    return Context({**headers, "ignore_result": bool(headers.get("ignore_result")), **given, **(content[2] or {})})
