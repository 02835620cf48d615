"""Durable pushes of one event loop share their barriers: those that wait at the same time go together, and one WAIT, or
WAITAOF, on each node confirms all of them. Called by the engine for asyncio, for tasks that are pushed one by one.

A push goes at once while few are under way; those that come meanwhile wait for the next turn. The barrier is asked
after the write of each, so it says of each what its own would have said. What becomes of one task is told to its caller
alone. An error about the servers, or the engine, is told to all.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shardq.core.model.task import Receipt
from shardq.core.producer.durable import Durability
from shardq.core.producer.gathering import OF_THE_SERVER
from shardq.core.producer.packing import BATCH, CALL_BYTES, Entries
from shardq.errors import DurabilityUnavailable, EngineClosed, ShardqError, Unavailable

AT_ONCE = 4
"""Groups under way. A disk confirms once a second or so: with one group, who comes right after it left would wait for
two of them.
"""

LATE_S = 0.5
"""A push with so much more time than the first of its group waits for the next: it is not ended with that one."""

Outcomes = list[Receipt | ShardqError]


@dataclass(slots=True, eq=False)
class _Push:
    """A push that waits, and its caller."""

    entries: Entries
    deadline: float
    told: asyncio.Future[Receipt]


class SharedBarriers:
    """The durable pushes of one engine in one event loop, of one durability."""

    def __init__(
        self, durability: Durability, together: Callable[[Entries, float, Durability], Awaitable[Outcomes]]
    ) -> None:
        self._durability = durability
        self._together = together
        """Pushes packed tasks, and has them confirmed. Returns what became of each."""
        self._waiting: list[_Push] = []
        self._groups: set[asyncio.Task[None]] = set()

    async def push(self, entries: Entries, deadline: float) -> Receipt:
        """Stores one packed task, and returns when it is confirmed. Raises its own error."""
        loop = asyncio.get_running_loop()
        waiting = _Push(entries, deadline, loop.create_future())
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            loop.call_soon(self._send)  # with what else is pushed in this turn of the loop
        overdue = loop.call_later(max(0.0, deadline - time.monotonic()), self._end, waiting)
        try:
            return await waiting.told
        finally:
            overdue.cancel()
            if waiting in self._waiting:  # cancelled
                self._waiting.remove(waiting)

    def _end(self, waiting: _Push) -> None:
        """Ends a push whose time is over before it was sent."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            why = "its time was over while earlier durable pushes waited for copies; nothing was written"
            waiting.told.set_exception(Unavailable(f"push was not sent: {why}"))

    def _send(self) -> None:
        while self._waiting and len(self._groups) < AT_ONCE:
            group = asyncio.get_running_loop().create_task(self._carry_out(self._taken()))
            self._groups.add(group)
            group.add_done_callback(self._carried_out)

    def _taken(self) -> list[_Push]:
        """The next group: no id twice, as outcomes are told by ids."""
        first = self._waiting[0]
        taken, ids, size = list[_Push](), set[str](), 0
        for each in self._waiting:
            size += each.entries.bytes
            late = each.deadline > first.deadline + LATE_S
            if late or not ids.isdisjoint(each.entries.ids) or (taken and (size > CALL_BYTES or len(taken) == BATCH)):
                break
            taken.append(each)
            ids.update(each.entries.ids)
        del self._waiting[: len(taken)]
        return taken

    def _carried_out(self, group: asyncio.Task[None]) -> None:
        self._groups.discard(group)
        self._send()

    async def _carry_out(self, group: list[_Push]) -> None:
        try:
            outcomes = await self._together(_merged(group), group[0].deadline, self._durability)
        except DurabilityUnavailable as exc:  # nothing is stored; others may go to nodes that can confirm it
            if len(group) == 1:
                _tell(group[0], exc)
            for each in group if len(group) > 1 else ():
                await self._carry_out([each])
        except Exception as exc:  # noqa: BLE001  the callers raise it
            for each in group:  # copies, as each caller that raises an error adds to it
                _tell(each, copy.copy(exc) if isinstance(exc, OF_THE_SERVER) else exc)
        except asyncio.CancelledError:
            for each in group:
                _tell(each, EngineClosed("the event loop has ended while the push was under way: look with get()"))
            raise
        else:
            for each, outcome in zip(group, outcomes, strict=True):
                _tell(each, outcome)


def _merged(group: list[_Push]) -> Entries:
    if len(group) == 1:
        return group[0].entries
    merged = Entries(keyed=any(each.entries.have_keys for each in group))
    for each in group:
        merged.ids += each.entries.ids
        merged.fresh += each.entries.fresh
        merged.unique += each.entries.unique
    return merged


def _tell(push: _Push, outcome: Receipt | Exception) -> None:
    if push.told.done():
        return
    if isinstance(outcome, Receipt):
        push.told.set_result(outcome)
    else:
        push.told.set_exception(outcome)
