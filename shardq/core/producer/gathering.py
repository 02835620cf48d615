"""Gathers the pushes of an event loop that are under way at the same time: those for one shard share a script call.

While few are under way each goes alone, at once. With more, the pushes of one turn of the loop leave at its end, in one
call for each shard. Of very many callers who were woken the first half is sent before the others push: from then on the
server works for one half while the other one pushes. No push waits for the answer to another one.

The loop sends, and no caller: an error on a caller's stack, as when that is used up, is not for the tasks of others. A
shared call only stores. Where anything else is answered (the topology is old, an id is taken, the server refuses a
record), each caller goes on alone and learns what became of its own task. An error about the server is told to all.
"""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from shardq.core.calls import by_id
from shardq.core.calls.request import Call, Word
from shardq.core.drivers.routing import CLOSED
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Topology
from shardq.core.model.task import Receipt
from shardq.core.operation import arun
from shardq.core.producer import pushing
from shardq.core.producer.packing import BATCH, CALL_BYTES, FRESH, UNIQUE, Entries, Packer
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import REFUSALS
from shardq.errors import EngineClosed, ReadOnly, ShardqError, Unanswered, Unavailable

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncBegunCall, AsyncDriver

FEW = 8
"""The pushes under way that each have a call of their own; half as many as there are shards, where that is more. So few
hardly ever meet in one shard, and a call for one task costs less than one that is shared by one.
"""

HALF = 32
HALF_OF_A_SHARD = 4
"""The callers, in all and for each shard on average, of a half that is sent before the others push: a call costs as
much as some tasks.
"""

LATE_S = 0.5
"""A push with so much less time than another goes alone: it has waited for the engine to open, or for another store."""

OF_THE_SERVER = (Unavailable, Unanswered, ReadOnly, EngineClosed)
"""Errors about the server. After any other each caller tries alone, as one task may be to blame for all."""


