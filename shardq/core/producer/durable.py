"""Durable pushes: they return when replicas, or the disk, have confirmed them (WAIT, WAITAOF).

WAIT is about the writes of its own connection, so it is sent on the connection that carried the push. It is about the
last write there, and a push may have written nothing: its task was stored before, by an earlier send or by another
process. So each node that took a push gets one more write before the WAIT. Replication is a stream, and so is the
append-only file: what confirms a later write confirms all before it. A connection that was lost between the push and
the WAIT may have led to another server than the one there now, and confirms nothing. How the disk is asked,
``drivers.disk`` says: some servers answer WAITAOF too early.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeVar, get_args

from shardq.core.calls import node_info
from shardq.core.calls.request import Behind, Call, Command, Missing, Stale
from shardq.core.drivers.disk import synced
from shardq.core.drivers.owned import BorrowedConnections
from shardq.core.drivers.retry import Deadline, Spare
from shardq.core.drivers.sync import Driver
from shardq.core.layout.topology import Stamp
from shardq.core.model.printable import quoted
from shardq.core.model.task import Receipt
from shardq.core.operation import Operation, run
from shardq.core.topology_cache import TopologyCache
from shardq.errors import (
    DurabilityUnavailable,
    InvalidOption,
    NotReplicated,
    PushError,
    ServerFault,
    ShardqError,
    Unanswered,
    Unavailable,
)

K = TypeVar("K")
T = TypeVar("T")
Id = TypeVar("Id", bound=str)

Durability = Literal["replicated", "fsynced"]
DURABILITIES: tuple[Durability, ...] = get_args(Durability)

WAIT_MS = 2000
"""The time that replicas have to confirm. They do in a round trip; a replica that needs longer is no good copy now."""

DISK_S = 5.0
"""The time that a disk has. With everysec it needs one or two seconds, and more when it is busy."""

PUSHES = ("push", "push_unique", "adopt")


def check_durability(durability: str | None) -> None:
    if durability not in (None, *DURABILITIES):
        raise InvalidOption(f"durability={quoted(durability)} is not possible; use 'replicated', 'fsynced', or None")


def push_durably(
    driver: Driver,
    cache: TopologyCache,
    ids: list[str],
    operation: Operation[list[Id]],
    durability: Durability,
    deadline: float,
) -> list[Id]:
    """Carries a push, which returns ids, out before the deadline. Raises NotReplicated when its tasks are stored and
    too few replicas have confirmed it, and DurabilityUnavailable, with nothing stored, when none ever could.
    """
    with driver.borrow(deadline) as loan:
        confirming = Confirming(driver, loan, durability)
        topology = cache.topology
        shards = topology.span() if topology.priors else topology.shards_of(ids)
        slots = {cache.keys(shard).slot for shard in shards}
        for some in driver.slot_groups(sorted(slots)).values():
            confirming.check(some[0])
        receipts = run(confirming, operation, deadline=deadline)
        confirming.wait_for_copies(receipts)
    return receipts


def push_together(
    driver: Driver,
    cache: TopologyCache,
    ids: list[str],
    operation: Operation[list[Receipt]],
    durability: Durability,
    deadline: float,
) -> list[Receipt | ShardqError]:
    """The same for the tasks of several callers, no id of which is there twice. Returns what became of each, in their
    order, once all that is stored was to be confirmed.
    """
    outcomes: list[Receipt | ShardqError] = []

    def stored() -> Operation[list[Receipt]]:
        try:
            outcomes.extend((yield from operation))
        except PushError as exc:
            outcomes.extend(_of_one(exc, id) for id in exc.ids)
        return [each for each in outcomes if isinstance(each, Receipt)]

    try:
        push_durably(driver, cache, ids, stored(), durability, deadline)
    except NotReplicated as exc:
        refusal = _refusal(exc.__cause__)
        return [
            NotReplicated([each], exc.reached, durability, refusal) if isinstance(each, Receipt) else each
            for each in outcomes
        ]
    return outcomes


def _of_one(exc: PushError, id: str) -> Receipt | PushError:
    """What became of one of these tasks."""
    if isinstance(id, Receipt):
        return id
    failed = {id: exc.failed[id]} if id in exc.failed else {}
    return PushError(ids=[id], stored=[], failed=failed, unknown=[] if failed else [id])


def _refusal(cause: BaseException | None) -> str:
    """Why copies can't be asked for; empty if they only did not answer."""
    return "" if cause is None or isinstance(cause, Unavailable | Unanswered) else str(cause)


