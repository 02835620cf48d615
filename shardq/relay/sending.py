"""Sends rows: an operation that carries out commands on different ids, and says what became of each. No I/O.

Every push is sent as after a lost answer: it may have been executed, by the program that stored the row or by an
earlier send. What is stored, or remembered, of those counts as pushed. A cancel or a reschedule is carried out once by
its nonce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from shardq.core.calls import by_id as calls
from shardq.core.calls.by_id import Earlier
from shardq.core.calls.request import Call, Epoch
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import have_keys, lane_of
from shardq.core.model.task import Outcome
from shardq.core.operation import Operation
from shardq.core.producer import commands_by_id, pushing
from shardq.core.producer.commands_by_id import ends_rule
from shardq.core.producer.packing import BATCH, Packer, stamped
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import take_up_keys
from shardq.errors import (
    AccessDenied,
    Conflict,
    EngineClosed,
    ReadOnly,
    ServerFault,
    ShardqError,
    Unanswered,
    Unavailable,
)
from shardq.relay.row import Command, Numbered, entries_of

T = TypeVar("T")

AWAY = (Unavailable, Unanswered, ReadOnly)
"""The errors of servers that can't be reached, or that take no writes: what meets one of them is spooled. But not
TooManyOpenFiles, which is this process's own.
"""


class Servers(Protocol):
    """The servers of the engine, on connections of the mover's own, opened at their first use."""

    def run(
        self,
        make: Callable[[TopologyCache], Operation[T]],
        *,
        timeout: float | None = None,
        deadline: float | None = None,
    ) -> T:
        """Carries out an operation on the present topology. ``timeout`` bounds each trip, the ``deadline`` all."""

    def opened(self) -> tuple[Driver, TopologyCache]:
        """The open driver, and the topology as it is known here."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Results:
    """The result of one layer. What is in neither list waits."""

    done: list[int] = field(default_factory=list)
    failed: list[tuple[int, ShardqError]] = field(default_factory=list)


FAR, KEYED = -1, -2
"""In the place of a shard: the far store; tasks with keys, as this process may not be the first to push one."""


@dataclass(slots=True)
class Failing:
    """The shards that take nothing at the moment, and why. A command whose id may be there waits, and so does every
    later one on that id.
    """

    errors: dict[int, ShardqError] = field(default_factory=dict)

    def concerns(self, cache: TopologyCache, id: str) -> bool:
        if not self.errors:
            return False
        if KEYED in self.errors and lane_of(id) is not None:
            return True
        return any(shard in self.errors for shard in cache.topology.homes(id))

    def judge(self, cache: TopologyCache, row: Numbered, error: ShardqError | None, result: Results) -> None:
        """Notes what became of a command: in the result, or that its shards take nothing."""
        if isinstance(error, EngineClosed):
            raise error
        if error is None:
            result.done.append(row.seq)
        elif is_refusal(error):
            result.failed.append((row.seq, error))
        else:
            self.errors.update(dict.fromkeys(cache.topology.homes(row.command.id), error))


Errors = dict[str, ShardqError | None]
"""Id → the error of its command; those that were carried out may be missing."""


def send(
    cache: TopologyCache,
    packer: Packer,
    layer: Sequence[Numbered],
    failing: Failing,
    *,
    most: int = BATCH,
) -> Operation[Results]:
    """Carries out commands on different ids, where the shards take them. ``most``: the pushes of one call."""
    result = Results()
    if not cache.topology.is_keyed and have_keys(each.command.id for each in layer):
        try:
            yield from take_up_keys(cache)
        except AccessDenied as exc:
            failing.errors[KEYED] = exc  # these wait, and hold up no others
    open = [each for each in layer if not failing.concerns(cache, each.command.id)] if failing.errors else layer
    pushes = [each for each in open if each.command.kind == "push"]
    others = [each for each in open if each.command.kind != "push"]
    refused: list[Numbered] = []
    errors = yield from _push(cache, packer, pushes, most)
    for each in pushes:
        error = errors.get(each.command.id)
        if error and is_refusal(error) and not isinstance(error, Conflict) and len(pushes) > 1 and most > 1:
            refused.append(each)
        else:
            failing.judge(cache, each, error, result)
    # A call stores all of its tasks or none: which of them was refused shows when each goes alone.
    alone = [each for each in refused if not failing.concerns(cache, each.command.id)]
    errors = {**(yield from _push(cache, packer, alone, 1)), **(yield from _by_id(cache, others))}
    for each in (*alone, *others):
        failing.judge(cache, each, errors.get(each.command.id), result)
    return result


def _push(cache: TopologyCache, packer: Packer, pushes: Sequence[Numbered], most: int) -> Operation[Errors]:
    if not pushes:
        return {}
    entries = stamped(entries_of(each.command for each in pushes), cache.topology)
    results = pushing.PushResults(entries.ids)
    yield from pushing.complete(cache, packer, results, entries, most=most, in_doubt=True)
    return {id: met(error) for id, error in results.errors().items()}


def _by_id(cache: TopologyCache, commands: Sequence[Numbered]) -> Operation[Errors]:
    """Cancels and reschedules."""
    if not commands:
        return {}
    makes = {each.command.id: _Once(cache, each.command).made for each in commands}
    answers = yield from commands_by_id.call_each(cache, makes)
    return {id: met(outcome) for id, outcome in answers.items()}


class _Once:
    """Makes the calls of one cancel or reschedule, which is carried out at most once. That the id is gone is noted only
    where it belongs, and only when each shard that may have it from earlier was asked before.
    """

    def __init__(self, cache: TopologyCache, command: Command) -> None:
        self._cache = cache
        self._command = command
        self._asked: tuple[Epoch | None, set[int]] = None, set()

    def made(self, keys: ShardKeys, epoch: Epoch) -> Call[Outcome]:
        command, (*former, home) = self._command, self._cache.topology.homes(self._command.id)
        if self._asked[0] != epoch:
            self._asked = epoch, set()
        asked = self._asked[1]
        earlier: Earlier = "0" if keys.shard == home and asked.issuperset(former) else "1"
        asked.add(keys.shard)
        if command.kind == "cancel":
            rule = ends_rule(self._cache, command.id, epoch)
            return calls.cancel(keys, epoch, command.id, once=command.once, earlier=earlier, ends_rule=rule)
        return calls.reschedule(keys, epoch, command.id, command.due, once=command.once, earlier=earlier)


def met(outcome: object) -> ShardqError | None:
    """The error itself: a command is sent in doubt, so what a server says to it is told as unanswered."""
    if isinstance(outcome, Unanswered):
        return outcome.last or outcome
    return outcome if isinstance(outcome, ShardqError) else None


def cause_of(error: BaseException) -> str:
    """The node that failed, or the kind of error: texts differ from try to try."""
    return getattr(error, "node", "") or type(error).__name__


def is_refusal(error: ShardqError | None) -> bool:
    """True if a command was refused for itself. Other errors are about a server, and pass: it is away, out of memory,
    read-only, or forbids what every command needs.
    """
    return isinstance(error, Conflict) or type(error) is ServerFault
