"""The sender of one forwarded topic in one process: claims its tasks, hands them to the sink, settles them by its
results. ``senders`` makes it for the first task, and stops it. Its turns have threads of the ``pool``; while it waits
for tasks, ``lookout`` looks for them.

It is a consumer like any other. Between the sink's answer and the ack lies the only moment in which a crash sends a
task twice; its id goes along, so that the other side can tell.

While the sink is down nothing is claimed: tasks stay ready. What was claimed is given back, which counts no attempt. A
task's own failure is told from the sink's by other tasks: where the sink took one meanwhile, the failure is an attempt,
retried with backoff and dead in the end. From then on a failure of this task is its own also when it is sent alone.

A batch that came to nothing as a whole, maybe for one of its messages, is sent one by one, up to the first task that
fails alone: a suspect. From then on that is sent alone, and another one right after it. If the suspect fails again, and
the other is taken, it is the suspect's own failure.

The futures of a sink that sends several messages at a time are settled each when it is there, and others take its
place: a slow answer holds up its own task alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from shardq.core.calls.consume import OtherSettlement, SettleBury, SettleGiveBack, SettleRetry
from shardq.core.consumer.claim_state import CONTENDED_S, ClaimNotes, Claims
from shardq.core.consumer.claiming import claim
from shardq.core.consumer.policy import Bury, Retry, Snooze, delay_ms, reason_of
from shardq.core.consumer.settling import noted, settle, settlement_after
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.report import SinkStats
from shardq.core.layout.topology import Route
from shardq.core.model.checks import reason_text
from shardq.core.model.task import Delivery
from shardq.core.operation import run
from shardq.errors import ShardqError
from shardq.features.sinks import base
from shardq.features.sinks.base import BATCH, Failed, Message, Refused, Sent, Unsent
from shardq.features.sinks.egress import Egress
from shardq.features.sinks.in_loop import InLoop, Verdict
from shardq.features.sinks.lookout import Lookout
from shardq.features.sinks.pool import Pool, PooledLoop
from shardq.features.sinks.registry import sink_of

log: logging.Logger = logging.getLogger("shardq.sinks")

NOT_TRIED = Unsent("the sink was not asked")
"""The result of a task that is given back, and says nothing of the sink."""

Results = dict[str, Verdict | Future[Verdict]]
"""Id → what became of the task; a Future if the sink will say it later."""

LEASE_S = 15.0
"""Leases are extended while a batch is on its way, so this is how long the tasks of a sender that was killed wait."""

TRIED = 10
"""Tasks with which a sink that was down is tried."""

TRYING_S = 1.0
"""How long to wait for tasks to try it with; if there are none, nothing is wrong any more."""

CALL_TIMEOUT_S = 5.0
GATHERED_S = 0.02
"""Answers that come within this time are settled by one call."""

CULPRITS = 10_000
"""The tasks whose own failures a sender remembers; likewise suspects."""


class Try(NamedTuple):
    """One task that was handed to the sink, and the number of tasks that the sink had taken before."""

    delivery: Delivery
    taken: int


class Sender:
    """Sends the tasks of one topic to one sink."""

    def __init__(
        self,
        topic: str,
        route: Route,
        driver: Driver,
        claims: Claims,
        lookout: Lookout,
        pool: Pool,
        egress: Egress,
    ) -> None:
        self.topic = topic
        self.route = route
        self._egress = egress
        self._driver = driver
        self._claims = claims
        self._lookout = lookout
        self._pool = pool
        self._circuit = base.Circuit()
        self._sink: base.SinkBase | None = None
        self._link: base.Sink | InLoop | None = None
        """The sink, as it is called."""
        self._open = False
        self.held: Sequence[Delivery] = ()
        """The deliveries that are claimed and not settled."""
        self._late: dict[Future[Verdict], Try] = {}
        """The tries whose answers are to come, or have come and were not looked at."""
        self._unanswered = 0
        """The tries whose answers are to come."""
        self._lock = threading.Lock()
        """Held while that changes."""
        self._found_nothing = 0
        """Claims in a row that gave nothing."""
        self._trying_until: float | None = None
        """Until when tasks are waited for, to try with them a sink that was down."""
        self._answered: list[tuple[Try, Verdict]] = []
        """Answers that are not settled."""
        self._undecided: list[tuple[Try, Verdict]] = []
        """Failures that others on their way will explain: they are the task's own if one of those is taken."""
        self._taken = 0
        """The tasks that the sink has taken, or refused for good."""
        self._culprits: dict[str, None] = {}
        """The ids of tasks that failed while others were taken, the oldest first."""
        self._suspects: dict[str, None] = {}
        """The ids of tasks that failed alone, the oldest first, of a sink that answers at once."""
        self.sending: bool = False
        """True while a batch is on its way, and until it is settled."""
        self._settlements: dict[int, tuple[list[Delivery], list[OtherSettlement]]] = {}
        """Shard → what is to be settled there: while the engine's servers fail, what the last step left."""
        self._retrying = 0
        """The retries among that."""
        self._stopping = threading.Event()
        self._counts = dict.fromkeys(("sent", "failed", "retried", "buried"), 0)
        self.loop: PooledLoop = PooledLoop(
            pool,
            f"shardq-sink-{topic or 'default'}",
            self._step,
            log,
            fails=f"tasks of topic {topic!r} can't be claimed, sent or settled, trying again",
            works=f"tasks of topic {topic!r} are claimed, sent and settled again",
            pause_s=self._circuit.pause_s,
            failed=self._step_failed,
            ended=self._close,
        )

    def __repr__(self) -> str:
        return f"<Sender of {self.topic!r} to {self.route.shown}: {self._circuit.state}, {self._counts['sent']} sent>"

    # ---- for others

    def stop(self) -> None:
        """Tells it to end, when the batch on its way is settled."""
        self._stopping.set()
        self.loop.wake()

    def interrupt(self) -> None:
        """Ends a send that takes too long; the tasks are sent again by another process."""
        if (link := self._link) is not None:
            link.interrupt()

    def disconnect(self) -> None:
        """Disconnects its sink, if it still has nothing to send: others need the connection more."""
        self.loop.between_turns(self._close)

    def stats(self) -> SinkStats:
        state, error = self._circuit.state, self._circuit.error
        return SinkStats(topic=self.topic, to=self.route.shown, circuit=state, error=error, **self._counts)

    # ---- the loop

    def _step_failed(self, exc: BaseException) -> bool:
        if not isinstance(exc, ShardqError):
            self._circuit.failed(_text(exc))
        return self._stopping.is_set()

    def _step(self) -> float | None:
        """Sends what there is room for, and settles what has an answer. Returns when to come again; None: when there
        are tasks, or answers.
        """
        if not self._stopping.is_set():
            self._lookout.leave(self.topic)
            if self._stopping.is_set():  # another sender may have the topic now
                self._lookout.look_at([self.topic])
        if self._settlements:
            self._send_settlements()
        if self._late:
            self._settle()
        if self._stopping.is_set():
            if not self._late:
                self.loop.stop()
            return None
        pause, trying = self._circuit.pause_s(), self._circuit.state != "closed"
        if self._late and (pause or 2 * len(self.held) > self._most(trying)):
            return None
        if pause:
            self.loop.tells = False
            return pause
        try:
            self._opened()
        except BaseException as exc:  # noqa: BLE001  each client has errors of its own
            self._down(_text(exc))
            return 0.0
        deliveries = self._claim(self._most(trying) - len(self.held))
        if not deliveries:
            return self._nothing_found(trying=trying)
        self._found_nothing, self._trying_until = 0, None
        self.sending, self.held = True, [*self.held, *deliveries]
        self._collect()
        tries = [Try(delivery, self._taken) for delivery in deliveries]
        for each, result in zip(tries, self._send(deliveries, trying=trying), strict=True):
            if isinstance(result, Future):
                self._answers_later(result, each)
            else:
                self._note(each, result)
        self._settle()
        return 0.0

    def _claim(self, most: int) -> list[Delivery]:
        notes = ClaimNotes()
        steps = claim(self._claims, notes, most, self._claims.cache.topology.span())
        return run(self._driver, steps, self._driver.settings.timeout)

    def _nothing_found(self, *, trying: bool) -> float | None:
        """Has tasks looked for. Returns when to come again nevertheless."""
        now = time.monotonic()
        again_s = None
        if (at := self._claims.limiter.denied().get(self.topic, 0.0)) > now:
            self._lookout.await_permits(self.topic)
            again_s = at - now
        else:
            self._found_nothing += 1
            self._lookout.look_at([self.topic], after_s=0.0 if self._found_nothing == 1 else CONTENDED_S)
        if trying and not self._late:
            self._trying_until = self._trying_until or now + TRYING_S
            if now < self._trying_until:
                self.loop.tells = False
                return min(again_s or TRYING_S, self._trying_until - now)
            self._trying_until = None
            self._worked()
        if self._open and not self.sending:
            self._lookout.rests(self)
        return again_s

    def _answers_later(self, future: Future[Verdict], each: Try) -> None:
        with self._lock:
            self._unanswered += 1
        self._late[future] = each
        future.add_done_callback(self._answer_came)

    def _answer_came(self, _: Future[Verdict]) -> None:
        """Has answers settled that came together. In the sink's thread."""
        with self._lock:
            self._unanswered -= 1
        self.loop.wake(GATHERED_S if self._unanswered else 0.0)

    def _most(self, trying: bool) -> int:
        """The tasks that may be on their way, or wait for the answers of others."""
        batch = BATCH if self._sink is None else self._sink.batch
        return min(TRIED, batch) if trying else batch

    def _opened(self) -> base.Sink | InLoop:
        """The sink of the route, open. Raises what is wrong with its URL in this process, or with the other side."""
        if self._open:
            assert self._link is not None, "it is open"
            return self._link
        # secrets may have changed since it was closed
        sink = sink_of(self.route, self._egress, self._sink)
        if sink is not self._sink:
            self._sink, self._link = sink, InLoop(sink) if isinstance(sink, base.AsyncSink) else sink  # type: ignore[assignment]
        assert self._link is not None
        if isinstance(sink, base.Sink):
            sink.check_names(CALL_TIMEOUT_S)
        if sink.max_attempts is not None:
            self._claims.topic_attempts = {self.topic: sink.max_attempts}
        self._link.open()
        self._open = True
        return self._link

    def _send(self, deliveries: list[Delivery], *, trying: bool) -> list[Verdict | Future[Verdict]]:
        """Sends what is not suspect together, and suspects alone. Returns the result of each."""
        results: Results = dict.fromkeys([each.id for each in deliveries], NOT_TRIED)
        if self._try(results, deliveries, trying=trying):
            for id, result in results.items():
                if isinstance(result, Unsent) and not result.again_s:
                    results[id] = NOT_TRIED
        return list(results.values())

    def _try(self, results: Results, deliveries: list[Delivery], *, trying: bool) -> bool:
        """Notes a result for each task that it sends. Returns True if the sink has taken one, or will answer later."""
        others = [each for each in deliveries if each.id not in self._suspects]
        suspects = [each for each in deliveries if each.id in self._suspects]
        witness = [others.pop()] if suspects and others else []
        first, rest = (others[:1], others[1:]) if trying else ([], others)
        took, goes_on = bool(first) and self._are_taken(results, first), True
        if first and not took:
            return False
        if rest:
            took, goes_on = self._try_together(results, rest, took)
        return (goes_on and self._try_alone(results, suspects + witness, trying)) or took

    def _try_together(self, results: Results, rest: list[Delivery], took: bool) -> tuple[bool, bool]:
        """Sends tasks together; if some come to nothing, also one by one, up to the one that fails alone. Returns if
        the sink has taken one by now, and if suspects may be sent.
        """
        took = self._are_taken(results, rest) or took
        unsent = [result for result in results.values() if isinstance(result, Unsent) and result is not NOT_TRIED]
        if any(result.again_s for result in unsent):
            return took, False
        for each in rest if unsent and len(rest) > 1 else ():
            if isinstance(results[each.id], Unsent):
                took = self._are_taken(results, [each]) or took
                if not took or isinstance(results[each.id], Unsent):
                    break
        return took, took

    def _try_alone(self, results: Results, alone: list[Delivery], trying: bool) -> bool:
        """Sends suspects one by one, up to one that fails, and another task right after that: if it goes through, the
        failure is the suspect's own.
        """
        took = False
        while alone:
            suspect = alone.pop(0)
            if self._are_taken(results, [suspect]):
                took = True
                continue
            result = results[suspect.id]
            others_go = bool(alone) and self._are_taken(results, [alone.pop()])
            if isinstance(result, Unsent) and (others_go or (suspect.id in self._culprits and not trying)):
                results[suspect.id] = Failed(result.reason)
            return took or others_go
        return took

    def _are_taken(self, results: Results, some: list[Delivery]) -> bool:
        """Sends these together. Returns True if the sink has taken one, or will answer later."""
        answers = self._answers(some)
        results.update(zip([each.id for each in some], answers, strict=True))
        if any(not isinstance(answer, Failed | Unsent) for answer in answers):
            return True
        if len(some) == 1:
            _remember(self._suspects, [some[0].id])
        return False

    def _answers(self, some: list[Delivery]) -> Sequence[Verdict | Future[Verdict]]:
        """The results of one send; on a new connection where the one before failed."""
        if self._stopping.is_set():
            return [Unsent("the process ends")] * len(some)
        try:
            link, messages = self._opened(), [_message(delivery) for delivery in some]
            results: Sequence[Verdict | Future[Verdict]] = (
                link.send(messages) if isinstance(link, InLoop) else base.checked(link, link.send(messages), len(some))
            )
        except BaseException as exc:  # noqa: BLE001  as above
            results = [Unsent(_text(exc))] * len(some)
        if any(isinstance(result, Unsent) for result in results) and not self._late:
            self._close()
        return results

    def _collect(self) -> None:
        """Takes the answers that have come: what is sent from now on was not sent when these tasks were taken."""
        assert self._sink is not None, "it was asked"
        for future in [each for each in self._late if each.done()]:
            try:
                found = future.result()
                result = found if isinstance(found, Bury | Retry | Snooze) else base.as_result(self._sink, found)
            except BaseException as exc:  # noqa: BLE001  as above; a future may have been cancelled, too
                result = Failed(_text(exc))
            self._note(self._late.pop(future), result)

    def _note(self, each: Try, result: Verdict) -> None:
        self._answered.append((each, result))
        self._taken += isinstance(result, Sent | Refused | Bury | Retry | Snooze)

    def _settle(self) -> None:
        """Settles what was sent by what became of it, and moves the circuit."""
        self._collect()
        answered, self._answered = [*self._undecided, *self._answered], []
        decided: list[tuple[Try, Verdict]] = []
        alone: list[tuple[Try, Verdict]] = []
        assert self._sink is not None, "it was asked"
        outage: Unsent | None = None
        for each, result in answered:
            if not isinstance(result, Failed) or each.taken != self._taken:
                decided.append((each, result))
            elif self._sink.counts_outages:
                decided.append((each, result))
                if not self._late:
                    outage = Unsent(result.reason, result.again_s)
            else:
                alone.append((each, result))
        self._undecided, alone = (alone, []) if self._late else ([], alone)
        down = any(isinstance(result, Unsent) and result is not NOT_TRIED for _, result in decided)
        ids = {each.delivery.id for each, _ in alone}
        if ids <= self._culprits.keys() and not down:
            ids = set()
        self._decide([*decided, *alone], ids, outage)
        self._send_settlements()

    def _decide(self, answered: Sequence[tuple[Try, Verdict]], alone: set[str], outage: Unsent | None) -> None:
        """``alone``: the ids of tasks that failed while no other was taken: it may be the sink that is down.
        ``outage``: the same of those whose attempts count nevertheless.
        """
        settlements: defaultdict[int, tuple[list[Delivery], list[OtherSettlement]]] = defaultdict(lambda: ([], []))
        down = outage
        retried: list[str] = []
        for (delivery, _), result in answered:
            acks, others = settlements[delivery.shard]
            id, token = delivery.id, delivery.token
            match result:
                case Sent():
                    self._counts["sent"] += 1
                    acks.append(delivery)
                    self._culprits.pop(id, None)
                    self._suspects.pop(id, None)
                    continue
                case Refused(reason):
                    self._counts["buried"] += 1
                    log.warning("task %s is refused by %s, and buried: %s", id, self.route.shown, reason)
                    others.append(noted(SettleBury(id, token, reason_text(reason)), delivery.past))
                case Bury() | Retry() | Snooze():
                    assert self._sink is not None, "it has answered"
                    backoff, most = self._sink.backoff, self._sink.max_attempts
                    settlement = settlement_after(delivery, result, None, lambda n, b=backoff: delay_ms(b, n), most)  # type: ignore[misc]
                    others.append(noted(settlement, delivery.past))
                    retried += [id] * isinstance(result, Retry)
                    self._counts["buried"] += isinstance(result, Bury)
                case Failed(reason, again_s) if id not in alone:
                    assert self._sink is not None, "it has answered"
                    pause = max(delay_ms(self._sink.backoff, delivery.attempt), int(min(again_s, base.ASKED_S) * 1000))
                    retry = SettleRetry(id, token, pause, reason_text(reason), self._sink.max_attempts)
                    others.append(noted(retry, delivery.past))
                    retried.append(id)
                case Failed(reason):
                    down = down or Unsent(reason)
                    others.append(SettleGiveBack(id, token))
                case Unsent():
                    if result is not NOT_TRIED:
                        down = result if down is None or result.again_s > down.again_s else down
                    others.append(SettleGiveBack(id, token))
            self._counts["failed"] += result is not NOT_TRIED
        _remember(self._culprits, retried)
        if down is not None:
            if not self._stopping.is_set():
                self._down(down.reason, down.again_s)
        elif answered and not self._circuit.pause_s():  # what was sent before it opened does not close it
            self._worked()
        self._settlements = dict(settlements)
        self._retrying = len(retried)

    def _send_settlements(self) -> None:
        """Sends what is to be settled. What the sink has must be acknowledged, or it is sent again: so an error of the
        engine's servers keeps it for the next step, and leases that are over answer "lost".
        """
        settlements, self._settlements = self._settlements, {}
        try:
            statuses = run(self._driver, settle(self._claims, settlements)) if settlements else {}
        except ShardqError as exc:
            if not self._stopping.is_set():
                self._settlements = settlements
                raise
            log.warning("tasks of topic %r could not be settled: %s", self.topic, exc)
        else:
            dead = sum(status == "dead" for status in statuses.values())
            self._counts["buried"] += dead
            self._counts["retried"] += self._retrying - dead
        finally:
            if not self._settlements:
                tries = [*self._late.values(), *(each for each, _ in self._undecided)]
                self.held = [each.delivery for each in tries]
                self.sending = bool(self.held)

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
        if self._link is not None:
            try:
                self._link.close()
            except Exception as exc:  # noqa: BLE001  it is lost already
                log.debug("closing %s failed: %s", self.route.shown, exc)


def _remember(ids: dict[str, None], more: Sequence[str]) -> None:
    ids |= dict.fromkeys(more)
    while len(ids) > CULPRITS:
        del ids[next(iter(ids))]


def _message(delivery: Delivery) -> Message:
    return Message(
        id=delivery.id,
        topic=delivery.topic,
        payload=delivery.payload.data,
        codec=delivery.payload.codec,
        headers=delivery.headers,
        attempt=delivery.attempt,
        failures=delivery.failures,
    )


def _text(exc: BaseException) -> str:
    """One line; errors of clients may have no text."""
    text = str(exc).strip()
    if isinstance(exc, ShardqError):
        return text
    return f"{type(exc).__name__}: {text}" if text else reason_of(exc).splitlines()[-1]
