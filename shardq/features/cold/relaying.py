"""What a relay of the outbox does with commands on ids that may be in the table, which is that of its engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from shardq.core.drivers.sync import Driver
from shardq.core.layout.topology import Topology
from shardq.core.operation import run
from shardq.core.producer import by_id
from shardq.core.producer.packing import Packer
from shardq.core.topology_cache import TopologyCache
from shardq.errors import InvalidOption, ServerFault, ShardqError
from shardq.features.cold.cold import Cold
from shardq.features.cold.ids import place_in
from shardq.features.cold.storing_sync import ColdCommands, Declare
from shardq.features.spool.commands import Spooled, entries_of
from shardq.features.spool.drain import Drained, Failing, is_refusal, met

COLD = -1
"""In the place of a shard: the table takes nothing."""


class ColdRelaying:
    """The table as one relay sees it, with or without ``cold=``."""

    def __init__(
        self, cold: Cold | None, packer: Packer, declare: Declare, opened: Callable[[], tuple[Driver, TopologyCache]]
    ) -> None:
        self._cold = cold
        self._opened = opened
        self._until = 0.0
        self._commands: ColdCommands | None = None
        if cold is not None:
            self._commands = ColdCommands(
                cold, packer, declare, lambda _: opened()[0], lambda: opened()[1], lambda: self._until
            )

    def concerns(self, topology: Topology, id: str) -> bool:
        """True for an id that may be in the table."""
        if self._cold is None and topology.cold is None:
            return False
        if place_in(id) is not None:
            return True
        return topology.is_cold(id) if self._cold is None else self._cold.owns(id, topology)

    def carry_out(self, some: Sequence[Spooled], failing: Failing, *, timeout: float) -> Drained:
        """Carries out commands on different ids, all of which may be in the table. ``failing`` is given the shards that
        take nothing, ``COLD`` too.
        """
        self._until = time.monotonic() + timeout
        driver, cache = self._opened()
        result = Drained()
        open = [each for each in some if not failing.concerns(cache, each.command.id) and COLD not in failing.errors]
        if self._commands is None:
            for each in open:
                failing.errors[COLD] = InvalidOption(
                    f"{each.command.id} may be in the cold store of this engine: give the relay's engine cold=, or "
                    "--cold, the URL of the database that the other processes have"
                )
            return result
        pushes = [each for each in open if each.command.kind == "push"]
        errors = self._pushed(self._commands, pushes)
        for each in open:
            if each.command.kind != "push":
                errors[each.seq] = self._ordered(self._commands, driver, cache, each)
        for each in open:
            error = errors[each.seq]
            # An error of Redis is about a shard, and has its node; every other one about the table.
            if error is None or is_refusal(error) or (isinstance(error, ServerFault) and error.node):
                failing.judge(cache, each, error, result)
            else:
                failing.errors[COLD] = error
        return result

    def _pushed(self, commands: ColdCommands, pushes: Sequence[Spooled]) -> dict[int, ShardqError | None]:
        """Carries out pushes, as after a lost answer. Returns their errors."""
        if not pushes:
            return {}
        try:
            answers = commands.push_own(entries_of(each.command for each in pushes).unique, self._until)
        except ShardqError as exc:
            return dict.fromkeys((each.seq for each in pushes), exc)
        return {each.seq: met(answer) for each, answer in zip(pushes, answers, strict=True)}

    @staticmethod
    def _ordered(commands: ColdCommands, driver: Driver, cache: TopologyCache, each: Spooled) -> ShardqError | None:
        """Carries out a cancel or a reschedule."""
        id, due = each.command.id, each.command.due
        try:
            if each.command.kind == "cancel":
                commands.cancel(id, lambda: run(driver, by_id.cancel(cache, id)))
            else:
                commands.reschedule(id, due, lambda: run(driver, by_id.reschedule(cache, id, due)))
        except ShardqError as exc:
            return met(exc)
        return None
