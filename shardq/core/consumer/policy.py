"""The policy after a failure: the backoff, and the exceptions by which a handler decides for itself. No I/O."""

from __future__ import annotations

import datetime as dt
import random
import traceback
from dataclasses import dataclass
from typing import Any

from shardq.core.model.checks import due_spec, is_seconds, reason_text
from shardq.core.model.printable import quoted
from shardq.errors import InvalidDelay, InvalidOption


class Retry(Exception):
    """Raised by a handler, or in a ``settling`` block: try again after ``delay`` seconds (None: by the backoff). Counts
    as a failed attempt.

    ``Retry``, ``Bury``, ``Snooze`` and ``Hold`` count also as the only exception of a group, as a task group makes one.

    >>> @worker.on("mail")
    ... def send(delivery):
    ...     raise shardq.Retry(delay=60, reason="the mail server is busy")
    """

    # Also of a subclass that does not call our __init__.
    delay: float | dt.timedelta | None = None
    reason: str = "the handler asked for a retry"

    def __init__(self, delay: float | dt.timedelta | None = None, reason: str = reason) -> None:
        if delay is not None:
            # A wrong delay is the handler's failure, here: later it would be nobody's.
            due_spec(delay, None)
        self.delay = delay
        self.reason = reason_text(reason)
        super().__init__(reason)


class Bury(Exception):
    """Raised by a handler, or in a ``settling`` block: the task is dead at once, for ``reason``.

    >>> @worker.on("mail")
    ... def send(delivery):
    ...     raise shardq.Bury("no such address")
    """

    reason: str = "the handler asked for a burial"

    def __init__(self, reason: str) -> None:
        self.reason = reason_text(reason)
        super().__init__(reason)


class Gone(Bury):
    """Raised after an answer that says that its key will take no more: the task is dead, and the key waits for so many
    seconds.
    """

    def __init__(self, reason: str, hold_s: float) -> None:
        super().__init__(reason)
        self.hold_s = hold_s


class Snooze(Exception):
    """Raised by a handler, or in a ``settling`` block: call again after ``delay`` seconds, or a timedelta. That is no
    failure, and counts no attempt: a handler may snooze its task any number of times. ``expires=`` of the push bounds
    that: a task that is snoozed past that instant is dead when it falls due, with the reason ``expired``.

    >>> @worker.on("report")
    ... def send(delivery):
    ...     if not is_ready(delivery.payload):
    ...         raise shardq.Snooze(60)
    """

    # Also of a subclass that does not call our __init__.
    delay: float | dt.timedelta = 60.0

    def __init__(self, delay: float | dt.timedelta) -> None:
        snooze_ms(delay)
        self.delay = delay
        super().__init__(f"again after {delay}")


class Hold(Snooze):
    """Raised by a handler, or in a ``settling`` block: the task's key waits for ``delay`` seconds, or a timedelta, as
    after an answer 429 with ``Retry-After``. The task goes back to the front of its key. That is no failure, and counts
    no attempt. If the task has no key, its topic is paused for so long, for the whole fleet.

    >>> @worker.on("webhook")
    ... def send(delivery):
    ...     answer = post(delivery.payload)
    ...     if answer.status == 429:
    ...         raise shardq.Hold(int(answer.headers["Retry-After"]))
    """

    def __init__(self, delay: float | dt.timedelta) -> None:
        super().__init__(delay)
        self.args: tuple[Any, ...] = (
            f"a key is to wait for {delay}: only a worker's handler, or a settling block, can raise this; elsewhere "
            "call consumer.hold(delivery, delay), or engine.hold(topic, key=…, until=…)",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential, with full jitter: after the n-th failure a random delay from 0 to base·2ⁿ⁻¹, at most cap seconds.

    Full jitter spreads what failed together, so that it does not come back together. A subclass may have a ``delay_s``
    of its own; where that fails, the delay is the one of ``Backoff()``.

    >>> worker = engine.worker(backoff=shardq.Backoff(base=2, cap=600))
    """

    base: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        if not (is_seconds(self.base) and is_seconds(self.cap) and self.base <= self.cap):
            raise InvalidOption(f"{quoted(self)} is not possible; give 0 <= base <= cap, in seconds")

    def delay_s(self, attempt: int) -> float:
        """The delay after the attempt of this number, from 1.

        >>> 0 <= shardq.Backoff(base=2, cap=600).delay_s(3) <= 8
        True
        """
        # 2 to the 60th is past any cap
        return random.uniform(0.0, min(self.cap, self.base * 2.0 ** min(attempt - 1, 60)))


DEFAULT = Backoff()
"""Also used when the user's own policy fails."""


def delay_ms(backoff: Backoff, attempt: int) -> int:
    """Raises whatever the user's own backoff raises, and InvalidDelay for a result that is no delay."""
    return snooze_ms(backoff.delay_s(attempt))


def snooze_ms(delay: float | dt.timedelta) -> int:
    """A delay that must be given, in ms."""
    if delay is None:
        raise InvalidDelay("a delay can't be None; give seconds as a number, or a timedelta")
    return -due_spec(delay, None)


def alone(exc: BaseException) -> BaseException:
    """The only exception in a group, if there is one: asyncio.TaskGroup makes a group of whatever one of its tasks
    raises.
    """
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def reason_of(exc: BaseException) -> str:
    """The last lines of the traceback. Never raises, whatever the exception makes of itself."""
    try:
        return reason_text("".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).strip())
    except BaseException:  # noqa: BLE001  its attributes are the user's code, SystemExit too
        return f"{object.__repr__(exc)}, whose text can't be had"