class Gatherer:
    """The pushes of one engine in one event loop."""

    def __init__(self, driver: AsyncDriver, cache: TopologyCache, packer: Packer) -> None:
        self._driver = driver
        self._cache = cache
        self._packer = packer
        self._latest = 0.0
        """The latest deadline of a push."""
        self._under_way = 0
        """The number of pushes that have not returned."""
        self._gathered: dict[tuple[int, int], SharedCall] = {}
        """Shard and words of a task → the call that is filled in this turn of the loop."""
        self._full: list[SharedCall] = []
        """The calls of this turn that have no room left."""
        self._woken = 0
        """The callers who were told their outcome since the last half. Most push again in the next turn."""
        self._sent: set[SharedCall] = set()

    async def push(self, entries: Entries, deadline: float) -> Receipt:
        """Stores one packed task. Raises its own error as it is."""
        self._driver.check_open()
        topology = self._cache.topology
        if entries.hooked:
            pushing.check_hooked(self._cache, entries.hooked)
        self._under_way += 1
        try:
            # What is pushed first leaves first: in one turn no push goes alone once one was gathered.
            few = not self._gathered and self._under_way <= max(FEW, topology.shards // 2)
            # While tasks move, an id of the caller's own is looked for where it may be.
            # One with less time than others have would take theirs.
            self._latest = max(self._latest, deadline)
            late = deadline < self._latest - LATE_S
            alone = bool(entries.unique and topology.priors)
            if entries.keyed:  # a lane that moves is marked
                alone = alone or bool(topology.priors) or not topology.is_keyed
            if few or late or alone:
                return await self._push_alone(entries, deadline)
            waiting: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
            shared = self._gather(entries, topology, waiting)
            if deadline < shared.deadline:
                shared.deadline = deadline
            try:
                answer = await waiting
            except asyncio.CancelledError:
                shared.leave()
                raise
            if answer is not None:
                receipt = pushing.receipt_of(entries.ids[0], answer)
                self._packer.pushed += 1
                return receipt
            if shared.error is not None:
                # A copy, as each caller that raises an error adds to it.
                own = copy.copy(shared.error) if isinstance(shared.error, ShardqError) else shared.error
                raise own from shared.error.__cause__
            return await self._push_alone(entries, shared.deadline, in_doubt=shared.in_doubt)
        finally:
            self._under_way -= 1

    async def _push_alone(self, entries: Entries, deadline: float, *, in_doubt: bool = False) -> Receipt:
        steps = pushing.push_one(self._cache, self._packer, entries, in_doubt=in_doubt)
        return await arun(self._driver, steps, deadline=deadline)

    def _gather(self, entries: Entries, topology: Topology, waiting: asyncio.Future[str | None]) -> SharedCall:
        """Adds a task to the call of this turn to its shard."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._send_all)
        words = entries.fresh or entries.unique
        shard, width = topology.shard_of(entries.ids[0]), len(words)
        shared = self._gathered.get((shard, width))
        if shared is None or not shared.takes(words, topology):
            fresh = SharedCall(self._cache.keys(shard), width, topology)
            if shared is not None:
                self._full.append(shared)
            shared = self._gathered[shard, width] = fresh
        shared.add(words, waiting)
        return shared

    def _woke(self) -> None:
        """Called for each caller. Sends in the next turn, when these have pushed again, and not those woken later."""
        self._woken += 1
        if self._woken >= self._under_way // 2 >= max(HALF, HALF_OF_A_SHARD * self._cache.topology.shards):
            self._woken = 0
            asyncio.get_running_loop().call_soon(self._send_all)

    def _taken(self) -> list[SharedCall]:
        """Takes the calls of this turn."""
        taken = [*self._full, *self._gathered.values()]
        self._full, self._gathered = [], {}
        return taken

    def _send_all(self) -> None:
        """Called by the loop."""
        calls = [(shared, shared.call()) for shared in self._taken() if shared.drop_cancelled()]
        begun = self._driver.begin_all([(call, shared.deadline) for shared, call in calls])
        for (shared, call), sent in zip(calls, begun, strict=True):
            self._sent.add(shared)
            shared.task = asyncio.get_running_loop().create_task(self._carry_out(shared, call, sent))
            shared.task.add_done_callback(partial(self._carried_out, shared))

    async def _carry_out(
        self, shared: SharedCall, call: Call[list[str]], begun: AsyncBegunCall[list[str]] | None
    ) -> None:
        error: Exception | None = None
        try:
            if begun is None:
                answer = await self._driver.call(call, deadline=shared.deadline)
            else:
                answer = await self._driver.finish(begun)
            self._cache.heard_at = time.monotonic()
            shared.answered(answer, self._woke)
        except REFUSALS:
            shared.in_doubt = call.in_doubt
        except OF_THE_SERVER as exc:
            error = exc
        except ShardqError:
            # some of the tasks with ids of their callers' own may be stored
            shared.in_doubt = call.in_doubt or shared.width == UNIQUE
        except Exception as exc:  # noqa: BLE001  the callers raise it
            error = exc
        shared.end(error)

    def _carried_out(self, shared: SharedCall, task: asyncio.Task[None]) -> None:
        """Tells those who still wait after a cancellation, which may have come before the first step."""
        self._sent.discard(shared)
        shared.end(Unanswered("the push was cancelled with all tasks of its event loop: look with get()"))

    async def close(self) -> None:
        """Ends what is under way, after the driver was closed: all callers are told so."""
        sent = list(self._sent)
        for shared in (*self._taken(), *sent):
            shared.end(EngineClosed(CLOSED))
        tasks = [shared.task for shared in sent if shared.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SharedCall:
    """One call that carries the tasks of several callers to a shard."""

    def __init__(self, keys: ShardKeys, width: int, topology: Topology) -> None:
        self._keys = keys
        self.width = width
        """FRESH or UNIQUE: the script, and the words of a task."""
        self._topology = topology
        """The topology by which the tasks belong to this shard."""
        self._words: list[Word] = []
        self._bytes = 0
        """The bytes of the records."""
        self._waiting: list[asyncio.Future[str | None]] = []
        """The callers, in the order of their tasks. Each gets push_unique's answer for its task, or None."""
        self._is_given_up = self._is_ended = False
        self.error: Exception | None = None
        """Why a caller got None; without it the caller goes on alone."""
        self.in_doubt = False
        """True if those who go on alone must count with this call having been executed."""
        self.deadline: float = math.inf
        """The end of its time, and of those who then go on alone: the earliest of its callers'."""
        self.task: asyncio.Task[None] | None = None
        """Carries it out, once it is sent."""

    def takes(self, words: list[Word], topology: Topology) -> bool:
        """True if there is room for another task."""
        size = self._bytes + len(words[2])  # type: ignore[arg-type]  # the record
        return topology is self._topology and len(self._waiting) < BATCH and size <= CALL_BYTES

    def add(self, words: list[Word], waiting: asyncio.Future[str | None]) -> None:
        # First, as it fails on a stack that is used up: each task has its caller.
        self._waiting.append(waiting)
        self._bytes += len(words[2])  # type: ignore[arg-type]  # the record
        self._words += words

    def leave(self) -> None:
        """Notes that a caller was cancelled. Its task goes with the others; without any caller nothing more is sent."""
        if self.task is not None and not self._is_given_up and all(each.done() for each in reversed(self._waiting)):
            self._is_given_up = True
            self.task.cancel()

    def drop_cancelled(self) -> int:
        """Drops the tasks of callers that were cancelled before anything was sent. Returns how many are left."""
        kept = [place for place, waiting in enumerate(self._waiting) if not waiting.done()]
        if len(kept) < len(self._waiting):
            width = self.width
            self._words = [word for place in kept for word in self._words[place * width : (place + 1) * width]]
            self._waiting = [self._waiting[place] for place in kept]
        return len(kept)

    def call(self) -> Call[list[str]]:
        make = by_id.push if self.width == FRESH else by_id.push_unique
        return make(self._keys, self._topology.stamp, self._words)

    def answered(self, answer: list[str], told: Callable[[], None]) -> None:
        """Tells each caller the outcome of its task. Those who have none go on alone: their ids collided, or are on
        their way to another shard.
        """
        if self.width == FRESH:
            answer = [] if answer else ["pushed"] * len(self._waiting)
        for waiting, outcome in zip(self._waiting, answer, strict=False):
            if outcome != "moving" and not waiting.done():
                waiting.set_result(outcome)
                told()

    def end(self, error: Exception | None) -> None:
        """Wakes up those who have no outcome. What is told first, counts."""
        if self._is_ended:
            return
        self._is_ended, self.error = True, error
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
