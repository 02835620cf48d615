"""Drains a spool: an operation that carries out one layer of its commands (no I/O, no SQLite), and what does that with
all that is in its file, on connections of its own.

Every replayed push is sent as after a lost answer: the push that was spooled may have been executed, and so may an
earlier replay of it. What is stored, or remembered, of those counts as pushed. A cancel or a reschedule is carried out
once by its nonce. A command stays in the file until replicas and disk have what it did (``confirming``).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from shardq.core.calls import by_id as calls
from shardq.core.calls.by_id import Earlier
from shardq.core.calls.request import Call, Epoch
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import lane_of
from shardq.core.model.task import Outcome
from shardq.core.operation import Operation
from shardq.core.producer import commands_by_id, pushing
from shardq.core.producer.commands_by_id import ends_rule
from shardq.core.producer.packing import BATCH, Packer, stamped
from shardq.core.producer.pushing import Way
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import take_up_keys
from shardq.errors import (
    AccessDenied,
    ColdTopic,
    Conflict,
    EngineClosed,
    PushError,
    ServerFault,
    ShardqError,
    SpoolFault,
    Unanswered,
)
from shardq.features.spool.commands import MEMORY_MS, Command, Spooled, entries_of, layers
from shardq.features.spool.confirming import TOLD_S, Confirming, Sent
from shardq.features.spool.file import PAGE_BYTES, PAGE_ROWS, SpoolFile

T = TypeVar("T")


class Servers(Protocol):
    """The servers of the engine, on connections of the drain's own, opened at their first use."""

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
class Drained:
    """The result of one layer. What is in neither list waits."""

    done: list[int] = field(default_factory=list)
    failed: list[tuple[int, ShardqError]] = field(default_factory=list)

    def with_more(self, other: Drained) -> Drained:
        """The results of both."""
        return Drained(self.done + other.done, self.failed + other.failed)

    @property
    def reasons(self) -> list[tuple[int, str]]:
        """The commands that were refused, and why."""
        return [(seq, f"{type(error).__name__}: {error}") for seq, error in self.failed]


KEYED = -2
"""In the place of a shard: tasks with keys, as this process may not be the first to push one."""


@dataclass(slots=True)
class Failing:
    """The shards that take nothing at the moment, and why. A command whose id may be there waits, and so does every
    later one on that id.
    """

    errors: dict[int, ShardqError] = field(default_factory=dict)
    unconfirmed: Collection[int] = ()
    """Shards that take nothing before they have confirmed what was sent."""
    shards: int = 0  # how many there are, at the last layer

    @property
    def all_fail(self) -> bool:
        return len(self.errors.keys() - {KEYED}) >= max(1, self.shards)

    @property
    def problem(self) -> str:
        """The reason why some commands wait; empty if none does."""
        if self.errors:
            return str(next(iter(self.errors.values())))
        named = ", ".join(map(str, sorted(self.unconfirmed)))
        return f"shard {named}: replicas or disk have not confirmed what was sent" if named else ""

    def concerns(self, cache: TopologyCache, id: str) -> bool:
        if KEYED in self.errors and lane_of(id) is not None:
            return True
        if not self.errors and not self.unconfirmed:
            return False
        return any(shard in self.errors or shard in self.unconfirmed for shard in cache.topology.homes(id))

    def judge(self, cache: TopologyCache, spooled: Spooled, error: ShardqError | None, result: Drained) -> None:
        """Notes what became of a command: in the result, or that its shards take nothing."""
        if isinstance(error, EngineClosed):
            raise error
        if error is None:
            result.done.append(spooled.seq)
        elif is_refusal(error):
            result.failed.append((spooled.seq, error))
        else:
            self.errors.update(dict.fromkeys(cache.topology.homes(spooled.command.id), error))


Met = list[tuple[Spooled, ShardqError | None]]
"""Commands that were sent, each with its error."""


def drain(
    cache: TopologyCache,
    packer: Packer,
    layer: Sequence[Spooled],
    failing: Failing,
    *,
    most: int = BATCH,
    way: Way = "push",
) -> Operation[Drained]:
    """Carries out commands on different ids, where the shards take them. ``most``: the pushes of one call."""
    result = Drained()
    failing.shards = cache.topology.shards
    if not cache.topology.is_keyed and any(lane_of(each.command.id) for each in layer):
        try:
            yield from take_up_keys(cache)
        except AccessDenied as exc:
            failing.errors[KEYED] = exc  # these wait, and hold up no others
    open = [each for each in layer if not failing.concerns(cache, each.command.id)]
    pushes = [each for each in open if each.command.kind == "push"]
    others = [each for each in open if each.command.kind != "push"]
    refused: list[Spooled] = []
    for each, error in (yield from _push(cache, packer, pushes, most, way)):
        if is_refusal(error) and not isinstance(error, Conflict) and len(pushes) > 1 and most > 1:
            refused.append(each)
        else:
            failing.judge(cache, each, error, result)
    # A call stores all of its tasks or none: which of them was refused shows when each goes alone.
    alone = [each for each in refused if not failing.concerns(cache, each.command.id)]
    for each, error in [*(yield from _push(cache, packer, alone, 1, way)), *(yield from _by_id(cache, others))]:
        failing.judge(cache, each, error, result)
    return result


