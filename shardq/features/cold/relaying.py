"""Carries out a relay's commands on ids that may be in the table of its engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from shardq.core.drivers.sync import Driver
from shardq.core.layout.topology import Topology
from shardq.core.producer.packing import Packer
from shardq.core.topology_cache import TopologyCache
from shardq.errors import InvalidOption, ServerFault, ShardqError
from shardq.features.cold.cold import Cold
from shardq.features.cold.ids import place_in
from shardq.features.cold.storing_sync import ColdStore, Declare
from shardq.relay.chain_sync import TaskStore
from shardq.relay.row import Command, Numbered, entries_of
from shardq.relay.sending import COLD, Failing, Results, is_refusal, met


class RelayedRedis(TaskStore):
    """The first link of a relay's chain: Redis, by the relay's connections."""

    def __init__(self, packer: Packer, timeout: float, opened: Callable[[], tuple[Driver, TopologyCache]]) -> None:
        self.packer: Packer = packer
        self.timeout: float = timeout
        self._opened = opened

    def opened(self, deadline: float) -> Driver:
        return self._opened()[0]

    def cache(self) -> TopologyCache:
        return self._opened()[1]

    def check(self, id: str) -> None:
        """The relay has asked before."""


class ColdRelaying:
    """The table as one relay sees it, with or without ``cold=``."""

    def __init__(self, cold: Cold | None, redis: RelayedRedis, declare: Declare) -> None:
        self._cold = cold
        self._redis = redis
        self._store = None if cold is None else ColdStore(redis, cold, declare)

    def is_used(self, topology: Topology) -> bool:
        """True if ids may be in the table."""
        return self._cold is not None or topology.cold is not None

    def concerns(self, topology: Topology, id: str) -> bool:
        """True for an id that may be in the table, which is used."""
        if place_in(id) is not None:
            return True
        return topology.is_cold(id) if self._cold is None else self._cold.owns(id, topology)

    def carry_out(self, some: Sequence[Numbered], failing: Failing, *, timeout: float) -> Results:
        """Carries out commands on different ids, all of which may be in the table. ``failing`` is given the shards that
        take nothing, ``COLD`` too.
        """
        deadline = time.monotonic() + timeout
        cache, result = self._redis.cache(), Results()
        open = [each for each in some if not failing.concerns(cache, each.command.id) and COLD not in failing.errors]
        if self._store is None:
            for each in open:
                failing.errors[COLD] = InvalidOption(
                    f"{each.command.id} may be in the cold store of this engine: give the relay's engine cold=, or "
                    "--cold, the URL of the database that the other processes have"
                )
            return result
        pushes = [each for each in open if each.command.kind == "push"]
        errors = self._pushed(self._store, pushes, deadline)
        for each in open:
            if each.command.kind != "push":
                errors[each.seq] = self._ordered(self._store, each.command, deadline)
        for each in open:
            error = errors[each.seq]
            # An error of Redis is about a shard, and has its node; every other one about the table.
            if error is None or is_refusal(error) or (isinstance(error, ServerFault) and error.node):
                failing.judge(cache, each, error, result)
            else:
                failing.errors[COLD] = error
        return result

    @staticmethod
    def _pushed(store: ColdStore, pushes: Sequence[Numbered], deadline: float) -> dict[int, ShardqError | None]:
        """Carries out pushes, as after a lost answer. Returns their errors."""
        if not pushes:
            return {}
        try:
            answers = store.push_own(entries_of(each.command for each in pushes).unique, deadline)
        except ShardqError as exc:
            return dict.fromkeys((each.seq for each in pushes), exc)
        return {each.seq: met(answer) for each, answer in zip(pushes, answers, strict=True)}

    @staticmethod
    def _ordered(store: ColdStore, command: Command, deadline: float) -> ShardqError | None:
        """Carries out a cancel or a reschedule."""
        try:
            store.order("cancel" if command.kind == "cancel" else "reschedule", command.id, command.due, deadline)
        except ShardqError as exc:
            return met(exc)
        return None