class Confirming:
    """Carries the calls of one push, in the place of a driver, and has them confirmed."""

    def __init__(self, driver: Driver, loan: BorrowedConnections, durability: Durability) -> None:
        self._driver = driver
        self._loan = loan
        self._durability = durability
        self._wanted: dict[str, int] = {}
        """Node → the replicas that it has."""
        self._pushed: dict[str, tuple[int, Call[object]]] = {}
        """Node → the connection that took its first push, and its last push."""

    def check(self, slot: int) -> None:
        """Asks the slot's master if it has a way to confirm a push. Raises DurabilityUnavailable if it has none."""
        if self._durability == "replicated":
            count = self._loan.call(node_info.replicas(slot))
            if not count:
                raise self._unavailable("has no replica", "add one, or push without durability=")
            self._wanted[self._loan.address] = count
            return
        try:
            self._loan.call(node_info.wait_aof(slot, timeout_ms=1))
        except ServerFault as exc:
            if "appendonly" in str(exc):
                raise self._unavailable(
                    "has no append-only file", "set appendonly yes, or use durability='replicated'"
                ) from exc
            if "unknown command" in str(exc):
                raise self._unavailable(
                    "does not know WAITAOF", "use Redis 7.2 or newer, or Valkey, or durability='replicated'"
                ) from exc
            raise
        self._wanted[self._loan.address] = 1

    def _unavailable(self, why: str, advice: str) -> DurabilityUnavailable:
        return DurabilityUnavailable(
            f"{self._loan.address} {why}, so durability={quoted(self._durability)} is not possible there, and "
            "nothing was "
            f"stored; {advice}"
        )

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        """The loan has the deadline."""
        result: T = self._loan.call(call)
        if isinstance(call, Call) and call.script.name in PUSHES:
            address = self._loan.address
            connection, _ = self._pushed.get(address, (self._loan.connects[address], call))
            self._pushed[address] = connection, call
        return result

    def call_all(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        *,
        timeout: float | None = None,
        deadline: Deadline[K] = None,
        spare: Spare | None = None,
    ) -> Iterator[tuple[K, T | ShardqError]]:
        for key, call in calls:
            try:
                yield key, self.call(call)
            except ShardqError as exc:
                yield key, exc

    def confirm(
        self, seals: Sequence[Call[None]], deadline: float = math.inf, *, disk: bool = False
    ) -> dict[int, str | None]:
        return self._driver.confirm(seals, deadline, disk=disk)

    def wait_for_copies(self, receipts: Sequence[str]) -> None:
        """Waits for the replicas of all nodes that took a push. Raises NotReplicated, with the fewest that any has."""
        missing: int | None = None
        cause: ServerFault | None = None
        for address, (connection, call) in self._pushed.items():
            wanted = self._wanted.get(address, 1)
            try:
                reached = self._reached(call, wanted)
            except ServerFault as exc:
                # It is stored; that it is also elsewhere can't be said.
                reached, cause = 0, exc
            if (self._loan.address, self._loan.connects[address]) != (address, connection):
                reached = 0
            if reached < wanted:
                missing = reached if missing is None else min(reached, missing)
        if missing is not None:
            raise NotReplicated(receipts, missing, self._durability, _refusal(cause)) from cause

    def _reached(self, push: Call[object], wanted: int) -> int:
        slot = push.slot
        epoch = push.words[0]
        assert isinstance(epoch, Stamp | int), "a push begins with its epoch"
        while True:
            try:
                self._loan.call(node_info.seal(push.keys[0], slot, epoch))
                break
            except Stale as exc:
                # Only what this server wrote matters, not where the tasks are now.
                epoch = exc.stamp
            except (Behind, Missing):
                return 0  # it came back older, or with nothing
        # So that the answer comes in time.
        left_s = (self._loan.deadline - time.monotonic()) * 0.9
        if self._durability == "replicated":
            # 0 would be for ever
            return self._loan.call(node_info.wait(slot, wanted, timeout_ms=max(1, min(WAIT_MS, round(left_s * 1000)))))
        return int(self._loan.converse(self._loan.address, synced(min(DISK_S, left_s))) == "synced")
