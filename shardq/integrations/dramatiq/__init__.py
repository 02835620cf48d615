"""Dramatiq: ``send_with_options(delay=…)`` and retries go through an engine. ``README.md`` tells how.

This stands in for ``Broker.enqueue`` with a delay, which actors, pipelines, groups and the middleware that retries
call. The message is stored in the engine as Dramatiq encodes it, without an ``eta``, and enqueued when it is due: by
``shardq.features.sinks.redis`` on Redis, and by the sink of AMQP on RabbitMQ. Each queue has a topic of its own.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any
from urllib.parse import quote

from shardq import Engine
from shardq.core.drivers.settings import bracketed
from shardq.core.model.task import Outcome
from shardq.errors import InvalidOption, MissingPackage, ShardqError
from shardq.features.sinks.redis import DRAMATIQ_HEADER
from shardq.integrations.delaying import RoutedDelaying, as_payload, task_id, url_of

try:
    import dramatiq
    from dramatiq.common import current_millis, dq_name, q_name
except ImportError as _exc:
    raise MissingPackage("shardq.integrations.dramatiq needs Dramatiq: pip install 'shardq[dramatiq]'") from _exc

__all__ = ["DramatiqDelaying", "delay_through"]

log: logging.Logger = logging.getLogger("shardq.integrations")


def delay_through(
    broker: dramatiq.Broker, engine: Engine, *, above: float = 60, topic: str = "dramatiq", to: str | None = None
) -> DramatiqDelaying:
    """Sends messages that this broker is to delay for more than ``above`` seconds through the engine; with 0 all that
    have a delay. Returns what ends it again.

    ``broker``: a RedisBroker or a RabbitmqBroker. Each queue has a topic: ``dramatiq.default``, or ``topic`` and its
    name. ``to``: the URL of the broker, as the processes that forward reach it, ``dramatiq+redis://HOST:PORT/DB`` or
    ``amqp://HOST/VHOST``; None: as the broker does. It is stored with the engine's settings: write ``${NAME}`` for a
    password, which the processes that forward have as $SHARDQ_SECRET_NAME. The route of a queue is stored with its
    first message. Called again with the same arguments it returns what is there.

    >>> delaying = delay_through(broker, engine, above=60)
    >>> message = remind.send_with_options(args=(42,), delay=3_600_000)
    >>> delaying
    <DramatiqDelaying of RedisBroker: above 60 s through '...', 1 so far>
    """
    present = getattr(getattr(broker, "enqueue", None), "__self__", None)
    if isinstance(present, DramatiqDelaying):
        return present.again(broker, engine, above, topic, to)
    return DramatiqDelaying(broker, engine, above=above, topic=topic, to=to)


class DramatiqDelaying(RoutedDelaying):
    """The delays of a broker that go through an engine."""

    def __init__(self, broker: dramatiq.Broker, engine: Engine, *, above: float, topic: str, to: str | None) -> None:
        super().__init__(broker, engine, above=above, topic=topic, to=to)
        self._redis = hasattr(broker, "namespace")
        if not self._redis and not hasattr(broker, "max_priority"):
            raise InvalidOption(f"delay_through takes a RedisBroker or a RabbitmqBroker, not {type(broker).__name__}")
        self._to = to or (f"dramatiq+{url_of(self._theirs.client)}" if self._redis else _rabbit_of(broker))
        self._enqueue = broker.enqueue
        self._theirs.enqueue = self._enqueue_later

    def _target(self) -> str:
        return type(self._theirs).__name__

    def _restore(self) -> None:
        del self._theirs.enqueue

    def _enqueue_later(self, message: Any, *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Does what ``broker.enqueue`` does; the worker's messages are proxies."""
        prioritized = not self._redis and message.options.get("broker_priority") is not None
        if delay is None or not self._takes(delay / 1000) or prioritized:
            return self._enqueue(message, delay=delay)
        try:
            return self._delay(message, delay)
        except ShardqError as exc:
            # The middleware that retries calls this while it ends a message: what it is not rid of here is lost.
            log.warning("message %s is delayed by Dramatiq itself: %s", message.message_id, exc)
            return self._enqueue(message, delay=delay)

    def _delay(self, message: Any, delay: int) -> dramatiq.Message[Any]:
        queue = q_name(message.queue_name)
        if self._redis:
            self._route(self._topic_of(queue), f"{self._to}#{self._theirs.namespace}:{queue}")
        else:
            self._theirs.declare_queue(queue, ensure=True)  # as Dramatiq does; it asks RabbitMQ once
            self._route(self._topic_of(queue), f"{self._to}#/{queue}")
        # the message as Dramatiq would delay it: middleware sees this one, and may change its options
        options: dict[str, Any] = {"eta": current_millis() + delay}
        headers = {}
        if self._redis:
            options[DRAMATIQ_HEADER] = headers[DRAMATIQ_HEADER] = str(uuid.uuid4())
        delayed: dramatiq.Message[Any] = message.copy(queue_name=dq_name(queue), options=options)
        self._theirs.emit_before("enqueue", delayed, delay)
        due = delayed.copy(queue_name=queue)
        del due.options["eta"]
        payload, topic, id = as_payload(self._options, due.encode()), self._topic_of(queue), task_id(message.message_id)
        self.engine.push(payload, delay=delay / 1000, topic=topic, id=id, on_conflict="replace", headers=headers)
        self.delayed += 1
        self._theirs.emit_after("enqueue", delayed, delay)
        return delayed

    def _topic_of(self, queue: str) -> str:
        return f"{self.topic}.{queue}"

    def cancel(self, message: dramatiq.Message[Any]) -> Outcome:
        """Cancels a message that waits in the engine. By its id alone it is ``engine.cancel("dramatiq.QUEUE/ID")``.

        >>> delaying.cancel(message)
        <Outcome.CANCELLED: 'cancelled'>
        """
        return self.engine.cancel(f"{self._topic_of(q_name(message.queue_name))}/{task_id(message.message_id)}")

    def move_back(self) -> int:
        """Ends it, and gives the messages that wait in the engine, of queues that this broker has declared, to
        Dramatiq's own delay queues. Returns how many. Other processes should have ended it before. If it is killed
        meanwhile, one message may be in both places.

        >>> delaying.move_back()
        0
        """
        self.remove()
        moved = 0
        for queue in sorted(map(q_name, self._theirs.get_declared_queues())):
            for task in self._waiting(self._topic_of(queue)):
                info = self.engine.get(task.id, decode=False)
                if info is not None and info.due is not None:
                    message: dramatiq.Message[Any] = dramatiq.Message.decode(bytes(info.payload))
                    left = int(info.due.timestamp() * 1000) - current_millis()
                    self._theirs.enqueue(message, delay=max(left, 0))
                    self.engine.cancel(task.id)
                    moved += 1
        return moved


def _rabbit_of(broker: Any) -> str:
    said = broker.parameters
    if isinstance(said, list) or said.ssl_options is not None:
        raise InvalidOption(
            "a broker with several servers, or with TLS, does not say how another process reaches it; give its URL: "
            "delay_through(broker, engine, to='amqps://USER:PASSWORD@HOST:5671/VHOST')"
        )
    login = f"{quote(said.credentials.username, safe='')}:{quote(said.credentials.password, safe='')}"
    return f"amqp://{login}@{bracketed(f'{said.host}:{said.port}')}/{quote(said.virtual_host, safe='')}"
