"""Values that a caller hands in and gets back. No I/O."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal

import msgspec

from shardq.core.layout.lanes import key_of
from shardq.core.model.task_options import TaskOptions

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # checkers know it without its package

    P = TypeVar("P", default=Any)
else:
    from typing import TypeVar

    P = TypeVar("P")

EndedState = Literal["done", "cancelled"]

State = Literal["scheduled", "held", "ready", "leased", "dead", "done", "cancelled"]
"""Of the last two only the ends are kept, where the engine keeps them."""


OF_OTHERS = {
    "countdown": "delay=seconds",
    "eta": "at=instant",
    "queue": "topic=",
    "task_id": "id=",
    "job_id": "id=",
    "max_retries": "max_attempts=, which counts the first attempt, too",
    "retry": "max_attempts= and backoff=",
    "default_retry_delay": "backoff=",
    "time_limit": "timeout=",
    "soft_time_limit": "timeout=",
}
"""The words of other queues, and ours."""


def refuse_unknown(call: str, unknown: Iterable[str]) -> None:
    """Raises TypeError, as Python does, for arguments that a function does not have; names ours for those of other
    queues.
    """
    for name in unknown:
        hint = f"; write {OF_OTHERS[name]}" if name in OF_OTHERS else ""
        raise TypeError(f"{call} has no argument {name}={hint}")


class Task(TaskOptions, frozen=True):
    """One task to push: ``Task({"n": 1}, delay=5, topic="email")``.

    ``delay`` counts from the moment the server takes the task, by the server's clock; ``at`` is an instant: an
    aware datetime or epoch seconds. With neither the task is due now. ``window``: it may become due at any time in so
    many seconds from then on. ``id`` is the part after the topic. The page ``producer/README.md`` tells all options.

    >>> task = shardq.Task({"order": 42}, delay=1800, topic="invoice", id="invoice-42")
    >>> ids = engine.push_many([task])
    """

    payload: Any


class Outcome(enum.StrEnum):
    """The outcome of a push, or of a command given by id. True only when it did what was asked; a spooled one will be
    carried out when Redis is back, with an outcome that is not known yet, and is not true.

    >>> bool(shardq.Outcome.CANCELLED), bool(shardq.Outcome.RUNNING)
    (True, False)
    """

    PUSHED = "pushed"
    REPLACED = "replaced"
    KEPT = "kept"
    SEEN = "seen"
    CANCELLED = "cancelled"
    MOVED = "moved"
    REQUEUED = "requeued"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    DEAD = "dead"
    GONE = "gone"
    UNKNOWN = "unknown"
    SPOOLED = "spooled"
    RESTORED = "restored"

    def __bool__(self) -> bool:
        return self in _DONE

    def __repr__(self) -> str:
        hint = ": no task has this id; an id includes the topic, as in mail/order-42" if self == "gone" else ""
        return f"<Outcome.{self.name}: {self.value!r}{hint}>"


_DONE = frozenset(Outcome(word) for word in ("pushed", "replaced", "cancelled", "moved", "requeued", "restored"))


class Receipt(str):
    """The id of a pushed task, and what the push did: a str with two more attributes.

    ``outcome`` is pushed, replaced, kept (the id was taken, and ``state`` says where its task is), seen (its dedup
    window is open, its task was pushed before and is gone; never with ``on_conflict="replace"``) or spooled (Redis
    can't be reached, and ``spool=`` keeps the push).

    >>> receipt = engine.push({"order": 42}, id="order-42")
    >>> receipt, receipt.outcome
    ('order-42', <Outcome.PUSHED: 'pushed'>)
    """

    # A dict for each would be half of the work of making receipts, and of throwing them away.
    __slots__ = ()

    outcome: Outcome = Outcome.PUSHED
    state: State | None = None

    @classmethod
    def of(cls, id: str, answer: str) -> Receipt:
        """From the answer of push_unique: pushed, replaced, seen or kept:STATE. Or from the spool's: spooled."""
        if answer == "pushed":
            return cls(id)
        receipt = _OtherReceipt(id)
        outcome, _, state = answer.partition(":")
        receipt.outcome = Outcome(outcome)
        receipt.state = state or None  # type: ignore[assignment]  # likewise
        return receipt

    def __bool__(self) -> bool:
        return True


class _OtherReceipt(Receipt):
    """The receipt of a task that was not simply stored."""

    __slots__ = ("outcome", "state")


AsyncReceipt = Coroutine[Any, Any, Receipt]
"""The result of a push that is to be awaited."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that failed.

    >>> id = engine.push("x", topic="mail")
    >>> info = engine.get(id)
    >>> info.attempts
    ()
    """

    at: dt.datetime
    """The time at which it failed, by the clock of the consumer."""
    process: str
    """The consumer or worker that had the task, as ``TaskInfo.holder`` names it."""
    seconds: float | None
    """The time that the handler took; None where no worker called it."""
    reason: str
    """The last line of the reason, up to 200 bytes of it."""


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one task at one instant.

    >>> info = engine.get(id)
    >>> info.state, info.attempt, info.payload
    ('scheduled', 1, {'order': 42})
    """

    id: str
    topic: str
    key: str | None
    state: State
    """``held``: it is due, and waits for its key. ``done`` and ``cancelled``: it has ended, and this is what is kept of
    it: no payload, no headers, no tags.
    """
    due: dt.datetime | None
    """The time at which it becomes due, or became due; None unless scheduled or held."""
    deadline: dt.datetime | None
    """The end of its present lease; None unless leased."""
    holder: str | None
    """The consumer or worker that has it, or had it when it was done: its name, and a random part that tells it from
    others of that name. None unless leased or done.
    """
    died: dt.datetime | None
    """The time of its death; None unless dead."""
    attempt: int
    """The present attempt, or the next one: 1 for a task never claimed. Of a dead task the last one: 0 for one that has
    expired before its first."""
    failures: int
    lapses: int
    """Leases that ran out."""
    reason: str | None
    """The reason of its death: the end of a traceback, what ``bury`` was given, ``lost with its worker``, ``expired``
    or ``format``. Before its death, why the last attempt failed (the end of that, 500 bytes at least); None if
    none has failed.
    """
    payload: Any
    """In a list of tasks it is None where it can't be decoded."""
    headers: Mapping[str, str]
    max_attempts: int | None
    tags: tuple[str, ...] = ()
    url: str | None = None
    """The URL to which it is posted, as a webhook."""
    expires: dt.datetime | None = None
    """The time after which it is dead, as expired, if no worker has claimed it."""
    codec: str = ""
    """What made the payload's bytes: ``json``, ``msgpack``, ``raw``, or ``own`` for a codec of your own. Empty where
    the record can't be read: then the payload is all of it, or None.
    """
    attempts: tuple[Attempt, ...] = ()
    """The last five attempts that failed, the earliest first. An attempt whose lease ran out is not among them:
    ``lapses`` counts those.
    """
    pushed: dt.datetime | None = None
    """When it was pushed, to the second; None where that is not known."""
    ended: dt.datetime | None = None
    """When it was done or cancelled; None of a task that has not ended."""
    seconds: float | None = None
    """The time that its handler took; None unless done, and where no worker called it."""
    failure: str | None = None
    """The class of its last failure, such as ``TimeoutError``, if it has ended and had failed before."""


class Delivery(msgspec.Struct, Generic[P], frozen=True):
    """One task in a consumer's hands, under a lease. ``Delivery[Order]`` tells a type checker what the payload is; with
    ``type=Order`` of ``@worker.on`` it is that.

    >>> for delivery in consumer.claim(100, wait=1.0):
    ...     print(delivery.id, delivery.topic, delivery.payload, delivery.attempt)
    """

    id: str
    topic: str
    payload: P
    attempt: int
    headers: Mapping[str, str]
    token: str
    """The lease: settle and extend are good only while the task is held under it. With a ``#`` in it, it is the name of
    the task's place under its topic's ``concurrency``, too.
    """
    shard: int
    """The shard that gave it out, and the one that takes it back."""
    failures: int
    lapses: int
    tags: tuple[str, ...] = ()
    past: str = ""
    """The reason of the last attempt that failed, as it is stored with the task: the next one is added to it."""
    fence: int = 0
    """Grows with each lease of the task's key, as far as the clocks of its shard's masters agree. Store it with what a
    handler writes, and refuse a write with a lower one. It is 0 until the engine has keys.
    """
    url: str | None = None
    """The URL that the task was pushed with, for a webhook."""
    pushed_s: int = 0
    """When it was pushed, if the engine keeps ends: seconds since 1970; 0: its id says it; below 0: nothing does."""

    @property
    def key(self) -> str | None:
        """The key that the task was pushed with; None without one."""
        return key_of(self.id)
