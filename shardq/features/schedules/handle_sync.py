# Generated from handle_aio.py by `make fmt`: change that one.
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


class CarryOut(Protocol):
    """Carries out an operation within the engine's timeout, and notes ``what`` was changed by it, if anything."""

    def __call__(self, make: Callable[[TopologyCache], Operation[T]], what: str = "") -> T: ...


class ScheduleHandle:
    """One schedule, by its name. Each method raises UnknownSchedule if there is none of this name."""

    def __init__(self, name: str, packer: Packer, carry_out: CarryOut) -> None:
        check_schedule_name(name)
        self.name = name
        self._packer = packer
        self._carry_out = carry_out

    def pause(self) -> None:
        """Pushes no more occurrences, and takes back what is pushed and not due yet, until ``resume``.

        >>> engine.every("nightly", interval=86_400)
        >>> engine.schedule("nightly").pause()
        """
        name = self.name
        self._carry_out(lambda cache: declaring.pause(cache, name, paused=True), f"schedule {name}: paused")

    def resume(self) -> None:
        """Goes on with the next occurrence; none of those during the pause is made up for.

        >>> engine.every("nightly", interval=86_400)
        >>> engine.schedule("nightly").resume()
        """
        name = self.name
        self._carry_out(lambda cache: declaring.pause(cache, name, paused=False), f"schedule {name}: resumed")

    def run(self) -> Receipt:
        """Pushes a task of the schedule that is due now, beside its occurrences; also while it is paused.

        >>> engine.every("nightly", interval=86_400, topic="reports")
        >>> id = engine.schedule("nightly").run()
        """
        return self._carry_out(lambda cache: declaring.run_now(cache, self._packer, self.name))

    def remove(self) -> None:
        """Ends the schedule, and takes back what is pushed and not due yet.

        >>> engine.every("nightly", interval=86_400)
        >>> engine.schedule("nightly").remove()
        """
        self._carry_out(lambda cache: declaring.remove(cache, self.name), f"schedule {self.name}: removed")


class OwnedSchedules:
    """The schedules that were declared with one ``owner=``."""

    def __init__(self, owner: str, declared: Mapping[str, Set[str]], carry_out: CarryOut) -> None:
        check_name(owner, of="owner")
        self.owner = owner
        self._declared = declared  # owner → the names that the engine's object has declared with it
        self._carry_out = carry_out

    def prune(self, *, keep: Iterable[str] | None = None) -> list[str]:
        """Removes them but those to ``keep``: the ones that this engine object has declared, if nothing is given.
        Returns the names of those that were removed.

        A program that has declared all of its schedules thereby removes those that an earlier version of it declared.
        Schedules of other owners, and without one, stay.

        >>> engine.every("nightly", interval=86_400, owner="billing")
        >>> engine.schedule(owner="billing").prune()
        []
        """
        if keep is None and (keep := self._declared.get(self.owner)) is None:
            raise InvalidOption(
                f"this engine has declared no schedule with owner={quoted(self.owner)}, so none would be left; declare "
                "them first, or give keep=[] to remove them all"
            )
        kept = frozenset(keep)
        return self._carry_out(lambda cache: declaring.prune(cache, self.owner, kept))
