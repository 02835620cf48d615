"""Drains a spool: an operation that carries out one layer of its commands (no I/O, no SQLite), and what does that with
all that is in its file, on connections of its own.

Every replayed push is sent as after a lost answer: the push that was spooled may have been executed, and so may an
earlier replay of it. What is stored, or remembered, of those counts as pushed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from shardq.core.calls import by_id as calls
from shardq.core.edits import take_up_keys
from shardq.core.layout.lanes import lane_of
from shardq.core.model.task import Outcome
from shardq.core.operation import Operation
from shardq.core.producer import by_id, pushing
from shardq.core.producer.packing import BATCH, Packer
from shardq.core.producer.pushing import Way
from shardq.core.recovery import Make
from shardq.core.topology_cache import TopologyCache
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
from shardq.features.spool.commands import Spooled, entries_of, layers
from shardq.features.spool.file import PAGE_ROWS, SpoolFile

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
    shards: int = 0  # how many there are, at the last layer

    @property
    def all_fail(self) -> bool:
        return len(self.errors.keys() - {KEYED}) >= max(1, self.shards)

    def concerns(self, cache: TopologyCache, id: str) -> bool:
        if KEYED in self.errors and lane_of(id) is not None:
            return True
        return bool(self.errors) and any(shard in self.errors for shard in cache.topology.homes(id))

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
    entries = entries_of(each.command for each in pushes)
    results = pushing.PushResults(entries.ids)
    with contextlib.suppress(PushError):  # its errors are read below
        yield from pushing.complete(cache, packer, results, entries, most=most, in_doubt=True, way=way)
    return [(each, met(outcome)) for each, (_, outcome) in zip(pushes, results.each(), strict=True)]


def _by_id(cache: TopologyCache, commands: Sequence[Spooled]) -> Operation[Met]:
    """Cancels and reschedules."""
    if not commands:
        return []
    makes: dict[str, Make[Outcome]] = {}
    for _, command in commands:
        if command.kind == "cancel":
            makes[command.id] = partial(calls.cancel, id=command.id)
        else:
            makes[command.id] = partial(calls.reschedule, id=command.id, due=command.due)
    answers = yield from by_id.call_each(cache, makes)
    return [(each, met(answers[each.command.id])) for each in commands]


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
        self.replayed: int = 0
        self.failed: int = 0
        self._file = file
        self._packer = packer
        self._servers = servers
        self._unrecorded: list[Drained] = []
        """Commands that were carried out, and could not be noted in the file as it broke at that moment. They must not
        be replayed again.
        """

    def run(self, stopping: Callable[[], bool], *, timeout: float, is_held: bool = False) -> bool:
        """Replays each command once that the shards take now, from the first on, until it is told to stop: that is
        asked before each page but the first. Returns False if some had to stay. Raises when no server can be
        reached. ``timeout`` bounds each trip. ``is_held``: others are held back meanwhile. Then it bounds all trips of
        a layer, and the first failure ends the run.

        Before each page it writes the file, and sends nothing when that fails: what can't be noted would be carried out
        again by the next process, and twice once Redis has forgotten it.
        """
        failing = Failing()
        self.problem, self.reached = "", False
        while self._unrecorded:
            self._file.finish(self._unrecorded[0].done, self._unrecorded[0].reasons)
            self._unrecorded.pop(0)
        after = 0
        while (page := self._file.page(after)) and not (after and stopping()):
            after = page[-1].seq
            self._file.check()
            faults = {each.seq: fault for each in page if (fault := each.command.fault) is not None}
            self._record(Drained(failed=[*faults.items()]))
            for layer in layers(each for each in page if each.seq not in faults):
                result = self._servers.run(
                    lambda cache, layer=layer: drain(cache, self._packer, layer, failing),  # type: ignore[misc]
                    timeout=timeout,
                    deadline=time.monotonic() + timeout if is_held else None,
                )
                self._record(result)
                if is_held and failing.errors:
                    break
            if failing.errors:
                self.problem = str(next(iter(failing.errors.values())))
                if is_held:
                    break
        self.reached = not failing.all_fail
        return not self.problem

    def _record(self, result: Drained) -> None:
        """Notes what was carried out, before anything else is sent on the same ids."""
        if not result.done and not result.failed:
            return
        self._unrecorded.append(result)
        try:
            self._file.finish(result.done, result.reasons)
        except SpoolFault as exc:
            if not result.failed:
                raise
            # Putting aside may need a page that a full disk has not. What is refused stays in its place, is refused
            # again, and is put aside once other commands have left room.
            result.failed = []
            self._file.finish(result.done, [])
            self.problem = str(exc)
        self._unrecorded.pop()
        self.replayed += len(result.done)
        self.failed += len(result.failed)
        for seq, reason in result.reasons:
            log.error("command %d of the spool %s was refused, and put aside: %s", seq, self._file.path, reason)

    def close(self) -> None:
        self._servers.close()
