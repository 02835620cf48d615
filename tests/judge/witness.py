"""An engine, and its consumers, whose calls are written into a book: what was asked, when, and what was heard."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from shardq import Conflict, Delivery, Engine, LeaseLost, PushError, Task
from shardq.core.layout.lanes import of_key
from shardq.core.model.task import Outcome, Receipt
from shardq.errors import (
    BadInput,
    ChangeUnderWay,
    DurabilityUnavailable,
    NotReplicated,
    OutOfMemory,
    ReadOnly,
    SettleError,
    ShardqError,
    Unavailable,
)
from tests.judge.history import Book, Call, Named
from tests.judge.model import MADE, Op

PUSHED = ("delay", "topic", "key", "id", "on_conflict", "dedup", "max_attempts", "expires", "tags")
"""The options of a task that a push is given."""

LATE_S = 0.5
"""How much later than its timeout a call may return."""


def monotonic_us() -> float:
    return time.monotonic() * 1e6


@dataclass
class Witness:
    """``first``: the number of its first payload; each has one of its own. ``timeout``: that of the engine."""

    engine: Engine
    book: Book
    who: str
    first: int
    timeout: float
    now_us: Callable[[], float] = monotonic_us

    def __post_init__(self) -> None:
        self._numbers = count(self.first)

    # ---- pushes

    def task(
        self,
        *,
        id: str = "",
        topic: str = "",
        key: str = "",
        delay: float = 0.0,
        mode: str = "keep",
        dedup: float = 0.0,
        limit: int = 0,
        expires: float = 0.0,
        tag: str = "",
        padding: int = 0,
    ) -> tuple[Task, Op]:
        """A task, and the operation that its push is. ``id``: without its topic and key; empty: one is made."""
        number = next(self._numbers)
        options: dict[str, Any] = {"delay": delay, "topic": topic}
        options |= {"key": key} if key else {}
        if id:
            options |= {"id": id, "on_conflict": mode}
        options |= {"dedup": dedup} if dedup else {}
        options |= {"max_attempts": limit} if limit else {}
        options |= {"expires": expires} if expires else {}
        options |= {"tags": [tag]} if tag else {}
        payload = {"n": number, "pad": "x" * padding} if padding else number
        op = Op(
            "push",
            0.0,
            number=number,
            delay_us=delay * 1e6,
            mode=mode if id else MADE,
            window_us=dedup * 1e6,
            limit=limit,
            expires_us=expires * 1e6,
            who=self.who,
        )
        return Task(payload, **options), op

    def push(self, task: Task, op: Op, *, durability: Any = None) -> str:
        """Pushes one. Returns its id, empty where that is not known."""
        (id,) = self.push_many([(task, op)], durability=durability, one=True)
        return id

    def push_many(self, tasks: Sequence[tuple[Task, Op]], *, durability: Any = None, one: bool = False) -> list[str]:
        """Pushes many. Returns their ids, empty where they are not known."""
        named: list[Named] = [(_full_id(task), op) for task, op in tasks]
        for _, op in named:
            op.durable = durability is not None
        number = self._begin("push", named)
        try:
            if one:
                ((task, _),) = tasks
                options = {name: value for name in PUSHED if (value := getattr(task, name)) is not None}
                receipts: Sequence[str] = [self.engine.push(task.payload, **options, durability=durability)]
            else:
                receipts = self.engine.push_many([task for task, _ in tasks], durability=durability)
        except PushError as exc:
            fates = [_fate_of(exc, id) for id in exc.ids]
            self._end(number, exc, outcomes=fates, ids=list(exc.ids))
            return [str(id) for id in exc.ids]
        except NotReplicated as exc:
            self._end(number, exc, outcomes=["applied"] * len(named), ids=exc.ids)
            return list(exc.ids)
        except ShardqError as exc:
            self._failed(number, named, exc)
            return [""] * len(named)
        self._end(number, outcomes=[_told(receipt) for receipt in receipts], ids=[str(each) for each in receipts])
        return [str(each) for each in receipts]

    # ---- commands by id, and on many tasks

    def order(self, kind: Any, id: str, *, delay: float = 0.0) -> str:
        """cancel, reschedule or requeue. Returns the outcome, empty where it is not known."""
        named: list[Named] = [(id, Op(kind, 0.0, delay_us=delay * 1e6, who=self.who))]
        number = self._begin(kind, named)
        try:
            if kind == "cancel":
                outcome = self.engine.cancel(id)
            else:
                outcome = (self.engine.reschedule if kind == "reschedule" else self.engine.requeue)(id, delay=delay)
        except ShardqError as exc:
            self._failed(number, named, exc)
            return ""
        self._end(number, outcomes=["" if outcome is Outcome.UNKNOWN else str(outcome)])
        return str(outcome)

    def look(self, id: str) -> str:
        """Returns the state of a task, ``gone`` where there is none."""
        named: list[Named] = [(id, Op("get", 0.0, who=self.who))]
        number = self._begin("get", named)
        try:
            info = self.engine.get(id)
        except ShardqError as exc:
            self._failed(number, named, exc)
            return ""
        state = "gone" if info is None else info.state
        self._end(number, outcomes=[state])
        return state

    def bulk(self, mode: str, topics: Sequence[str], command: Callable[[], object], *, delay: float = 0.0) -> None:
        """A command that cancels, reschedules or requeues many tasks, of these topics; of all, if there are none."""
        op = Op("bulk", 0.0, mode=mode, delay_us=delay * 1e6, who=self.who)
        number = self._begin("bulk", [("", op)], topics=topics, wait=math.inf)  # each of its pages has the timeout
        try:
            command()
        except ShardqError as exc:
            self._end(number, exc)
            return
        self._end(number, outcomes=["applied"])

    def does(self, what: str, call: Callable[..., object], *args: Any, **options: Any) -> bool:
        """A call that concerns no id. Returns True if it did not fail."""
        number = self._begin(what, [])
        try:
            call(*args, **options)
        except ShardqError as exc:
            self._end(number, exc)
            return False
        self._end(number)
        return True

    def waits(self, what: str, seconds: float, call: Callable[[], object]) -> None:
        """A call that waits for so long."""
        number = self._begin(what, [], wait=seconds + self.timeout)  # its last look at the servers has the timeout
        try:
            call()
        except ShardqError as exc:
            self._end(number, exc)
            return
        self._end(number)

    def consumer(self, *topics: str, lease: float, prefetch: bool = False) -> WitnessedConsumer:
        consumer = self.engine.consumer(list(topics) or "", lease=lease, prefetch=prefetch)
        return WitnessedConsumer(self, consumer, list(topics) or [""], lease)

    def runs(self, worker: Any) -> None:
        """Runs a worker until it is told to stop. What it claims is told by its handlers only."""
        number = self._begin("worker", [], wait=math.inf)
        try:
            worker.run(signals=False)
        except ShardqError as exc:
            self._end(number, exc)
            return
        self._end(number)

    def given(self, delivery: Delivery, *, since_us: float, lease: float) -> None:
        """A delivery that a worker's handler got; its claim began at some time since that instant."""
        op = _claim_op(delivery, since_us, lease, self.who)
        number = self._begin("handler", [], at_us=since_us, wait=math.inf)
        self._end(number, given=[(delivery.id, op)], outcomes=["given"])

    def concluded(self, delivery: Delivery, kind: Any, *, delay: float = 0.0) -> None:
        """What a worker does with a delivery after its handler; nobody hears what becomes of it."""
        op = _settled_op(delivery, kind, delay, self.who)
        self._begin("handled", [(delivery.id, op)])

    # ---- the book

    def _begin(
        self, what: str, ops: list[Named], *, wait: float = 0.0, topics: Sequence[str] = (), at_us: float | None = None
    ) -> int:
        now_us = self.now_us() if at_us is None else at_us
        for _, op in ops:
            op.begin_us = now_us
        within_us = (self.timeout + wait + LATE_S) * 1e6
        return self.book.begin(Call(self.who, what, now_us, ops=ops, topics=list(topics), within_us=within_us))

    def _end(self, number: int, exc: BaseException | None = None, **heard: Any) -> None:
        self.book.end(number, self.now_us(), error="" if exc is None else type(exc).__name__, **heard)

    def _failed(self, number: int, named: list[Named], exc: ShardqError) -> None:
        """An error that all operations of a call have."""
        fate = NOTHING if isinstance(exc, UNDONE) else ""
        if isinstance(exc, Conflict):
            fate = f"refused:{exc.state}"
        self._end(number, exc, outcomes=[fate] * len(named))


