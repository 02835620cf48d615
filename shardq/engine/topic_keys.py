"""The largest keys of a topic, and the keys that wait behind a task that is stuck: the operations, for both engines."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from shardq.core.calls import by_id, lane_control
from shardq.core.calls.lane_control import LATE_MS, Tallied, Tally
from shardq.core.calls.request import Call, Command, Epoch
from shardq.core.fleet.member import Member, workers
from shardq.core.fleet.report import RunningTask
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import key_of, lane_of
from shardq.core.layout.topology import Limit
from shardq.core.model.ids import quoted_topic, topic_of
from shardq.core.model.printable import quoted
from shardq.core.operation import Many, Operation, succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_every_shard
from shardq.engine.engine_wide import CountsByShard
from shardq.engine.findings import Finding, found
from shardq.errors import InvalidOption

MOST = 500
"""Keys that one call returns at most: a shard takes some milliseconds to tell them."""

MOST_REASONS = 100
"""Keys of which the reason of a failure is read: with it comes the payload of a task."""

Why = Literal["per_key", "per_key_rate", "backoff", "hold", "resize"]
"""A key waits for one of its tasks, as ``per_key`` are ready or leased; for its turn by its rate; for the retry of a
task that failed; for the end of a ``hold``; or for its move to another shard.
"""


class KeyStats(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one key of a topic.

    >>> for each in engine.keys("webhook"):
    ...     print(each.key, each.held, each.ready, each.leased, each.oldest, each.why, each.next_turn, each.over)
    """

    key: str
    scheduled: int
    held: int
    """Tasks that are due, and wait for the key."""
    ready: int
    leased: int
    oldest: float | None
    """Seconds since the first of the held tasks was due; None: none is held."""
    why: Why | None
    """The held tasks wait for this: ``per_key`` or ``per_key_rate`` of the limit, the ``backoff`` after a failure, the
    end of a ``hold``, or a ``resize`` that moves the key. None: none is held, or the next one becomes ready now.
    """
    until: dt.datetime | None
    """The instant, in UTC, at which a ``per_key_rate``, ``backoff`` or ``hold`` lets the next one go. None with a
    ``per_key_rate`` whose tasks are ready: the next turn is so long after a consumer takes one.
    """
    next_turn: dt.datetime | None = None
    """The instant, in UTC, at which the key gives out its next task, by its due time, its rate, its backoff and its
    hold; one that is past: now. None: nothing waits, or it waits for one of its tasks to be taken or to finish, or for
    a resize.
    """
    over: int = 0
    """Tasks that are ready or leased beyond a ``per_key`` that was lowered. The key gives out no other while there are
    any.
    """
    failures: int = 0
    """The failures so far of the task whose retry the key waits for; 0 if it waits for none."""
    reason: str | None = None
    """Why that task failed last, as ``TaskInfo.reason`` has it: of a webhook, the answer of its endpoint. It is told of
    the 100 largest keys.
    """

    @property
    def size(self) -> int:
        """The tasks that are due: held, ready and leased."""
        return self.held + self.ready + self.leased


class KeyList(list[KeyStats]):
    """The largest keys of a topic.

    >>> keys = engine.keys("webhook", limit=5)
    >>> print([each.key for each in keys], "all" if keys.is_whole else "of those that were looked at")
    """

    def __init__(self, keys: Iterable[KeyStats] = (), *, is_whole: bool = True) -> None:
        super().__init__(keys)
        self.is_whole = is_whole
        """False if not every key was looked at: a shard could not be read, or has many keys. A shard looks at 300 with
        held tasks, and at a sample of the others: no key with more than a 300th of the tasks that wait is missed.
        """


