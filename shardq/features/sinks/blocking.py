"""The handler of a sink that blocks: a batch at a time, in any thread.

A batch that came to nothing as a whole, maybe for one of its messages, is sent one by one, up to the first task that
fails alone: a suspect. From then on that is sent alone, and another one right after it. If the suspect fails again, and
the other is taken, it is the suspect's own failure.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from shardq.core.model.task import Delivery
from shardq.delivery.batch import Batch
from shardq.delivery.handler import NotBegun
from shardq.features.sinks.base import Failed, Refused, Result, Sent, Sink, Unsent, checked
from shardq.features.sinks.gate import Gate
from shardq.features.sinks.handling import NOT_TRIED, Decided, SinkHandler, Verdict, message_of, text_of

log: logging.Logger = logging.getLogger("shardq.sinks")

NAMES_S = 5.0
"""How long names are looked up."""

SUSPECTS = 10_000
"""The tasks whose failures alone are remembered."""


class ThreadedSink(SinkHandler):
    """One that blocks: a batch at a time, in any thread."""

    is_coroutine = False

    def __init__(self, sink: Sink, gate: Gate, **how: Any) -> None:
        super().__init__(sink, gate, **how)
        self._sink = sink
        self._is_busy = False
        """True while a call runs."""
        self._suspects: dict[str, None] = {}
        """The ids of tasks that failed alone, the oldest first."""

    @property
    def _is_stray(self) -> bool:
        return self._is_busy and not self.room.running

    def _has_room(self) -> int:
        return self._size if self.room.has_room(1 - self.room.running) else 0

    def interrupt(self) -> None:
        self._sink.interrupt()

    def disconnect(self) -> None:
        """Disconnects, if it still has nothing to send: others need the connection more."""
        if not self.room.tasks and not self._is_busy:
            self._is_busy = True
            try:
                self._close()
            finally:
                self._is_busy = False
                self.room.freed()

    def run(self, batch: Batch[Any]) -> list[Decided] | None:
        deliveries, gate = list(batch), self.gate
        if self._is_busy or self._is_ending or self._is_over() or gate.pause_s:
            return [NotBegun()] * len(deliveries)
        self._is_busy = True
        try:
            try:
                self._opened()
            except BaseException as exc:  # noqa: BLE001  each client has errors of its own
                self._is_down(text_of(exc))
                return [NotBegun()] * len(deliveries)
            before = gate.taken
            results = self._send(deliveries, trying=gate.is_trying)
            return self._decided(deliveries, results, took=gate.taken != before)
        finally:
            self._is_busy = False
            if not self.room.running:  # it was ended over its head
                self.room.freed()

    def _decided(
        self, deliveries: Sequence[Delivery], results: Sequence[Result], *, took: bool
    ) -> list[Decided] | None:
        """``took``: the sink has taken one of these, so a failure is the task's own. Returns None if all are done."""
        if all(isinstance(result, Sent) for result in results):
            self.gate.counts["sent"] += len(results)
            self.gate.works()
            return None
        asked = [result for result in results if isinstance(result, Unsent) and result is not NOT_TRIED]
        down = max(asked, key=lambda result: result.again_s, default=None)
        failed = [(d, r) for d, r in zip(deliveries, results, strict=True) if isinstance(r, Failed)]
        decided: Sequence[Verdict] = results
        if failed and not took:
            first = failed[0][1]
            if self._counts_outages:
                down = down or Unsent(first.reason, first.again_s)
            elif down is not None or not all(delivery.failures for delivery, _ in failed):
                down = down or Unsent(first.reason)
                decided = [Unsent(r.reason) if isinstance(r, Failed) else r for r in results]
        verdicts = [self._verdict(each, result) for each, result in zip(deliveries, decided, strict=True)]
        if down is None:
            self.gate.works()
        elif not self._is_ending:
            self._is_down(down.reason, down.again_s)
        return verdicts

    def _send(self, deliveries: Sequence[Delivery], *, trying: bool) -> list[Result]:
        """Sends what is not suspect together, and suspects alone. Returns the result of each."""
        results: dict[str, Result] = dict.fromkeys([each.id for each in deliveries], NOT_TRIED)
        if self._try(results, deliveries, trying=trying):
            for id, result in results.items():
                if isinstance(result, Unsent) and not result.again_s:
                    results[id] = NOT_TRIED
        return list(results.values())

    def _try(self, results: dict[str, Result], deliveries: Sequence[Delivery], *, trying: bool) -> bool:
        """Notes a result for each task that it sends. Returns True if the sink has taken one."""
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

    def _try_together(self, results: dict[str, Result], rest: list[Delivery], took: bool) -> tuple[bool, bool]:
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

    def _try_alone(self, results: dict[str, Result], alone: list[Delivery], trying: bool) -> bool:
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
            if isinstance(result, Unsent) and (others_go or (suspect.failures and not trying)):
                results[suspect.id] = Failed(result.reason)
            return took or others_go
        return took

    def _are_taken(self, results: dict[str, Result], some: list[Delivery]) -> bool:
        """Sends these together. Returns True if the sink has taken one."""
        answers = self._answers(some)
        results.update(zip([each.id for each in some], answers, strict=True))
        taken = sum(isinstance(answer, Sent | Refused) for answer in answers)
        self.gate.taken += taken
        if taken:
            if len(some) == 1:
                self._suspects.pop(some[0].id, None)
        elif len(some) == 1:
            self._suspects[some[0].id] = None
            if len(self._suspects) > SUSPECTS:
                del self._suspects[next(iter(self._suspects))]
        return taken > 0

    def _answers(self, some: list[Delivery]) -> Sequence[Result]:
        """The results of one send; on a new connection where the one before failed."""
        if self._is_ending:
            return [Unsent("the process ends")] * len(some)
        try:
            sink = self._opened()
            results = checked(sink, sink.send([message_of(delivery) for delivery in some]), len(some))
        except BaseException as exc:  # noqa: BLE001  as above
            results = [Unsent(text_of(exc))] * len(some)
        if any(isinstance(result, Unsent) for result in results):
            self._close()
        return results

    # ---- the connection

    def _opened(self) -> Sink:
        """The sink, open. Raises what is wrong with its URL in this process, or with the other side."""
        if not self.is_open:
            sink = self._anew()  # secrets may have changed since it was closed
            assert isinstance(sink, Sink), "it is made of the same URL"
            self._sink = sink
            sink.check_names(NAMES_S)
            sink.open()
            self.is_open = True
        return self._sink

    def _is_down(self, reason: str, again_s: float = 0.0) -> None:
        """Opens the circuit, and connects anew for the next try."""
        self.gate.is_down(reason, again_s)
        self._close()

    def _close(self) -> None:
        self.is_open = False
        try:
            self._sink.close()
        except Exception as exc:  # noqa: BLE001  it is lost already
            log.debug("closing %s failed: %s", self.gate.route.shown, exc)
