"""Cancelling, rescheduling, requeueing and looking up tasks by id: the operations, written once for both engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TypeVar

from shardq.core.calls import by_id, lane_control
from shardq.core.calls.request import Call, Epoch, Moving, Word
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import key_of, of_key
from shardq.core.layout.words import shown_id
from shardq.core.model.attempts import holder_of
from shardq.core.model.checks import shown_instant
from shardq.core.model.ends import instant_of_push
from shardq.core.model.ids import topic_of
from shardq.core.model.record import Codec, Decoded, decode_record, pushed_s_of, undecoded
from shardq.core.model.task import Outcome, TaskInfo
from shardq.core.operation import Operation
from shardq.core.resharding.migration import bring_in, bring_in_and_clear
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import take_up_keys
from shardq.core.topology_recovery import CallChain, Make, call_shard, call_shards, walk_shards
from shardq.errors import ShardqError

T = TypeVar("T")

Verb = Literal["cancel", "requeue", "reschedule"]


def find_and_call(
    cache: TopologyCache, id: str, make: Make[T], *, absent: Callable[[T], bool], in_doubt: bool = False
) -> Operation[T]:
    """Sends a request about one id to each shard that may hold the id, until one knows it.

    Shards are asked in the direction in which tasks move: an id that moves meanwhile is met in a later one. A topology
    that changes meanwhile starts the walk anew. A moving task is put where it goes, and asked for there. ``in_doubt``:
    an earlier send may have been executed.
    """

    def walk(chain: CallChain) -> Operation[T]:
        while True:
            topology = cache.topology
            shards = topology.homes(id)
            for shard in shards:
                keys = cache.keys(shard)
                try:
                    result: T = yield chain.next(keys, make(keys, topology.stamp))
                except Moving:
                    if shard == shards[-1]:
                        yield from bring_in_and_clear(cache, keys, id)
                    else:
                        yield from bring_in(cache, keys, id)
                else:
                    if shard == shards[-1] or not absent(result):
                        return result

    return walk_shards(cache, walk, in_doubt=in_doubt)


def cancel(cache: TopologyCache, id: str) -> Operation[Outcome]:
    return find_and_call(cache, id, partial(cancelling, cache, id), absent=is_gone)


def cancelling(cache: TopologyCache, id: str, keys: ShardKeys, epoch: Epoch) -> Call[Outcome]:
    """The call that cancels a task, and has its end kept."""
    return by_id.cancel(keys, epoch, id, ends_rule=ends_rule(cache, id, epoch))


def ends_rule(cache: TopologyCache, id: str, epoch: Epoch) -> str:
    """The rule by which the end of a task is kept, for a call of this epoch."""
    topology = cache.of(epoch)
    return topology.ends_rule if topology.ends_age_ms(topic_of(id)) else ""


def reschedule(cache: TopologyCache, id: str, due: int) -> Operation[Outcome]:
    return find_and_call(cache, id, partial(by_id.reschedule, id=id, due=due), absent=is_gone)


def requeue(cache: TopologyCache, id: str, due: int) -> Operation[Outcome]:
    return find_and_call(cache, id, partial(by_id.requeue, id=id, due=due), absent=is_gone)


def order(cache: TopologyCache, verb: Verb, id: str, due: int) -> Operation[Outcome]:
    """Any of the three. A cancel does not read ``due``, which is a due word."""
    if verb == "cancel":
        return cancel(cache, id)
    return requeue(cache, id, due) if verb == "requeue" else reschedule(cache, id, due)


def hold(cache: TopologyCache, topic: str, key: str, until: Word) -> Operation[None]:
    """Has a key give nothing until this due word; "" lets it go on. While it moves all of its shards are told, first
    the one where it belongs: from then on what it leaves behind comes there. A change that begins meanwhile begins the
    telling anew.
    """
    lane = of_key(topic, key)

    def tell(keys: ShardKeys, epoch: Epoch) -> Call[None]:
        *former, home = cache.topology.homes(lane)
        if keys.shard == home:
            return lane_control.hold(keys, epoch, lane, until, "new" if former else "")
        # a shard that it has left, in a change that has ended, keeps no hold
        return (
            lane_control.hold(keys, epoch, lane, until, "old") if former else lane_control.hold(keys, epoch, lane, "")
        )

    yield from take_up_keys(cache)
    homes = None
    while homes != cache.topology.homes(lane):
        homes = cache.topology.homes(lane)
        for shard in reversed(homes):
            yield from call_shard(cache, cache.keys(shard), tell)


def call_each(cache: TopologyCache, makes: Mapping[str, Make[Outcome]]) -> Operation[dict[str, Outcome | ShardqError]]:
    """Sends a command for each of these ids: all together where the ids belong, and one by one where an id may be
    elsewhere. Returns, by id, the outcome or the error.
    """
    epoch = cache.topology.stamp
    calls: dict[str, list[Call[Outcome]]] = {id: [] for id in makes}

    def noted(id: str, keys: ShardKeys, epoch: Epoch) -> Call[Outcome]:
        calls[id].append(makes[id](keys, epoch))
        return calls[id][-1]

    requests = {id: (cache.keys(cache.topology.homes(id)[-1]), partial(noted, id)) for id in makes}
    answers: dict[str, Outcome | ShardqError] = dict((yield from call_shards(cache, requests)))
    for id, answer in answers.items():
        moves = len(cache.topology.homes(id)) > 1 or cache.topology.stamp != epoch
        if isinstance(answer, Moving) or (moves and answer in (Outcome.GONE, Outcome.UNKNOWN)):
            in_doubt = any(call.in_doubt for call in calls[id])
            try:
                answers[id] = yield from find_and_call(cache, id, makes[id], absent=is_gone, in_doubt=in_doubt)
            except ShardqError as exc:
                answers[id] = exc
    return answers


def get(cache: TopologyCache, id: str, codec: Codec | None) -> Operation[TaskInfo | None]:
    """Reads a task. Without a codec its payload stays as it is stored."""
    task = yield from find_and_call(cache, id, partial(by_id.get, id=id), absent=lambda found: found is None)
    if task is None:
        return None
    return info_of(id, task, undecoded(task.record) if codec is None else decode_record(task.record, own=codec, id=id))


def info_of(id: str, task: by_id.Found, record: Decoded) -> TaskInfo:
    """The facts that a caller is told of a task."""
    instant = shown_instant(task.instant_ms) if task.instant_ms is not None else None
    return TaskInfo(
        id=shown_id(id),
        topic=topic_of(shown_id(id)),
        key=key_of(shown_id(id)),
        state=task.state,
        due=instant if task.state in ("scheduled", "held") else None,
        deadline=instant if task.state == "leased" else None,
        holder=holder_of(task.token) if task.state == "leased" else None,
        died=instant if task.state == "dead" else None,
        attempt=task.failures + task.lapses + (task.state != "dead"),
        failures=task.failures,
        lapses=task.lapses,
        reason=task.reason,
        payload=record.payload,
        expires=None if record.expires_ms is None else shown_instant(record.expires_ms),
        codec=record.codec,
        attempts=task.attempts,
        pushed=instant_of_push(id, pushed_s_of(task.record)),
        **record.content.named(),
    )


def is_gone(outcome: Outcome) -> bool:
    """True if the shard that was asked does not hold the id now."""
    return outcome in (Outcome.GONE, Outcome.UNKNOWN)