def largest_keys(cache: TopologyCache, topic: str, limit: int) -> Operation[KeyList]:
    """The keys of a topic with the most tasks that are due, over all shards."""
    if not cache.topology.is_keyed:
        return KeyList()

    def make(keys: ShardKeys, epoch: Epoch) -> Call[Tally]:
        return lane_control.tally(keys, epoch, topic, count=limit).briefly()

    answers = yield from call_every_shard(cache, make)
    found = succeeded(answers)
    if not found:
        raise next(error for _, error in answers if isinstance(error, Exception))
    bounds = cache.topology.settings_of(topic).limit or Limit()
    by_key: dict[str, KeyStats] = {}
    retrying: dict[str, tuple[ShardKeys, str]] = {}
    for shard_keys, tally in found.items():
        for each in tally.lanes:
            stats = _stats_of(each, tally.now_ms, bounds)
            if each.retry_ms:
                retrying[stats.key] = shard_keys, each.lane
            # while a key moves, two shards have some of it
            by_key[stats.key] = _together(stats, by_key[stats.key]) if stats.key in by_key else stats
    keys = sorted(by_key.values(), key=lambda each: (-each.size, each.key))[:limit]
    first = [each.key for each in keys[:MOST_REASONS] if each.key in retrying]
    heads = yield from _heads(cache, {key: retrying[key] for key in first})
    for at, each_key in enumerate(keys):
        if head := heads.get(each_key.key):
            keys[at] = msgspec.structs.replace(each_key, failures=head.failures, reason=head.reason)
    return KeyList(keys, is_whole=len(found) == len(answers) and all(tally.is_whole for tally in found.values()))


def _heads(cache: TopologyCache, lanes_of: Mapping[str, tuple[ShardKeys, str]]) -> Operation[dict[str, by_id.Found]]:
    """The first task that waits in each of these lanes, as far as it is still there."""
    looks = {key: lane_control.first_of(keys, lane, "", count=1).briefly() for key, (keys, lane) in lanes_of.items()}
    firsts = succeeded((yield Many(looks))) if looks else {}
    gets = {
        key: by_id.get(keys, cache.topology.stamp, lane_control.id_of_entry(firsts[key][0], lane)).briefly()
        for key, (keys, lane) in lanes_of.items()
        if firsts.get(key)
    }
    heads: dict[str, by_id.Found | None] = succeeded((yield Many(gets))) if gets else {}
    return {key: head for key, head in heads.items() if head is not None}


def check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise InvalidOption(f"limit={limit!r} is not possible; give the number of keys, from 1 to {MOST}")


def _stats_of(lane: Tallied, now_ms: int, bounds: Limit) -> KeyStats:
    why, until_ms = _why(lane, now_ms, bounds) if lane.held else (None, None)
    out, most = lane.ready + lane.leased, bounds.per_key or 1
    # the alarm of an empty key is that of its hold
    has_next = lane.scheduled + lane.held > 0 and out < most and not _waits_for_consumers(lane, bounds)
    next_ms = _next_turn(lane, now_ms, bounds) if has_next and lane.alarm_ms is not None else None
    return KeyStats(
        key=key_of(lane.lane) or "",
        scheduled=lane.scheduled,
        held=lane.held,
        ready=lane.ready,
        leased=lane.leased,
        oldest=None if lane.oldest_ms is None else max(0, now_ms - lane.oldest_ms) / 1000,
        why=why,
        until=_instant(until_ms),
        next_turn=_instant(next_ms),
        over=max(0, out - most),
    )


def _instant(ms: float | None) -> dt.datetime | None:
    return None if ms is None else dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def _next_turn(lane: Tallied, now_ms: int, bounds: Limit) -> float:
    """An alarm may be too early: a look at it finds the rate, or the hold."""
    return max(lane.alarm_ms or 0, lane.held_ms, _rested_ms(lane, now_ms, bounds))


def _waits_for_consumers(lane: Tallied, bounds: Limit) -> bool:
    """True if as many tasks are ready as the rate allows: the next one comes when a consumer takes one of these."""
    return bounds.per_key_rate is not None and lane.ready >= _most_ready(bounds.per_key_rate)