def _push(cache: TopologyCache, packer: Packer, pushes: Sequence[Spooled], most: int, way: Way) -> Operation[Met]:
    if not pushes:
        return []
    entries = stamped(entries_of(each.command for each in pushes), cache.topology)
    results = pushing.PushResults(entries.ids)
    with contextlib.suppress(PushError):  # its errors are read below
        yield from pushing.complete(cache, packer, results, entries, most=most, in_doubt=True, way=way)
    return [(each, met(outcome)) for each, (_, outcome) in zip(pushes, results.each(), strict=True)]


def _by_id(cache: TopologyCache, commands: Sequence[Spooled]) -> Operation[Met]:
    """Cancels and reschedules."""
    if not commands:
        return []
    makes = {command.id: _Once(cache, command).made for _, command in commands}
    answers = yield from commands_by_id.call_each(cache, makes)
    return [(each, met(answers[each.command.id])) for each in commands]


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
    return isinstance(error, Conflict | ColdTopic) or type(error) is ServerFault


log: logging.Logger = logging.getLogger("shardq.spool")

CONFIRM_LOOK_S = 0.05  # between two looks whether a question to the servers is answered


def lock_of(path: Path) -> Path:
    """The file whose lock the process that replays holds."""
    return path.with_name(path.name + "-lock")


