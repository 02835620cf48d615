"""The relay of one forwarded topic in one process: claims its tasks, hands them to the sink, settles them by its
results. A thread of its own; ``relays`` starts and stops it.

    claim → send → ack

It is a consumer like any other: relays of several processes share the tasks, a pause and limits hold, and what a relay
that was killed had claimed comes back when its leases run out. Between the sink's answer and the ack lies the only
moment in which a crash sends a task twice; its id goes along, so that the other side can tell.

While the sink is down nothing is claimed: tasks stay ready. What was claimed is given back, which counts no attempt. A
task's own failure is told from the sink's by other tasks: where the sink took one meanwhile, the failure is an attempt,
retried with backoff and dead in the end. From then on a failure of this task is its own also when it is sent alone.

A sink that sends several messages at a time, each with an answer of its own, returns futures. Each is settled when it
is there, and others take its place: a slow answer holds up its own task alone.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple

from shardq.calls.consume import OtherSettlement, SettleBury, SettleGiveBack, SettleRetry
from shardq.consumer import Consumer
from shardq.consumer.claims import Claims
from shardq.consumer.policy import delay_ms, reason_of
from shardq.consumer.settling import extend, per_shard, settle
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.drivers.sync import Driver
from shardq.errors import ShardqError
from shardq.fleet.sinks import SinkStats
from shardq.layout.topology import Route
from shardq.model.checks import reason_text
from shardq.model.task import Delivery
from shardq.operation import run
from shardq.sinks.base import BATCH, Failed, Message, Refused, Result, Sent, Sink, Unsent
from shardq.sinks.circuit import Circuit
from shardq.sinks.function import BatchFunction, FunctionSink
from shardq.sinks.registry import sink_of

log = logging.getLogger("shardq.sinks")

LEASE_S = 15.0
"""Leases are extended while a batch is on its way, so this is how long the tasks of a relay that was killed wait."""

WAIT_S = 30.0
"""The length of one wait for tasks. A waiting claim is woken by the first one, by another route, and by the end."""

TRIED = 10
"""Tasks with which a sink that was down is tried."""

TRYING_S = 1.0
"""How long to wait for tasks to try it with; if there are none, nothing is wrong any more."""

RETRY_S = 0.5
"""The pause after an error of the engine's own servers, which the driver has tried to overcome for some time."""

CALL_TIMEOUT_S = 5.0

GATHERED_S = 0.02
"""Answers that come within this time are settled by one call."""

SOON_S = 0.1
"""The length of one wait for tasks while answers are to come: so long they may wait to be settled."""

CULPRITS = 10_000
"""The tasks whose own failures a relay remembers."""


class Try(NamedTuple):
    """One task that was handed to the sink."""

    delivery: Delivery
    taken: int
    """The number of tasks that the sink had taken before."""


