# Generated from spooling_aio.py by `make fmt`: change that one.
"""The spool in the chain of stores of an engine: a command goes to the servers, or to the file while those are away."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from shardq.core.model.task import Outcome, Receipt, Task
from shardq.core.producer.commands_by_id import Verb
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import RUN, Entries
from shardq.core.producer.stream import Stream, Window
from shardq.errors import PushError, ShardqError, SpoolFault, Unanswered
from shardq.features.spool import commands
from shardq.features.spool.commands import Command, SpoolStats, now_ms, pushes
from shardq.features.spool.spool import AWAY, Spool
from shardq.features.stores_sync import TaskStore

if TYPE_CHECKING:
    from shardq.core.drivers.sync import Driver
    from shardq.features.cold.report import ColdStats

T = TypeVar("T")


class SpoolStore(TaskStore):
    """The link of a spool: pushes, cancels and reschedules go to the file while the servers are away. A durable push is
    never spooled.
    """

    def __init__(self, near: TaskStore, spool: Spool) -> None:
        super().__init__(near)
        self._spool = spool

    def _add(self, commands: Sequence[Command], *, lost: ShardqError | None = None) -> bool:
        """Stores commands, see ``Spool.add``; also if the caller is cancelled meanwhile."""
        return self._spool.add(commands, lost=lost)

    def _sent(self, commands: Callable[[], Sequence[Command]], send: Callable[[], T]) -> T | None:
        """Carries these commands out at the servers, by ``send``. Returns None if they are in the file instead."""
        if not self._spool.away or not self._add(commands()):
            try:
                return send()
            except AWAY as exc:
                self._keep(commands(), exc)
        return None

    def push_one(self, entries: Entries, deadline: float, durability: Durability | None = None) -> Receipt:
        if durability is not None:
            return self.near.push_one(entries, deadline, durability)
        commands = partial(pushes, entries, now_ms())
        receipt = self._sent(commands, lambda: self.near.push_one(entries, deadline))
        return Receipt.of(entries.ids[0], "spooled") if receipt is None else receipt

    def push(self, entries: Entries, deadline: float, durability: Durability | None = None) -> list[Receipt]:
        if durability is not None:
            return self.near.push(entries, deadline, durability)
        if not entries.ids:
            return []
        began_ms = now_ms()
        try:
            receipts = self._sent(partial(pushes, entries, began_ms), lambda: self.near.push(entries, deadline))
        except PushError as exc:
            return self._keep_rest(entries, began_ms, exc)
        return [Receipt.of(id, "spooled") for id in entries.ids] if receipts is None else receipts

    def push_iter(self, tasks: Iterator[Task]) -> Iterator[list[Receipt]]:
        while True:
            driver = None if self._spool.away else self._reached()
            if driver is None:
                entries = self.packer.many(itertools.islice(tasks, RUN))
                if not entries.ids:
                    return
                yield self.push(entries, self.until())
                continue
            stream = Stream(self.cache(), self.packer, tasks, self.timeout, halted=lambda: self._spool.away)
            for receipts in self._send(driver, stream):
                yield receipts
            if stream.exhausted:
                return

    def _reached(self) -> Driver | None:
        """Opens the engine. Returns None if no server can be reached."""
        try:
            return self.opened(self.until())
        except AWAY:
            return None

    def _completed(self, driver: Driver, stream: Stream, window: Window) -> list[Receipt] | None:
        receipts = super()._completed(driver, stream, window)
        if receipts is None:
            try:
                return self._keep_rest(window.entries, window.taken_ms, stream.errors.pop())
            except PushError as exc:
                stream.errors.append(exc)
        return receipts

    def order(self, verb: Verb, id: str, due: int, deadline: float) -> Outcome:
        if verb == "requeue":
            return self.near.order(verb, id, due, deadline)
        self.check(id)
        command = commands.cancel(id) if verb == "cancel" else commands.reschedule(id, due, now_ms())
        outcome = self._sent(lambda: [command], lambda: self.near.order(verb, id, due, deadline))
        return Outcome.SPOOLED if outcome is None else outcome

    def here(self, deadline: float) -> tuple[SpoolStats | None, ColdStats | None]:
        stats = self._spool.stats()
        return stats, None

    def close(self) -> None:
        self._spool.close()

    def _keep(self, commands: Sequence[Command], error: ShardqError) -> None:
        """Spools what met this error at the servers. Where the file does not take it, raises SpoolFault; or the error
        itself, with a note, if a server may have it.
        """
        try:
            self._add(commands, lost=error)
        except SpoolFault as exc:
            if isinstance(error, Unanswered):
                error.add_note(f"it could not be spooled either: {exc}")
                raise error from exc
            raise exc from error

    def _keep_rest(self, entries: Entries, began_ms: int, error: PushError) -> list[Receipt]:
        """Spools those tasks of a push that no server took. Returns the receipts of all, or raises what is left of the
        error.
        """
        known = set(entries.ids)
        away = {id for id, why in error.failed.items() if id in known and self._spool.takes(why)}
        away |= known.intersection(error.unknown)
        if not away:
            raise error
        why = next((error.failed[id] for id in away if id in error.failed), error)
        try:
            self._add([each for each in pushes(entries, began_ms) if each.id in away], lost=why)
        except SpoolFault as exc:
            failed = {id: exc if id in away else why for id, why in error.failed.items()}
            raise PushError(ids=error.ids, stored=error.stored, failed=failed, unknown=error.unknown) from exc
        ids = [Receipt.of(id, "spooled") if id in away else id for id in error.ids]
        receipts = [id for id in ids if isinstance(id, Receipt)]
        failed = {id: why for id, why in error.failed.items() if id not in away}
        unknown = [id for id in error.unknown if id not in away]
        if failed or unknown:
            raise PushError(ids=ids, stored=receipts, failed=failed, unknown=unknown) from error
        return receipts