class Pace:
    """How many commands are replayed while others are held back."""

    def __init__(self) -> None:
        self._pages = 1

    def goal(self, replayed: int) -> int:
        return replayed + self._pages * PAGE_ROWS

    def adapt(self, replayed: int, added: int) -> None:
        """Doubles the pages when more than half as many commands were let in as were replayed, and halves them else."""
        self._pages = 2 * self._pages if 2 * added > replayed else max(1, self._pages // 2)


class Drain:
    """Replays the file of a spool. The process that holds the file's lock may run it."""

    def __init__(self, file: SpoolFile, packer: Packer, servers: Servers) -> None:
        self.problem: str = ""  # the reason why some commands could not be replayed by the last run
        self.reached: bool = False  # true if some shards may take commands, as far as the last run has seen
        self.sent: int = 0
        self.replayed: int = 0  # sent, confirmed and removed
        self.failed: int = 0
        self.confirming: Confirming = Confirming(servers.opened, log, memory_ms=MEMORY_MS)
        self._file = file
        self._packer = packer
        self._servers = servers
        self._sent_until = 0
        """All commands up to this number were sent, or are gone."""
        self._noted_until: int | None = None  # the same as the file has it
        self._leaving: dict[int, Sent] = {}
        """Confirmed commands that are to be removed. They must not be replayed again, though the file may be broken at
        this moment.
        """

    def run(self, stopping: Callable[[], bool], *, timeout: float, is_held: bool = False) -> bool:
        """Sends each command once that the shards take now, from the first on, until it is told to stop: that is asked
        before each page but the first. Removes those that are confirmed by now. Returns False if some were not sent.
        Raises when no server can be reached. ``timeout`` bounds each trip. ``is_held``: others are held back meanwhile.
        Then it bounds all trips of a layer, and the first failure ends the run.

        Before each page it writes the file, and sends nothing when that fails: what can't be noted would be carried out
        again by the next process, and twice once Redis has forgotten it.
        """
        failing = Failing()
        self.problem, self.reached = "", False
        self._settle(failing, timeout)
        after, whole, is_first, is_full = self._sent_until, True, True, False
        while (page := self._file.page(after)) and (is_first or not stopping()):
            if is_full := self.confirming.is_full:
                break
            is_first, after = False, page[-1].seq
            self._send([each for each in page if not self._is_sent(each.seq)], failing, timeout, is_held=is_held)
            for each in page:
                whole = whole and self._is_sent(each.seq)
                if whole:
                    self._sent_until = each.seq
            if failing.problem:
                self.problem = failing.problem
                if is_held:
                    break
        self.reached = not failing.all_fail
        self._settle(failing, timeout)
        return self._noted(well=not (self.problem or is_full))

    def confirm(self, stopping: Callable[[], bool], *, timeout: float) -> None:
        """Waits until all that was sent is confirmed and removed, or its shards have not confirmed it twice."""
        while not (self.confirming.is_settled or stopping()):
            self._settle(Failing(), timeout, wait_s=CONFIRM_LOOK_S)

    @property
    def is_waiting(self) -> bool:
        """True while commands were sent that are still in the file."""
        return bool(self._leaving) or len(self.confirming) > 0

    def _noted(self, *, well: bool) -> bool:
        """Tells the other processes up to where all was sent."""
        if self._noted_until != self._sent_until:
            self._check()
        if not self.problem and (late := self.confirming.late(TOLD_S)) is not None:
            self.problem = str(late)
        return well

    def _check(self) -> None:
        self._file.check(self._sent_until)
        self._noted_until = self._sent_until

    def _is_sent(self, seq: int) -> bool:
        return seq in self.confirming or seq in self._leaving

    def _send(self, page: Sequence[Spooled], failing: Failing, timeout: float, *, is_held: bool = False) -> None:
        """Sends commands that the shards take, and puts aside those that are refused."""
        if not page:
            return
        self._check()
        faults = {each.seq: fault for each in page if (fault := each.command.fault) is not None}
        self._put_aside(Drained(failed=[*faults.items()]))
        for layer in layers(each for each in page if each.seq not in faults):
            # what a shard has not confirmed goes first
            failing.unconfirmed = self.confirming.blocked
            _, cache = self._servers.opened()
            shards = {each.seq: cache.topology.homes(each.command.id) for each in layer}
            self.confirming.meet({shard for each in shards.values() for shard in each})
            result = self._servers.run(
                lambda cache, layer=layer: drain(cache, self._packer, layer, failing),  # type: ignore[misc]
                timeout=timeout,
                deadline=time.monotonic() + timeout if is_held else None,
            )
            sizes = {each.seq: each.command.size for each in layer}
            ids = {each.seq: each.command.id for each in layer}
            # where the topology has changed meanwhile, either may have it
            self.confirming.sent(
                Sent(seq, tuple({*shards[seq], *cache.topology.homes(ids[seq])}), sizes[seq]) for seq in result.done
            )
            self.sent += len(result.done)
            self._put_aside(result)
            if is_held and failing.errors:
                break

    def _put_aside(self, result: Drained) -> None:
        """Moves refused commands to those that an operator sees, before anything else is sent on the same ids."""
        if not result.failed:
            return
        try:
            self._file.finish([], result.reasons)
        except SpoolFault as exc:
            # It may need a page that a full disk has not. What is refused stays in its place, is refused again, and is
            # put aside once other commands have left room.
            self.problem = str(exc)
            return
        self.failed += len(result.failed)
        for seq, reason in result.reasons:
            log.error("command %d of the spool %s was refused, and put aside: %s", seq, self._file.path, reason)

    def _settle(self, failing: Failing, timeout: float, wait_s: float = 0.0) -> None:
        """Removes commands that are confirmed, and sends those again that are not."""
        self._leaving.update((row.seq, row) for row in self.confirming.advance(wait_s))
        while self._leaving:
            some, bytes = list[int](), 0
            for row in self._leaving.values():
                bytes += row.size
                if some and (len(some) == PAGE_ROWS or bytes > PAGE_BYTES):
                    break
                some.append(row.seq)
            self._file.finish(some, [])
            self.replayed += len(some)
            for seq in some:
                del self._leaving[seq]
        while again := self.confirming.again(PAGE_ROWS, PAGE_BYTES):
            self._resend(again, failing, timeout)

    def _resend(self, seqs: Sequence[int], failing: Failing, timeout: float) -> None:
        try:
            self._check()
            page = self._file.read(seqs)
            for layer in layers(page):
                result = self._servers.run(
                    lambda cache, layer=layer: drain(cache, self._packer, layer, failing),  # type: ignore[misc]
                    timeout=timeout,
                )
                _, cache = self._servers.opened()
                self.confirming.sent(
                    Sent(each.seq, tuple(cache.topology.homes(each.command.id)), each.command.size)
                    for each in layer
                    if each.seq in result.done
                )
                self._put_aside(result)
        finally:
            for seq in seqs:
                if self.confirming.is_again(seq):  # it waits like those that were never sent
                    self.confirming.forget(seq)
                    self._sent_until = min(self._sent_until, seq - 1)

    def close(self) -> None:
        self.confirming.close()
        self._servers.close()
