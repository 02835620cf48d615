"""The handler of a topic, as a loop runs it: what to call, and the attempts, delays and batches of its tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardq.core.consumer import policy
from shardq.core.consumer.policy import Backoff, Snooze
from shardq.core.model.ids import quoted_topic
from shardq.core.model.task import Delivery
from shardq.delivery.logs import Once, tell

UNKNOWN_S = 30.0
"""The pause of a call whose function a worker does not know. Short enough for a worker beside it, of a newer version,
which has the next try; long enough for a hundred thousand of them that wait for a deploy.
"""

SMALLER = 3
"""A task that has failed of its own n times is called in batches that are ``2**(3·n)`` times smaller: after three
failures alone, if a batch has no more than 512. The tasks beside it then lose few attempts by it, on whichever worker.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How a handler of batches is called."""

    size: int
    """The most tasks of a call."""
    linger_s: float = 0.0
    """How long the first task of a batch may wait in its ready list for others."""
    places: int | None = None
    """The most calls at once in a process; None: as many as the loop has places."""
    isolate: bool = True
    """True if a batch whose call raises is called again in halves, until the task is found that makes it fail."""
    shrinks: bool = True
    """True if tasks that have failed are called apart from others, the fewer at a time the more often they have."""
    read: Callable[[Delivery], Delivery] | None = None
    """Makes the delivery that the handler gets, with a payload of its type. Raises PayloadNotDecodable."""

    def size_after(self, failures: int) -> int:
        """The most tasks of a call with one that has failed so often."""
        return max(1, self.size >> min(SMALLER * failures, 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The handler of one topic, or of the calls of one named task in it."""

    topic: str
    run: Callable[[Any], Any]
    """Takes a delivery; with ``batching`` a batch."""
    is_coroutine: Callable[[Delivery], bool]
    """True if ``run`` returns an awaitable for this delivery."""
    has_coroutines: Callable[[], bool]
    """True if it does so for some delivery, or a named task does."""
    name: Callable[[Delivery], str]
    """The name of the function for this delivery, in logs and errors."""
    named: Mapping[str, Handler] = field(default_factory=dict)
    """Name → the handler of these calls. The handler itself then has those of all other names."""
    timeout: float | None = None
    max_attempts: int | None
    """The limit of tasks that bring none of their own; None: the engine's."""
    backoff: Backoff
    batching: Batching | None = None
    """None: a call takes one delivery."""
    is_silent: bool = False
    """True if the log has nothing of what becomes of its tasks: it says that by itself."""
    once: Once = field(default_factory=Once, repr=False, compare=False)

    def of(self, delivery: Delivery) -> Handler:
        """The handler of this delivery: that of the named task, in a topic that has some."""
        return self.named.get(name_in(delivery), self) if self.named else self

    def delay_ms(self, attempt: int) -> int:
        """The delay by the backoff, or by the default one if that fails. Never raises."""
        try:
            return policy.delay_ms(self.backoff, attempt)
        except BaseException as exc:  # noqa: BLE001  the user's code, SystemExit too: the task is settled
            if self.once.new("backoff"):
                what = "the backoff of %r, handler of topic %s, fails: its tasks wait as by Backoff() (said once)"
                tell(logging.ERROR, what, self.run, quoted_topic(self.topic), exc=exc)
            return policy.delay_ms(policy.DEFAULT, attempt)


def name_in(delivery: Delivery) -> str:
    """The name in a call's payload; empty if it is no call."""
    payload = delivery.payload
    # exactly: a codec of the user's own may make something else of either, whose methods are the user's too
    name = payload.get("task") if type(payload) is dict else None
    return name if type(name) is str else ""


class NotBegun(Exception):
    """Raised by a handler of the library's own: it has not begun with the task, which is given back and counts no
    attempt.
    """


class UnknownTask(Snooze):
    """The worker does not know the function that is called: the producer is newer, or this worker is. The call waits
    for another worker, which counts no attempt, so that nothing is dropped.
    """

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(UNKNOWN_S)
        self.task = task
        self.args: tuple[Any, ...] = (reason,)
