"""Replaying spooled commands: an operation on one layer of them. No I/O, no SQLite.

Every replayed push is sent as after a lost answer: the push that was spooled may have been executed, and so may an
earlier replay of it. What is stored, or remembered, of those counts as pushed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from shardq.core.calls import by_id as calls
from shardq.core.model.task import Outcome
from shardq.core.operation import Operation
from shardq.core.producer import by_id, pushing
from shardq.core.producer.packing import BATCH, Packer
from shardq.core.recovery import Make
from shardq.core.topology_cache import TopologyCache
from shardq.errors import (
    Conflict,
    EngineClosed,
    PushError,
    ServerFault,
    ShardqError,
    Unanswered,
)
from shardq.features.spool.commands import Spooled, entries_of


@dataclass(slots=True)
class Replayed:
    """The result of one layer. What is in neither list waits."""

    done: list[int] = field(default_factory=list)
    failed: list[tuple[int, ShardqError]] = field(default_factory=list)

    @property
    def reasons(self) -> list[tuple[int, str]]:
        """The commands that were refused, and why."""
        return [(seq, f"{type(error).__name__}: {error}") for seq, error in self.failed]


@dataclass(slots=True)
class Failing:
    """The shards that take nothing at the moment, and why. A command whose id may be there waits, and so does every
    later one on that id.
    """

    errors: dict[int, ShardqError] = field(default_factory=dict)
    shards: int = 0
    """How many there are, at the last layer."""

    @property
    def all_fail(self) -> bool:
        return len(self.errors) >= max(1, self.shards)

    def concerns(self, cache: TopologyCache, id: str) -> bool:
        return bool(self.errors) and any(shard in self.errors for shard in cache.topology.homes(id))

    def note(self, cache: TopologyCache, id: str, error: ShardqError) -> None:
        self.errors.update(dict.fromkeys(cache.topology.homes(id), error))


def replay(
    cache: TopologyCache, packer: Packer, layer: Sequence[Spooled], failing: Failing, *, most: int = BATCH
) -> Operation[Replayed]:
    """Carries out commands on different ids, where the shards take them. ``most``: the pushes of one call."""
    result = Replayed()
    failing.shards = cache.topology.shards
    open = [each for each in layer if not failing.concerns(cache, each.command.id)]
    pushes = [each for each in open if each.command.kind == "push"]
    others = [each for each in open if each.command.kind != "push"]
    if pushes:
        refused = yield from _push(cache, packer, pushes, failing, result, most=most)
        # A call stores all of its tasks or none: which of them was refused shows when each goes alone.
        if alone := [each for each in refused if not failing.concerns(cache, each.command.id)]:
            yield from _push(cache, packer, alone, failing, result, most=1)
    if others:
        yield from _by_id(cache, others, failing, result)
    return result


def _push(
    cache: TopologyCache,
    packer: Packer,
    pushes: Sequence[Spooled],
    failing: Failing,
    result: Replayed,
    *,
    most: int,
) -> Operation[list[Spooled]]:
    """Pushes. Returns those that may have been refused because of others of their call."""
    entries = entries_of(each.command for each in pushes)
    results = pushing.PushResults(entries.ids)
    with contextlib.suppress(PushError):  # its errors are read below
        yield from pushing.complete(cache, packer, results, entries, most=most, in_doubt=True)
    refused: list[Spooled] = []
    for each, (_, outcome) in zip(pushes, results.each(), strict=True):
        error = _met(outcome) if isinstance(outcome, ShardqError) else None
        if is_refusal(error) and not isinstance(error, Conflict) and len(pushes) > 1 and most > 1:
            refused.append(each)
        else:
            _note(cache, each, error, failing, result)
    return refused


def _by_id(cache: TopologyCache, commands: Sequence[Spooled], failing: Failing, result: Replayed) -> Operation[None]:
    """Cancels and reschedules."""
    makes: dict[str, Make[Outcome]] = {}
    for _, command in commands:
        if command.kind == "cancel":
            makes[command.id] = partial(calls.cancel, id=command.id)
        else:
            makes[command.id] = partial(calls.reschedule, id=command.id, due=command.due)
    answers = yield from by_id.call_each(cache, makes)
    for each in commands:
        answer = answers[each.command.id]
        _note(cache, each, _met(answer) if isinstance(answer, ShardqError) else None, failing, result)


def _met(error: ShardqError) -> ShardqError:
    """The error itself: a replay is always in doubt, so what a server says to it is told as unanswered."""
    return error.last or error if isinstance(error, Unanswered) else error


def _note(
    cache: TopologyCache, spooled: Spooled, error: ShardqError | None, failing: Failing, result: Replayed
) -> None:
    if isinstance(error, EngineClosed):
        raise error
    if error is None:
        result.done.append(spooled.seq)
    elif is_refusal(error):
        result.failed.append((spooled.seq, error))
    else:
        failing.note(cache, spooled.command.id, error)


def is_refusal(error: ShardqError | None) -> bool:
    """True if a command was refused for itself. Other errors are about a server, and pass: it is away, out of memory,
    read-only, or forbids what every command needs.
    """
    return isinstance(error, Conflict) or type(error) is ServerFault
