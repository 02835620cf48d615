"""The result of ``delay_through`` of an integration, and what the integrations share: the threshold, the route of the
topic, payloads that any engine can hold, the URL of a client of redis-py.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import msgspec

from shardq import Engine
from shardq.core.drivers.clients import read
from shardq.core.layout.destinations import masked
from shardq.core.layout.topology import Topology
from shardq.core.layout.words import UNDECODABLE
from shardq.core.model.checks import check_id, check_seconds, check_topic
from shardq.core.model.record import JSON, RAW
from shardq.core.model.task import TaskInfo
from shardq.engine.around import EngineAccess, Options
from shardq.errors import BadInput, InvalidOption

MAX_JOB_ID = 150
"""Bytes of another queue's id that stand in a task's id as they are; longer ones are hashed."""


def check_codec(options: Options) -> None:
    """Refuses an engine that would change the bytes that another queue reads."""
    if options.codec not in (JSON, RAW):
        raise InvalidOption(
            f"the codec {options.codec.name!r} changes the bytes that another queue reads; give an engine with "
            'codec="json", the default, or codec="raw"'
        )


def is_routed(topology: Topology, topic: str, to: str) -> bool:
    """True if the topic goes there already. Raises InvalidOption if it goes elsewhere."""
    route = topology.routes.get(topic)
    if route is not None and route.to != to:
        raise InvalidOption(
            f"the topic {topic!r} is forwarded to {route.named} already, and not to {masked(to)}; give another topic=, "
            f"or change it: engine.forward({topic!r}, to=…)"
        )
    return route is not None


class Delaying(ABC):
    """Delays of another queue that go through an engine, until ``remove()``, or the end of a ``with`` block."""

    def __init__(self, engine: Engine, *, above: float) -> None:
        if not isinstance(engine, Engine):
            raise InvalidOption(f"delay_through takes a shardq.Engine, not {type(engine).__name__}")
        self._options = EngineAccess(engine).options
        check_codec(self._options)
        check_seconds(above, "above")
        self.engine = engine
        self.above = above
        """Seconds. What is to wait for longer goes through the engine."""
        self.delayed = 0
        """The messages that this process has handed to the engine."""
        self._active = True

    def __repr__(self) -> str:
        state = f"above {self.above:g} s through {self.engine.name!r}, {self.delayed:,} so far"
        return f"<{type(self).__name__} of {self._target()}: {state if self._active else 'removed'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Ends it in this process: what is delayed from now on is kept by the other queue itself. What the engine has
        is forwarded when it is due, as before.
        """
        if self._active:
            self._active = False
            self._restore()

    @abstractmethod
    def _target(self) -> str:
        """The name of what delays, for people."""

    @abstractmethod
    def _restore(self) -> None: ...


class RoutedDelaying(Delaying):
    """Delays for a queue to whose Redis or broker one URL leads. ``above=0``: also for jobs that are due already."""

    def __init__(self, theirs: Any, engine: Engine, *, above: float, topic: str, to: str | None) -> None:
        super().__init__(engine, above=above)
        check_topic(topic)
        self.topic = topic
        self._theirs = theirs
        """The queue or the broker whose delays these are."""
        self._asked = engine, above, topic, to
        self._routed: set[str] = set()

    def again(self, theirs: Any, *asked: object) -> Self:
        """This, if it was made with these arguments; else raises InvalidOption."""
        if self._theirs is theirs and self._asked == asked:
            return self
        text = f"{self._target()} delays through {self.engine!r} already, by {self!r}: remove() that first"
        raise InvalidOption(text)

    def _takes(self, delay_s: float) -> bool:
        return not self.above or delay_s > self.above

    def _route(self, topic: str, to: str) -> None:
        """Stores the topic's route when it is needed first."""
        if topic not in self._routed:
            self.engine.open()
            if not is_routed(self.engine.topology, topic, to):
                self.engine.forward(topic, to=to)
            self._routed.add(topic)

    def _waiting(self, topic: str) -> Iterator[TaskInfo]:
        """The tasks of a topic that are not due, page by page: each may be cancelled as it comes."""
        page = self.engine.tasks(topic=topic, state="scheduled")
        while True:
            yield from page
            if page.cursor is None:
                return
            page = self.engine.tasks(topic=topic, state="scheduled", cursor=page.cursor)


def task_id(id: str) -> str:
    """An id of another queue as the id of a task, which is shorter and has fewer characters.

    >>> task_id("6ba7b810-9dad"), task_id("mail/7")
    ('6ba7b810-9dad', 'aa12d79bd00e922bece1dd290fd385ad84529380')
    """
    try:
        check_id(id)
        if len(id.encode()) <= MAX_JOB_ID:
            return id
    except BadInput:
        pass
    return hashlib.sha1(id.encode("utf-8", "surrogatepass")).hexdigest()


def as_payload(options: Options, data: bytes) -> object:
    """The payload of which the engine's codec makes these bytes. Raises InvalidOption if it can't."""
    if options.codec is RAW:
        return data
    try:
        msgspec.json.decode(data)
    except UNDECODABLE as exc:
        raise InvalidOption(
            'this message is not JSON, so it can\'t be held by an engine with codec="json"; give one with codec="raw"'
        ) from exc
    return msgspec.Raw(data)


def url_of(client: Any) -> str:
    """The URL by which a sink reaches what this client of redis-py does. Raises InvalidOption if there is none."""
    url, access = read(client)
    if access.tls or access.provided or not url.startswith(("redis://", "unix://")):
        raise InvalidOption(
            "this connection does not say all that another process needs to reach the same Redis; give its URL: "
            "delay_through(…, to='rq+rediss://HOST:PORT/DB'), or to='dramatiq+rediss://…'"
        )
    return url