UNDONE = (BadInput, Unavailable, OutOfMemory, ReadOnly, DurabilityUnavailable, ChangeUnderWay)
"""Errors that say that nothing was done."""

NOTHING = "nothing"
"""The outcome of an operation of which an error says that nothing was done."""


@dataclass
class WitnessedConsumer:
    witness: Witness
    consumer: Any
    topics: list[str]
    lease: float

    def claim(self, most: int, *, wait: float = 0.0) -> list[Delivery]:
        witness = self.witness
        begin_us = witness.now_us()
        number = witness._begin("claim", [], wait=wait, topics=self.topics, at_us=begin_us)
        try:
            deliveries: list[Delivery] = self.consumer.claim(most, wait=wait)
        except ShardqError as exc:
            witness._end(number, exc)
            return []
        given = [(each.id, _claim_op(each, begin_us, self.lease, witness.who)) for each in deliveries]
        witness._end(number, given=given, outcomes=["given"] * len(given))
        return deliveries

    def settle(self, kind: Any, deliveries: Sequence[Delivery], *, delay: float = 0.0) -> None:
        """ack, retry, bury, snooze, hold, or extend by ``delay``."""
        witness = self.witness
        named: list[Named] = []
        for each in deliveries:
            op = _settled_op(each, kind, delay, witness.who)
            op.lease_us = delay * 1e6
            named.append((each.id, op))
        number = witness._begin(kind, named)
        fates, exc = settled(self.consumer, kind, deliveries, delay)
        witness._end(number, exc, outcomes=fates)


