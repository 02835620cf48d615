"""The genuine message: a producer's own ``publish`` runs up to its last step, and what it would have sent is kept.

Everything before that is Celery's and kombu's: routing, signals, serializer, compression, headers, declarations, and
the retries of kombu while the broker can't be reached.
"""

from __future__ import annotations

import copy
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

from kombu.transport import redis, virtual
from kombu.utils.json import dumps

from shardq.engine.options import Options
from shardq.integrations.celery.brokers import Place, place_of_broker, place_of_list


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
    where there is none at all.
    """
    channel, connection = producer.channel, producer.connection
    lists = _lists_of(channel, sent)
    if lists is not None:
        places = [place_of_list(key, channel, connection, options) for key in lists]
        known = [place for place in places if place is not None]
        if len(known) == len(places):
            if not known:
                return []
            message = _prepared(channel, sent)
            channel._inplace_augment_message(message, sent.exchange, sent.routing_key)
            data = dumps(message).encode()
            return [(place, data) for place in known]
    return [(place_of_broker(connection, sent.exchange, sent.routing_key), _envelope(channel, sent))]


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
    body = sent.body
    envelope = {
        "body": b64encode(body).decode() if isinstance(body, bytes) else body,
        "base64": isinstance(body, bytes),
        "priority": sent.priority,
        "content_type": sent.content_type,
        "content_encoding": sent.content_encoding,
        "headers": sent.headers,
        "properties": properties,
        "exchange": sent.exchange,
        "routing_key": sent.routing_key,
        # it counts from now, and not from the day on which another process publishes the message
        "expires_ms": None if expiration is None else time.time() * 1000 + float(expiration),
        "exchange_type": (
            channel.typeof(sent.exchange).type if sent.exchange and isinstance(channel, virtual.Channel) else None
        ),
    }
    return dumps(envelope).encode()
