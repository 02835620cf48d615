"""The ``LaneKeeper``, a thread of each dispatcher of an engine that has keys. While the number of shards changes it has
lanes arrive: it closes each that waits where it belongs at the shards that it leaves, moves what is left of closed
ones, and opens those of which nothing is left elsewhere. Otherwise it looks over the lanes, some hundred a second, and
mends what a lost write, or a clock that went back, has left.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from shardq.core.calls import lane_control as calls
from shardq.core.calls import resharding
from shardq.core.calls.lane_control import Closed
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import behind, lane_of
from shardq.core.layout.topology import Topology
from shardq.core.operation import Operation, run
from shardq.core.resharding.migration import MigrationPipeline, MoveRate, MoveTokens, bring_in, move_lanes
from shardq.core.resharding.moving_lanes import PAGE, Lanes, closed
from shardq.core.resharding.repair import enter_lanes
from shardq.core.threads import Loop
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import REFUSALS
from shardq.core.topology_upkeep import refresh

log: logging.Logger = logging.getLogger("shardq.resharding")

LOOK_S = 0.1
"""The time between two looks while lanes move."""

REPAIR_S, REPAIRED_S = 1.0, 60.0
"""The time between two pages of lanes, and that after all of them."""

BROUGHT = 100
"""Tasks on their way that are brought in at a look, one by one."""

CALL_TIMEOUT_S = 5.0


class LaneKeeper:
    """The thread of one process. ``mine``: the shards that it serves; ``members``: the number of those that share the
    work.
    """

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        *,
        process: str,
        mine: Callable[[], Sequence[int]],
        members: Callable[[], int],
    ) -> None:
        self._driver = driver
        self._cache = cache
        self._numbers = MoveTokens(f"{process}-keys")
        self._mine, self._members = mine, members
        self._known = Lanes()
        self._round: list[int] = []
        """The shards that this round of repairs still has to look at; the first one from ``_start`` on."""
        self._start = ""
        self.loop: Loop = Loop(
            "shardq-lanes",
            self._step,
            log,
            fails="keys are held up, trying again",
            works="keys go on",
            failed=driver.outages.covers,
        )

    def topology_changed(self, topology: Topology) -> None:
        """Also called once at the start."""
        if topology.is_keyed:
            self.loop.start()
            self.loop.wake()

    def _step(self) -> float:
        topology = self._cache.topology
        if not topology.is_keyed or topology.pending is not None:
            return REPAIR_S
        try:
            return self._move(topology) if topology.priors else self._repair()
        except REFUSALS:
            run(self._driver, refresh(self._cache), CALL_TIMEOUT_S)
            return LOOK_S

    def _move(self, topology: Topology) -> float:
        if self._known.since != topology.since:
            self._known = Lanes(topology.since)
        pace = MoveRate(topology.share_of(self._members()), stopped=self.loop.stopping.is_set)
        for shard in self._mine():
            if not self.loop.stopping.is_set():
                keys = self._cache.keys(shard)
                run(self._driver, open_arrived(self._cache, keys, self._known), CALL_TIMEOUT_S)
                run(self._driver, move_closed(self._cache, keys, self._numbers, pace, self._known), CALL_TIMEOUT_S)
        return LOOK_S

    def _repair(self) -> float:
        if not self._round:
            self._round, self._start = list(self._mine()), ""
        if not self._round:
            return REPAIR_S
        keys = self._cache.keys(self._round[0])
        call = calls.lanes(keys, self._cache.topology.stamp, self._start, count=PAGE)
        page, mended, lacking = self._driver.call(call, timeout=CALL_TIMEOUT_S)
        if mended:
            log.warning("%d places of keys in shard %d were of tasks that are gone: freed", mended, keys.shard)
        if lacking and not self._start:
            entered = run(self._driver, enter_lanes(self._cache, keys, lacking), CALL_TIMEOUT_S)
            log.warning("%d tasks in shard %d were not known to their keys: %d are now", lacking, keys.shard, entered)
        self._start = behind(page[-1]) if len(page) == PAGE else ""
        if not self._start:
            self._round.pop(0)
        return REPAIR_S if self._round else REPAIRED_S


def open_arrived(cache: TopologyCache, target: ShardKeys, known: Lanes | None = None) -> Operation[None]:
    """Opens lanes that something has come here of, and that nothing is left of elsewhere."""
    topology, known = cache.topology, known or Lanes()
    lanes = yield from _gates(cache, target, "shut", known)
    former: defaultdict[int, list[str]] = defaultdict(list)
    for lane in lanes:
        for shard in topology.homes(lane):
            if shard != target.shard:
                former[shard].append(lane)
    states: dict[str, list[Closed]] = {lane: [] for lane in lanes}
    for shard, some in former.items():
        source = cache.keys(shard)
        told = {each.lane: each for each in (yield from closed(cache, source, some, known)) if not each.waits}
        under_way = yield from _under_way(cache, source, told)
        for lane in some:
            if lane not in told or lane in under_way:
                states.pop(lane, None)
            elif lane in states:
                states[lane].append(told[lane])
    going = [_merged(lane, told) for lane, told in states.items()]
    for at in range(0, len(going), PAGE):
        yield calls.open_lanes(target, topology.stamp, going[at : at + PAGE])


def move_closed(
    cache: TopologyCache, source: ShardKeys, numbers: MoveTokens, pace: MoveRate, known: Lanes
) -> Operation[None]:
    """Moves what waits in lanes that are closed, of which nothing is ready or leased any more."""
    lanes = yield from _gates(cache, source, "closed", known)
    left = [lane for lane in lanes if (source.shard, lane) not in known.done]
    if not left:
        return
    told = yield from closed(cache, source, left, known)
    known.done.update((source.shard, each.lane) for each in told if not each.waits)
    going = [each.lane for each in told if each.waits]
    if going:
        pipeline = MigrationPipeline(cache, cache.topology, source, numbers, size=pace.size)
        yield from move_lanes(cache, source, going, pipeline, pace)
        yield from pipeline.check()


def _gates(cache: TopologyCache, keys: ShardKeys, what: calls.Gate, known: Lanes) -> Operation[list[str]]:
    """Some of the lanes with such a gate: the next ones."""
    cursor = known.cursors.get((keys.shard, what), "0")
    following, lanes = yield calls.gates(keys, what, cache.topology.since, cursor)
    known.cursors[keys.shard, what] = following
    return list(lanes)


def _under_way(cache: TopologyCache, source: ShardKeys, lanes: Collection[str]) -> Operation[set[str]]:
    """Brings in what is moving out of a shard of these lanes. Returns those of which some is left."""
    moving: list[str] = (yield resharding.moving_ids(source)) if lanes else []
    ids = [id for id in moving if lane_of(id) in lanes]
    for id in ids[:BROUGHT]:
        yield from bring_in(cache, source, id)
    return {lane for id in ids[BROUGHT:] if (lane := lane_of(id)) is not None}


def _merged(lane: str, told: Sequence[Closed]) -> Closed:
    turn = max((each.turn for each in told if each.turn), key=float, default="")
    held = max((each.held for each in told if each.held), key=float, default="")
    return Closed(lane, 0, False, turn, held)
