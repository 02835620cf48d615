"""The batch that a handler of batches gets: ``shardq.Batch``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from shardq.core.consumer.policy import Bury, Hold, Retry, Snooze
from shardq.core.model.printable import quoted
from shardq.core.model.task import Delivery
from shardq.delivery.current import CURRENT
from shardq.errors import BadInput

P = TypeVar("P")


class Verdicts(Protocol):
    """Decides about single deliveries of a batch while its handler runs."""

    def decide(self, delivery: Delivery[Any], failure: BaseException | None) -> bool | None:
        """Settles one as after a handler that returned (None), or raised. Returns False if it was settled before, or
        its lease was lost; None if it is of another batch.
        """

    def lost(self) -> Sequence[Delivery[Any]]:
        """The deliveries of the call whose leases were lost."""


class AttemptBlock:
    """The block of ``Batch.attempt``. By the type of ``__exit__`` type checkers know that code goes on behind it."""

    def __init__(self, delivery: Delivery[Any], failed: Callable[[Exception], object]) -> None:
        self._delivery = delivery
        self._failed = failed

    def __enter__(self) -> None:
        self._token = CURRENT.set(self._delivery)

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> bool:
        try:
            # a cancellation, or Ctrl-C, is of the whole call
            if isinstance(exc, Exception):
                self._failed(exc)
                return True
            return False
        finally:
            CURRENT.reset(self._token)


class Batch(Sequence[Delivery[P]], Generic[P]):
    """The deliveries that a handler of batches gets in one call: a sequence of them. ``Batch[Order]`` tells a type
    checker what the payloads are; with ``type=Order`` of ``@worker.on`` they are that.

    When the handler returns, all of them are done. When it raises, all that it has not decided about have failed; which
    of them made it fail is then found by calling it again with parts of the batch, unless it has ``isolate=False``.
    Decide about single deliveries before: ``ack``, ``retry``, ``bury``, ``snooze``, ``hold``, or ``attempt``. That is
    settled at once. Each of them returns False, and changes nothing, if the delivery was decided about before, or its
    lease was lost. They may be called from any thread while the handler runs.

    >>> @worker.on("events", batch=500, linger=0.2, type=Event)
    ... def store(batch: shardq.Batch[Event]) -> None:
    ...     with database.begin() as transaction:
    ...         transaction.insert(events, [delivery.payload for delivery in batch])
    """

    def __init__(self, deliveries: Sequence[Delivery[P]], verdicts: Verdicts) -> None:
        self._deliveries = tuple(deliveries)
        self._verdicts = verdicts

    def __repr__(self) -> str:
        return f"<Batch of {len(self._deliveries)} from topic {self.topic!r}>"

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery[P]]:
        return iter(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> Delivery[P]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery[P]]: ...

    def __getitem__(self, index: int | slice) -> Delivery[P] | Sequence[Delivery[P]]:
        return self._deliveries[index]

    @property
    def topic(self) -> str:
        """The topic of all of them."""
        return self._deliveries[0].topic

    @property
    def payloads(self) -> list[P]:
        """The payloads, in the order of the deliveries.

        >>> table.insert(batch.payloads)
        """
        return [delivery.payload for delivery in self._deliveries]

    @property
    def lost(self) -> Sequence[Delivery[P]]:
        """The deliveries whose leases were lost during the call, so far: others may have them. They are not settled."""
        return self._verdicts.lost()

    def ack(self, delivery: Delivery[P]) -> bool:
        """Settles one as done, whatever becomes of the others.

        >>> batch.ack(delivery)
        """
        return self._decide(delivery, None)

    def retry(
        self, delivery: Delivery[P], *, delay: float | dt.timedelta | None = None, reason: str = "retried"
    ) -> bool:
        """Notes a failed attempt of one, for ``reason``. It comes again after ``delay``; None: after the backoff. A
        task without attempts left is dead.

        >>> batch.retry(delivery, delay=60, reason="the account is locked")
        """
        return self._decide(delivery, Retry(delay, reason))

    def bury(self, delivery: Delivery[P], reason: str) -> bool:
        """Makes one dead, for ``reason``.

        >>> batch.bury(delivery, "no such account")
        """
        return self._decide(delivery, Bury(reason))

    def snooze(self, delivery: Delivery[P], delay: float | dt.timedelta) -> bool:
        """Has one come again after ``delay``. That counts no attempt.

        >>> batch.snooze(delivery, 60)
        """
        return self._decide(delivery, Snooze(delay))

    def hold(self, delivery: Delivery[P], delay: float | dt.timedelta) -> bool:
        """Has the key of one wait for ``delay``, or the topic of one without a key. That counts no attempt.

        >>> batch.hold(delivery, 60)
        """
        return self._decide(delivery, Hold(delay))

    def attempt(self, delivery: Delivery[P]) -> AttemptBlock:
        """A block about one delivery. If it raises, that one has failed, or is what ``Retry``, ``Bury``, ``Snooze`` and
        ``Hold`` say, and the exception ends there. If it doesn't, nothing is decided yet: the delivery is done with the
        others, or earlier by ``ack``. ``shardq.current()`` is the delivery meanwhile.

        >>> for delivery in batch:
        ...     with batch.attempt(delivery):
        ...         print(delivery.payload["order"])
        """
        return AttemptBlock(delivery, lambda failure: self._decide(delivery, failure))

    def _decide(self, delivery: Delivery[P], failure: BaseException | None) -> bool:
        decided = self._verdicts.decide(delivery, failure) if isinstance(delivery, Delivery) else None
        if decided is None:
            raise BadInput(f"{quoted(delivery)} is not in this batch; give one of the deliveries that it is made of")
        return decided
