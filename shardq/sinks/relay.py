"""The relay of one forwarded topic in one process: claims its tasks, hands them to the sink, settles them by its
results. A thread of its own; ``relays`` starts and stops it.

    claim → send → ack

It is a consumer like any other: relays of several processes share the tasks, a pause and limits hold, and what a relay
that was killed had claimed comes back when its leases run out. Between the sink's answer and the ack lies the only
moment in which a crash sends a task twice; its id goes along, so that the other side can tell.

While the sink is down nothing is claimed: tasks stay ready. What was claimed is given back, which counts no attempt. A
task's own failure is told from the sink's by the rest of its batch: where the sink took others, the failure is an
attempt, retried with backoff and dead in the end.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

from shardq.calls.consume import OtherSettlement, SettleBury, SettleGiveBack, SettleRetry
from shardq.consumer import Consumer
from shardq.consumer.claims import Claims
from shardq.consumer.policy import DEFAULT as BACKOFF
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
from shardq.sinks.base import Failed, Message, Refused, Result, Sent, Sink, Unsent
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
            while not self._stopping.is_set():
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
        """Sends one batch."""
        if self._stopping.wait(self._circuit.pause_s()):
            return
        if not self._open:
            try:
                self._sink = self._sink or self._new_sink()
                self._sink.open()
                self._open = True
            except Exception as exc:  # noqa: BLE001  each client has errors of its own
                self._down(_text(exc))
                return
        assert self._sink is not None, "it is open"
        trying = self._circuit.state != "closed"
        size, wait = (TRIED, TRYING_S) if trying else (self._sink.batch, WAIT_S)
        deliveries = self._consumer.claim(min(size, self._sink.batch), wait=wait)
        if not deliveries:
            if trying and not self._stopping.is_set():
                self._worked()
            return
        self.sending, self._held = True, deliveries
        try:
            if self._stopping.is_set():
                self._settle(deliveries, [Unsent("the process ends")] * len(deliveries))
            else:
                self._settle(deliveries, self._send(self._sink, deliveries))
        finally:
            self.sending, self._held = False, ()

    def _new_sink(self) -> Sink:
        """The sink of the route. Raises what is wrong with its URL in this process."""
        return sink_of(self.route) if self.function is None else FunctionSink(self.function)

    def _send(self, sink: Sink, deliveries: list[Delivery]) -> Sequence[Result]:
        batch = deliveries if sink.takes_deliveries else [_message(delivery) for delivery in deliveries]
        try:
            results = sink.send(batch)  # type: ignore[arg-type]  # a function's deliveries
            if len(results) != len(batch):
                raise ValueError(f"{len(results)} results for {len(batch)} messages")
        except Exception as exc:  # noqa: BLE001  as above
            results = [Unsent(_text(exc))] * len(batch)
        return results

    def _settle(self, deliveries: Sequence[Delivery], results: Sequence[Result]) -> None:
        """Settles what was sent by what became of it, and moves the circuit."""
        took_some = any(isinstance(result, Sent | Refused) for result in results)
        settlements: defaultdict[int, tuple[list[Delivery], list[OtherSettlement]]] = defaultdict(lambda: ([], []))
        down: Unsent | None = None
        retried: list[str] = []
        for delivery, result in zip(deliveries, results, strict=True):
            acks, others = settlements[delivery.shard]
            id, token = delivery.id, delivery.token
            match result:
                case Sent():
                    self._sent += 1
                    acks.append(delivery)
                    continue
                case Refused(reason):
                    self._buried += 1
                    log.warning("task %s is refused by %s, and buried: %s", id, self.route.shown, reason)
                    others.append(SettleBury(id, token, reason_text(reason)))
                case Failed(reason) if took_some:
                    pause = delay_ms(BACKOFF, delivery.attempt)
                    others.append(SettleRetry(id, token, pause, reason_text(reason), None))
                    retried.append(id)
                case Failed(reason):
                    down = down or Unsent(reason)
                    others.append(SettleGiveBack(id, token))
                case Unsent():
                    down = result if down is None or result.again_s > down.again_s else down
                    others.append(SettleGiveBack(id, token))
            self._failed += 1
        if down is not None:
            if not self._stopping.is_set():
                self._down(down.reason, down.again_s)
        else:
            self._worked()
        while True:
            try:
                statuses = run(self._driver, settle(self._claims, settlements))
                dead = [id for id, status in statuses.items() if status == "dead"]
                break
            except ShardqError as exc:
                # What the sink has must be acknowledged, or it is sent again: leases that are over answer "lost".
                if self._stopping.is_set():
                    log.warning("%d tasks of topic %r could not be settled: %s", len(deliveries), self.topic, exc)
                    return
                self._note_engine_fault(exc)
        self._buried += len(dead)
        self._retried += len(retried) - len(dead)

    def _down(self, reason: str, again_s: float = 0.0) -> None:
        """Opens the circuit, and connects anew for the next try."""
        if not self._circuit.error:
            text = "topic %r can't be forwarded to %s, trying again; its tasks wait: %s"
            log.error(text, self.topic, self.route.named, reason, extra={"topic": self.topic})
        self._circuit.failed(reason, again_s)
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


def _text(exc: Exception) -> str:
    """One line; errors of clients may have no text."""
    text = str(exc).strip()
    return f"{type(exc).__name__}: {text}" if text else reason_of(exc).splitlines()[-1]