def _most_ready(rate: float) -> float:
    return max(1, LATE_MS * rate // 1000)


def _rested_ms(lane: Tallied, now_ms: int, bounds: Limit) -> float:
    """The instant before which a rate lets nothing go; 0 without one."""
    if not bounds.per_key_rate:
        return 0
    interval_ms = 1000 / bounds.per_key_rate
    turn_ms, most = lane.turn_ms, max(bounds.per_key or 1, _most_ready(bounds.per_key_rate))
    if turn_ms > now_ms + (most - 1) * interval_ms:  # of a clock that went back, as turn_of of lanes has it
        turn_ms = now_ms - interval_ms
    return turn_ms + (lane.ready + 1) * interval_ms


def _why(lane: Tallied, now_ms: int, bounds: Limit) -> tuple[Why | None, float | None]:
    if lane.held_ms > now_ms:
        return "hold", lane.held_ms
    if lane.ready + lane.leased >= (bounds.per_key or 1):
        return "per_key", None
    if _waits_for_consumers(lane, bounds):
        return "per_key_rate", None
    if lane.alarm_ms is None:
        return "resize", None
    if lane.retry_ms > now_ms:
        return "backoff", lane.retry_ms
    if (next_ms := _rested_ms(lane, now_ms, bounds)) > now_ms:
        return "per_key_rate", next_ms
    return None, None


def _together(one: KeyStats, other: KeyStats) -> KeyStats:
    chosen = one if one.why is not None else other
    return msgspec.structs.replace(
        chosen,
        scheduled=one.scheduled + other.scheduled,
        held=one.held + other.held,
        ready=one.ready + other.ready,
        leased=one.leased + other.leased,
        over=one.over + other.over,
        next_turn=min((each.next_turn for each in (one, other) if each.next_turn is not None), default=None),
        oldest=max((each.oldest for each in (one, other) if each.oldest is not None), default=None),
    )


def find_stuck_keys(
    cache: TopologyCache, counts_by_shard: CountsByShard, fleet: Sequence[Member], max_age_s: float
) -> Operation[list[Finding]]:
    """Finds keys of which a task has waited for longer than this, and so have handlers been running for all that may be
    out. Only tasks that workers report as their longest are known. No request is made where none is of a key.
    """
    topology, seen = (
        cache.topology,
        {keys: counts for keys, counts in succeeded(counts_by_shard).items() if counts.held},
    )
    running = defaultdict[str, list[RunningTask]](list)
    for task in (each for worker in workers(fleet) for each in worker.longest if each.seconds > max_age_s):
        if lane := lane_of(task.id):
            running[lane].append(task)
    wanted: dict[tuple[ShardKeys, str], Command[int | None]] = {}
    for lane, tasks in running.items():
        bounds = topology.settings_of(topic_of(lane)).limit or Limit()
        if len(tasks) >= (bounds.per_key or 1):
            homes = map(cache.keys, topology.homes(lane))
            wanted |= {(keys, lane): lane_control.oldest_of(keys, lane).briefly() for keys in homes if keys in seen}
    oldest: dict[tuple[ShardKeys, str], int | None] = succeeded((yield Many(wanted)))
    waits = {
        (keys, lane): seen[keys].now_us / 1e6 - due_ms / 1e3
        for (keys, lane), due_ms in oldest.items()
        if due_ms is not None
    }
    return [
        _stuck(lane, waited_s, max(running[lane], key=lambda task: task.seconds))
        for (_, lane), waited_s in sorted(waits.items(), key=lambda each: -each[1])
        if waited_s > max_age_s
    ]


def _stuck(lane: str, waited_s: float, longest: RunningTask) -> Finding:
    """``longest``: of as many as the key may have at once, the one that has been running longest."""
    topic, key = topic_of(lane), key_of(lane) or ""
    return found(
        "stuck_key",
        about=lane,
        topic=quoted_topic(topic),
        key=quoted(key),
        seconds=waited_s,
        task=longest.id,
        running=longest.seconds,
    )