def settled(
    consumer: Any, kind: str, deliveries: Sequence[Delivery], delay: float
) -> tuple[list[str], ShardqError | None]:
    """Settles by kind. Returns the fate of each delivery, empty where it is not known, and the error."""
    try:
        if kind == "ack":
            consumer.ack(deliveries)
        elif kind == "retry":
            consumer.retry(deliveries, delay=delay)
        elif kind == "bury":
            consumer.bury(deliveries, "it is no good")
        elif kind == "snooze":
            consumer.snooze(deliveries, delay)
        elif kind == "hold":
            consumer.hold(deliveries, delay)
        else:
            consumer.extend(deliveries, delay)
    except LeaseLost as exc:
        known = dict.fromkeys(exc.ids, "lost") | dict.fromkeys(given_twice(deliveries), "")
        return [known.get(each.id, "done") for each in deliveries], exc
    except SettleError as exc:
        known = dict.fromkeys(exc.settled, "done") | dict.fromkeys(exc.lost, "lost")
        known |= {id: NOTHING for id, error in exc.failed.items() if isinstance(error, UNDONE)}
        known |= dict.fromkeys(given_twice(deliveries), "")
        return [known.get(each.id, "") for each in deliveries], exc
    except ShardqError as exc:
        return [NOTHING if isinstance(exc, UNDONE) else ""] * len(deliveries), exc
    return ["done"] * len(deliveries), None


def given_twice(deliveries: Iterable[Delivery]) -> list[str]:
    """The ids that have two of these deliveries, as a lease ran out in the middle of a claim. An error that names them
    does not say which of the two was lost.
    """
    counts = Counter(each.id for each in deliveries)
    return [id for id, count in counts.items() if count > 1]


def number_of(payload: Any) -> int:
    """The number in a payload of ours; -1 in another's."""
    number = payload.get("n") if isinstance(payload, dict) else payload
    return number if isinstance(number, int) else -1


def _claim_op(delivery: Delivery, begin_us: float, lease: float, who: str) -> Op:
    return Op(
        "claim",
        begin_us,
        number=number_of(delivery.payload),
        token=delivery.token,
        lease_us=lease * 1e6,
        failures=delivery.failures,
        lapses=delivery.lapses,
        who=who,
    )


def _settled_op(delivery: Delivery, kind: Any, delay: float, who: str) -> Op:
    if kind == "hold":  # of a key, which may be let go at any time
        return Op("snooze", 0.0, token=delivery.token, who=who)
    return Op(kind, 0.0, token=delivery.token, delay_us=delay * 1e6, who=who)


def _full_id(task: Task) -> str:
    if task.id is None:
        return ""
    if task.key is not None:
        return of_key(task.topic, task.key) + task.id
    return f"{task.topic}/{task.id}" if task.topic else task.id


def _told(receipt: str) -> str:
    """The outcome of a push as the model has it."""
    if not isinstance(receipt, Receipt):
        return ""
    outcome = str(receipt.outcome)
    return f"{outcome}:{receipt.state}" if receipt.state else outcome


def _fate_of(exc: PushError, id: str) -> str:
    if isinstance(id, Receipt):
        return _told(id)
    if exc.ids.count(id) > 1:
        return ""  # it tells of one of them why it failed, and not of which
    error = exc.failed.get(id)
    if isinstance(error, Conflict):
        return f"refused:{error.state}"
    return NOTHING if isinstance(error, UNDONE) else ""


def seeded(seed: int, *words: object) -> random.Random:
    """A generator of random numbers for one part of a run."""
    return random.Random(f"{seed}/{'/'.join(map(str, words))}")
