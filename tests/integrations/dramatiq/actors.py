"""The actors of these tests, for the process that sends and for Dramatiq's worker."""

from __future__ import annotations

from typing import Any

import dramatiq
import redis
from dramatiq.middleware import CurrentMessage, Middleware


class Note:
    """Appends the ids of messages that run to a list."""

    def __init__(self, url: str, key: str) -> None:
        self.client, self._key = redis.Redis.from_url(url), key

    def __call__(self) -> None:
        message = CurrentMessage.get_current_message()
        assert message is not None
        self.client.rpush(self._key, message.message_id)


class Actors:
    """The actors, declared on a broker."""

    def __init__(self, broker: Any, note: Note) -> None:
        self.broker = broker
        broker.add_middleware(CurrentMessage())

        def run(number: int = 0, previous: int = 0) -> int:
            note()
            return number

        def fail() -> None:
            note()
            raise RuntimeError("as wanted")

        self.run = dramatiq.actor(actor_name="run", broker=broker)(run)
        self.fail = dramatiq.actor(actor_name="fail", broker=broker, max_retries=1, min_backoff=200)(fail)


class Signals(Middleware):
    """What a middleware saw of messages that were sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int | None]] = []

    def before_enqueue(self, broker: Any, message: dramatiq.Message[Any], delay: int) -> None:
        self.seen.append(("before", message.queue_name, delay))
        message.options["trace"] = "abc"

    def after_enqueue(self, broker: Any, message: dramatiq.Message[Any], delay: int) -> None:
        self.seen.append(("after", message.queue_name, delay))