class TopicRelay:
    """Sends the tasks of one topic to one sink."""

    def __init__(
        self,
        topic: str,
        route: Route,
        function: BatchFunction | None,
        driver: Driver,
        claims: Claims,
        wakeups: Callable[[float], Wakeups],
    ) -> None:
        self.topic = topic
        self.route = route
        self.function = function
        """The function that a route calls; None: the route is to a URL."""
        self._driver = driver
        self._claims = claims
        self._consumer = Consumer(driver, claims, wakeups)
        self._circuit = Circuit()
        self._sink: Sink | None = None
        self._open = False
        self._held: Sequence[Delivery] = ()
        """The deliveries that are claimed and not settled."""
        self._late: dict[Future[Result], Try] = {}
        """The tries whose answers are to come."""
        self._undecided: list[tuple[Try, Result]] = []
        """Failures that others on their way will explain: they are the task's own if one of those is taken."""
        self._taken = 0
        """The tasks that the sink has taken, or refused for good."""
        self._culprits: dict[str, None] = {}
        """The ids of tasks that failed while others were taken, the oldest first."""
        self.sending = False
        """True while a batch is on its way, and until it is settled."""
        self._stopping = threading.Event()
        self._sent = self._failed = self._retried = self._buried = 0
        self._engine_fault = ""
        self.thread = threading.Thread(target=self._run, name=f"shardq-sink-{topic or 'default'}", daemon=True)

    def __repr__(self) -> str:
        return f"<TopicRelay of {self.topic!r} to {self.route.shown}: {self._circuit.state}, {self._sent} sent>"

    # ---- for others

    def stop(self) -> None:
        """Tells the thread to end, when the batch on its way is settled."""
        self._stopping.set()
        self._consumer.close()

    def interrupt(self) -> None:
        """Ends a send that takes too long; the tasks are sent again by another process."""
        sink = self._sink
        if sink is not None:
            sink.interrupt()

    def extend(self) -> None:
        """Extends the leases of what is on its way. From another thread."""
        held = self._held
        if held:
            try:
                run(self._driver, extend(self._claims, per_shard(held), int(LEASE_S * 1000)), CALL_TIMEOUT_S)
            except ShardqError as exc:
                log.debug("leases of topic %r could not be extended: %s", self.topic, exc)

    def stats(self) -> SinkStats:
        return SinkStats(
            topic=self.topic,
            to=self.route.shown,
            circuit=self._circuit.state,
            sent=self._sent,
            failed=self._failed,
            retried=self._retried,
            buried=self._buried,
            error=self._circuit.error,
        )

    # ---- the loop

    def _run(self) -> None:
        try:
            while self._late or not self._stopping.is_set():
                try:
                    self._step()
                    self._engine_fault = ""
                except ShardqError as exc:
                    self._note_engine_fault(exc)
                except Exception:
                    log.exception("the relay of topic %r met an unexpected error, trying again", self.topic)
                    self._stopping.wait(RETRY_S)
        finally:
            self._close()

    def _note_engine_fault(self, exc: ShardqError) -> None:
        if not self._stopping.is_set():
            if type(exc).__name__ != self._engine_fault:
                self._engine_fault = type(exc).__name__
                log.warning("tasks of topic %r can't be claimed or settled, trying again: %s", self.topic, exc)
            self._stopping.wait(RETRY_S)

    def _step(self) -> None:
        """Sends what there is room for, and settles what has an answer."""
        pause, trying = self._circuit.pause_s(), self._circuit.state != "closed"
        if self._late and (pause or self._stopping.is_set() or 2 * len(self._held) > self._most(trying)):
            wait(self._late, timeout=GATHERED_S)
            self._settle([])
            return
        if self._stopping.wait(pause):
            return
        if not self._open:
            try:
                self._sink = self._sink or self._new_sink()
                if self._sink.max_attempts is not None:
                    self._claims.topic_attempts = {self.topic: self._sink.max_attempts}
                self._sink.open()
                self._open = True
            except Exception as exc:  # noqa: BLE001  each client has errors of its own
                self._down(_text(exc))
                return
        assert self._sink is not None, "it is open"
        wait_s = SOON_S if self._late else TRYING_S if trying else WAIT_S
        deliveries = self._consumer.claim(self._most(trying) - len(self._held), wait=wait_s)
        if not deliveries and not self._late:
            if trying and not self._stopping.is_set():
                self._worked()
            return
        self.sending, self._held = True, [*self._held, *deliveries]
        if self._stopping.is_set():
            results: Sequence[Result | Future[Result]] = [Unsent("the process ends")] * len(deliveries)
        else:
            results = self._send(self._sink, deliveries) if deliveries else ()
        answered: list[tuple[Try, Result]] = []
        for delivery, result in zip(deliveries, results, strict=True):
            each = Try(delivery, self._taken)
            if isinstance(result, Future):
                self._late[result] = each
            else:
                answered.append((each, result))
        self._settle(answered)

    def _most(self, trying: bool) -> int:
        """The tasks that may be on their way, or wait for the answers of others."""
        batch = BATCH if self._sink is None else self._sink.batch
        return min(TRIED, batch) if trying else batch

    def _new_sink(self) -> Sink:
        """The sink of the route. Raises what is wrong with its URL in this process."""
        return sink_of(self.route) if self.function is None else FunctionSink(self.function)

    def _send(self, sink: Sink, deliveries: list[Delivery]) -> Sequence[Result | Future[Result]]:
        batch = deliveries if sink.takes_deliveries else [_message(delivery) for delivery in deliveries]
        try:
            results = sink.send(batch)  # type: ignore[arg-type]  # a function's deliveries
            if len(results) != len(batch):
                raise ValueError(f"{len(results)} results for {len(batch)} messages")
        except Exception as exc:  # noqa: BLE001  as above
            results = [Unsent(_text(exc))] * len(batch)
        return results

    def _settle(self, answered: list[tuple[Try, Result]]) -> None:
        """Settles what was sent by what became of it, and moves the circuit."""
        answered = [*self._undecided, *answered]
        answered += [(self._late.pop(future), _answer(future)) for future in list(self._late) if future.done()]
        self._taken += sum(isinstance(result, Sent | Refused) for _, result in answered)
        alone = {each.delivery.id for each, result in answered if isinstance(result, Failed) and self._alone(each)}
        if self._late:
            self._undecided = [(each, result) for each, result in answered if each.delivery.id in alone]
            answered = [(each, result) for each, result in answered if each.delivery.id not in alone]
        else:
            self._undecided = []
        if alone <= self._culprits.keys() and not any(isinstance(result, Unsent) for _, result in answered):
            alone = set()
        try:
            self._settle_decided(answered, alone)
        finally:
            self._held = [each.delivery for each in (*self._late.values(), *(each for each, _ in self._undecided))]
            self.sending = bool(self._held)

    def _alone(self, one: Try) -> bool:
        """True if the sink has taken no task since this one was sent."""
        return self._taken == one.taken

    def _settle_decided(self, answered: Sequence[tuple[Try, Result]], alone: set[str]) -> None:
        """``alone``: the ids of tasks that failed while no other was taken: it may be the sink that is down."""
        settlements: defaultdict[int, tuple[list[Delivery], list[OtherSettlement]]] = defaultdict(lambda: ([], []))
        down: Unsent | None = None
        retried: list[str] = []
        for (delivery, _), result in answered:
            acks, others = settlements[delivery.shard]
            id, token = delivery.id, delivery.token
            match result:
                case Sent():
                    self._sent += 1
                    acks.append(delivery)
                    self._culprits.pop(id, None)
                    continue
                case Refused(reason):
                    self._buried += 1
                    log.warning("task %s is refused by %s, and buried: %s", id, self.route.shown, reason)
                    others.append(SettleBury(id, token, reason_text(reason)))
                case Failed(reason) if id not in alone:
                    assert self._sink is not None, "it has answered"
                    pause = delay_ms(self._sink.backoff, delivery.attempt)
                    others.append(SettleRetry(id, token, pause, reason_text(reason), self._sink.max_attempts))
                    retried.append(id)
                case Failed(reason):
                    down = down or Unsent(reason)
                    others.append(SettleGiveBack(id, token))
                case Unsent():
                    down = result if down is None or result.again_s > down.again_s else down
                    others.append(SettleGiveBack(id, token))
            self._failed += 1
        self._culprits |= dict.fromkeys(retried)
        while len(self._culprits) > CULPRITS:
            del self._culprits[next(iter(self._culprits))]
        if down is not None:
            if not self._stopping.is_set():
                self._down(down.reason, down.again_s)
        elif answered and not self._circuit.pause_s():  # what was sent before it opened does not close it
            self._worked()
        while settlements:
            try:
                statuses = run(self._driver, settle(self._claims, settlements))
            except ShardqError as exc:
                # What the sink has must be acknowledged, or it is sent again: leases that are over answer "lost".
                if self._stopping.is_set():
                    log.warning("%d tasks of topic %r could not be settled: %s", len(answered), self.topic, exc)
                    return
                self._note_engine_fault(exc)
            else:
                dead = [id for id, status in statuses.items() if status == "dead"]
                self._buried += len(dead)
                self._retried += len(retried) - len(dead)
                break

    def _down(self, reason: str, again_s: float = 0.0) -> None:
        """Opens the circuit, and connects anew for the next try."""
        if not self._circuit.error:
            text = "topic %r can't be forwarded to %s, trying again; its tasks wait: %s"
            log.error(text, self.topic, self.route.named, reason, extra={"topic": self.topic})
        self._circuit.failed(reason, again_s)
        if not self._late:
            self._close()

    def _worked(self) -> None:
        if self._circuit.error:
            log.warning("topic %r is forwarded to %s again", self.topic, self.route.named, extra={"topic": self.topic})
        self._circuit.worked()

    def _close(self) -> None:
        self._open = False
        if self._sink is not None:
            try:
                self._sink.close()
            except Exception as exc:  # noqa: BLE001  it is lost already
                log.debug("closing %s failed: %s", self.route.shown, exc)


def _message(delivery: Delivery) -> Message:
    return Message(
        id=delivery.id,
        topic=delivery.topic,
        payload=delivery.payload.data,
        codec=delivery.payload.codec,
        headers=delivery.headers,
        attempt=delivery.attempt,
    )


def _answer(future: Future[Result]) -> Result:
    """The result of a message that has one."""
    exc = future.exception()
    return future.result() if exc is None else Failed(_text(exc))


def _text(exc: BaseException) -> str:
    """One line; errors of clients may have no text."""
    text = str(exc).strip()
    return f"{type(exc).__name__}: {text}" if text else reason_of(exc).splitlines()[-1]
