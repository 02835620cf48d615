"""The shards that the rows of an id may be for, and those of them that take nothing at the moment, each with the first
row that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from shardq.core.layout.lanes import lane_of
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.producer.packing import Packer
from shardq.errors import ShardqError
from shardq.relay.row import Numbered
from shardq.relay.sending import FAR, KEYED, Failing, Results, Servers
from shardq.relay.store import Head


class Elsewhere(Protocol):
    """Carries out commands on ids that may not be in Redis."""

    def is_used(self, topology: Topology) -> bool:
        """False if it concerns no id."""

    def concerns(self, topology: Topology, id: str) -> bool: ...

    def after(self, seconds: float) -> int:
        """The instant so many seconds from now, by the clock of this place."""

    def carry_out(self, some: Sequence[Numbered], failing: Failing, *, timeout: float, latest: int) -> Results:
        """Carries out commands on different ids, none of them after ``latest``."""


class Stuck(NamedTuple):
    """A shard that takes nothing: the first row for it, and why."""

    seq: int
    id: str
    created: object
    error: ShardqError


class StuckShards:
    """The shards that take nothing, for one mover."""

    def __init__(
        self,
        servers: Callable[[], Servers],
        packer: Packer,
        elsewhere: Callable[[Packer, Servers], Elsewhere] | None,
    ) -> None:
        self.first: dict[int, Stuck] = {}
        """Shard → the first row for it."""
        self._servers = servers
        self._packer = packer
        self._make_elsewhere = elsewhere
        self._place: Elsewhere | None = None
        self._epoch = Stamp("0")

    def close(self) -> None:
        """Gives up the connections of the place elsewhere."""
        self._place = None

    @property
    def reached(self) -> bool:
        """True if some shards may take rows, as far as the last step has seen."""
        return not self.first or len(self.first.keys() - {KEYED, FAR}) < len(self.topology().span())

    def topology(self) -> Topology:
        """The topology as it is known now. Where it has changed, ids may be elsewhere, and no shard is stuck."""
        topology = self._servers().opened()[1].topology
        if topology.stamp != self._epoch:
            self._epoch = topology.stamp
            self.first.clear()
        return topology

    def homes(self, id: str) -> list[int]:
        """The shards that an id may be in, ``FAR`` if it may be in the far store, and ``KEYED`` if its key may be the
        first.
        """
        topology = self.topology()
        far = (elsewhere := self.elsewhere(topology)) is not None and elsewhere.concerns(topology, id)
        keyed = not topology.is_keyed and lane_of(id) is not None
        return topology.homes(id) + [FAR] * far + [KEYED] * keyed

    def elsewhere(self, topology: Topology) -> Elsewhere | None:
        """What carries out commands that may not be for Redis; None while all are."""
        if self._make_elsewhere is None:
            return None
        if self._place is None:
            self._place = self._make_elsewhere(self._packer, self._servers())
        return self._place if self._place.is_used(topology) else None

    def concern(self, id: str) -> bool:
        """True for a row that may be for one of them."""
        return bool(self.first) and any(shard in self.first for shard in self.homes(id))

    def note_first(self, row: Head) -> None:
        for shard in self.homes(row.id):
            known = self.first.get(shard)
            if known is not None and row.seq < known.seq:
                self.first[shard] = Stuck(row.seq, row.id, row.created, known.error)

    def note(self, rows: Sequence[Numbered], failing: Failing, result: Results) -> set[int]:
        """Notes the first row of each shard that takes nothing from now on. Returns these shards."""
        new = failing.errors.keys() - self.first.keys()
        settled = {*result.done, *(seq for seq, _ in result.failed)}
        for row in rows if new else ():
            if row.seq not in settled:
                for shard in new.intersection(self.homes(row.command.id)):
                    self.first.setdefault(shard, Stuck(row.seq, row.command.id, row.created, failing.errors[shard]))
        return new
