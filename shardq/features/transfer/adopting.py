"""Stores tasks as they were, or under ids that were made for them before, each once: ``adopt`` on all shards. An
operation, for both drivers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardq.core.calls import transfer
from shardq.core.calls.by_id import Answer
from shardq.core.calls.request import Word
from shardq.core.calls.transfer import ADOPTED, id_in
from shardq.core.layout.lanes import lane_of
from shardq.core.operation import Operation
from shardq.core.producer.packing import BATCH, CALL_BYTES
from shardq.core.producer.turns import Ordered, Sending
from shardq.core.resharding.migration import bring_in, bring_in_and_clear
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import take_up_keys
from shardq.core.topology_recovery import REFUSALS, CallChain, Recovery, walk_shards
from shardq.errors import ShardqError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Batch(Ordered[list[Answer]]):
    places: list[int]
    words: list[Word]

    @property
    def ids(self) -> list[Word]:
        return self.words[::ADOPTED]


def adopt(
    cache: TopologyCache, tasks: Sequence[list[Word]], once: str, meanwhile: Callable[[], object] | None = None
) -> Operation[list[Answer | ShardqError]]:
    """Stores tasks, each once, where they belong. Returns one answer, or the error, for each. ``once``: as of the
    script. ``meanwhile`` is called when the first calls are sent.
    """
    answers: list[Answer | ShardqError] = [""] * len(tasks)
    left = list(range(len(tasks)))
    recovery = Recovery(cache)
    while left:
        if not cache.topology.is_keyed and any(lane_of(id_in(tasks[at])) for at in left):
            yield from take_up_keys(cache)
        alone = left if cache.topology.priors else []
        again: list[int] = []
        batches: Iterable[_Batch] = [] if alone else _batches(cache, tasks, left, once)
        if meanwhile is not None and not alone:
            batches, meanwhile = _and_then(batches, meanwhile), None
        sending = Sending(batches, _is_over, in_order=cache.topology.is_keyed)
        for batch, result in (yield from recovery.send(sending, sending.told)):
            if isinstance(result, REFUSALS):
                again += batch.places
                continue
            said = [result] * len(batch.places) if isinstance(result, ShardqError) else result
            for at, answer in zip(batch.places, said, strict=True):
                answers[at] = "adopted" if answer == "known" and batch.call.in_doubt else answer
                if answer == "moving":
                    alone.append(at)
        for at in alone:
            try:
                answers[at] = yield from _adopt_one(cache, tasks[at], once)
            except ShardqError as exc:
                answers[at] = exc
        left = again + [at for batch in sending.rest() for at in batch.places]
    return answers


def _is_over(_: _Batch, result: list[Answer] | ShardqError) -> bool:
    return not (isinstance(result, REFUSALS) or (isinstance(result, list) and "moving" in result))


def _batches(cache: TopologyCache, tasks: Sequence[list[Word]], places: Sequence[int], once: str) -> Iterator[_Batch]:
    # The epoch first: a shard then refuses what a newer topology has routed meanwhile.
    epoch = cache.topology.stamp
    groups: dict[int, list[int]] = defaultdict(list)
    for at, shard in zip(places, cache.topology.shards_of([id_in(tasks[at]) for at in places]), strict=True):
        groups[shard].append(at)
    for shard, group in groups.items():
        keys = cache.keys(shard)
        for part in _bounded(tasks, group):
            words = [word for at in part for word in tasks[at]]
            call = transfer.adopt(keys, epoch, words, once=once)
            yield _Batch(keys, call, part, words)


def _and_then(calls: Iterable[T], meanwhile: Callable[[], object]) -> Iterator[T]:
    yield from calls
    meanwhile()


def _bounded(tasks: Sequence[list[Word]], group: Sequence[int]) -> Iterator[list[int]]:
    part: list[int] = []
    size = 0
    for at in group:
        length = len(tasks[at][2]) + len(tasks[at][5])  # type: ignore[arg-type]  # record and reason are bytes
        if part and (len(part) == BATCH or size + length > CALL_BYTES):
            yield part
            part, size = [], 0
        part.append(at)
        size += length
    if part:
        yield part


def _adopt_one(cache: TopologyCache, words: list[Word], once: str) -> Operation[Answer]:
    """Stores one task while tasks move: each shard that may have it is asked before, in the order in which they do."""
    id = id_in(words)

    def walk(chain: CallChain) -> Operation[Answer]:
        while True:
            topology, seen = cache.topology, ""
            *former, home = map(cache.keys, topology.homes(id))
            for keys in former:
                (answer,) = yield chain.next(keys, transfer.adopt(keys, topology.stamp, words, once=once, earlier="1"))
                if answer == "moving":
                    yield from bring_in(cache, keys, id)
                    call = transfer.adopt(keys, topology.stamp, words, once=once, earlier="2")
                    (answer,) = yield chain.next(keys, call)
                if answer == "seen":
                    seen = answer
                elif answer != "elsewhere":
                    return answer  # type: ignore[no-any-return]  # what a yield gives back is untyped
            marked = topology.marked(words, ADOPTED)
            call = transfer.adopt(home, topology.stamp, marked, once=once, earlier="1" if seen else "0")
            (answer,) = yield chain.next(home, call)
            if answer != "moving":
                return seen or answer if answer == "elsewhere" else answer
            yield from bring_in_and_clear(cache, home, id)

    return walk_shards(cache, walk)
