# For asyncio. `make fmt` generates handle_sync.py from it.
"""The handle of a schedule by its name, and of those of an owner: ``engine.schedule("nightly").pause()``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Protocol, TypeVar

from shardq.core.model.checks import check_name
from shardq.core.model.printable import quoted
from shardq.core.model.task import Receipt
from shardq.core.operation import Operation
from shardq.core.producer.packing import Packer
from shardq.core.topology_cache import TopologyCache
from shardq.errors import InvalidOption
from shardq.features.schedules import declaring
from shardq.features.schedules.every import check_schedule_name

T = TypeVar("T")


class AsyncCarryOut(Protocol):
    """Carries out an operation within the engine's timeout, and notes ``what`` was changed by it, if anything."""

    async def __call__(self, make: Callable[[TopologyCache], Operation[T]], what: str = "") -> T: ...


class AsyncScheduleHandle:
    """One schedule, by its name. Each method raises UnknownSchedule if there is none of this name."""

    def __init__(self, name: str, packer: Packer, carry_out: AsyncCarryOut) -> None:
        check_schedule_name(name)
        self.name = name
        self._packer = packer
        self._carry_out = carry_out

    async def pause(self) -> None:
        """Pushes no more occurrences, and takes back what is pushed and not due yet, until ``resume``.

        >>> await engine.every("nightly", interval=86_400)
        >>> await engine.schedule("nightly").pause()
        """
        name = self.name
        await self._carry_out(lambda cache: declaring.pause(cache, name, paused=True), f"schedule {name}: paused")

    async def resume(self) -> None:
        """Goes on with the next occurrence; none of those during the pause is made up for.

        >>> await engine.every("nightly", interval=86_400)
        >>> await engine.schedule("nightly").resume()
        """
        name = self.name
        await self._carry_out(lambda cache: declaring.pause(cache, name, paused=False), f"schedule {name}: resumed")

    async def run(self) -> Receipt:
        """Pushes a task of the schedule that is due now, beside its occurrences; also while it is paused.

        >>> await engine.every("nightly", interval=86_400, topic="reports")
        >>> id = await engine.schedule("nightly").run()
        """
        return await self._carry_out(lambda cache: declaring.run_now(cache, self._packer, self.name))

    async def remove(self) -> None:
        """Ends the schedule, and takes back what is pushed and not due yet.

        >>> await engine.every("nightly", interval=86_400)
        >>> await engine.schedule("nightly").remove()
        """
        await self._carry_out(lambda cache: declaring.remove(cache, self.name), f"schedule {self.name}: removed")


class AsyncOwnedSchedules:
    """The schedules that were declared with one ``owner=``."""

    def __init__(self, owner: str, declared: Mapping[str, Set[str]], carry_out: AsyncCarryOut) -> None:
        check_name(owner, of="owner")
        self.owner = owner
        self._declared = declared  # owner → the names that the engine's object has declared with it
        self._carry_out = carry_out

    async def prune(self, *, keep: Iterable[str] | None = None) -> list[str]:
        """Removes them but those to ``keep``: the ones that this engine object has declared, if nothing is given.
        Returns the names of those that were removed.

        A program that has declared all of its schedules thereby removes those that an earlier version of it declared.
        Schedules of other owners, and without one, stay.

        >>> await engine.every("nightly", interval=86_400, owner="billing")
        >>> await engine.schedule(owner="billing").prune()
        []
        """
        if keep is None and (keep := self._declared.get(self.owner)) is None:
            raise InvalidOption(
                f"this engine has declared no schedule with owner={quoted(self.owner)}, so none would be left; declare "
                "them first, or give keep=[] to remove them all"
            )
        kept = frozenset(keep)
        return await self._carry_out(lambda cache: declaring.prune(cache, self.owner, kept))
