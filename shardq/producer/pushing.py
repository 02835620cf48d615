"""Pushing, written once for both engines."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from shardq.calls import produce
from shardq.calls.answers import Missing, Stale
from shardq.calls.request import Call, Word
from shardq.errors import Conflict, PushError, ShardqError, Unanswered
from shardq.layout.keys import ShardKeys
from shardq.model.task import Receipt
from shardq.operation import Many, Operation
from shardq.producer.packing import FRESH, UNIQUE, Batch, Entries, Packer, batches, windows
from shardq.recovery import recover
from shardq.resharding.migration import bring_in, bring_in_and_clear
from shardq.topology_cache import TopologyCache

T = TypeVar("T")


RECEIPTS = 8000
"""Receipts made at a time, in less than a millisecond."""


@dataclass(slots=True)
class PushResults:
    """The results of one push so far."""

    ids: list[str]
    failed: dict[str, ShardqError] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    """Id that collided → the id that took its place."""
    answers: dict[str, list[str]] = field(default_factory=dict)
    """Caller-given id → its answers, in order: a call may have an id more than once."""
    _ready: list[Receipt] = field(default_factory=list)
    """The first receipts, if all goes well."""
    _sent_count: int = 0

    def sent(self, batch: Batch) -> None:
        """Called when a batch is in flight: the time to make receipts, while the servers work."""
        self._sent_count += len(batch.words) // batch.width
        if self._sent_count - len(self._ready) >= RECEIPTS or self._sent_count == len(self.ids):
            self._make(self._sent_count)

    def _make(self, until: int) -> None:
        made = self.ids[len(self._ready) : until]
        # Each receipt is an object to the garbage collector, which would go through all of a process's objects several
        # times in a large push: half a microsecond a task. Receipts hold nothing that could be garbage, so it is
        # paused.
        collecting = gc.isenabled()
        gc.disable()
        self._ready += map(Receipt, made)
        if collecting:
            gc.enable()

    def receipts(self) -> list[Receipt]:
        """The receipts in the order of the tasks. Raises PushError unless every task is stored, or kept as the caller
        allowed.
        """
        if self.renamed or self.answers:
            answers = {id: iter(said) for id, said in self.answers.items()}
            ids = [self.renamed.get(id, id) for id in self.ids]
            receipts = [Receipt.of(id, next(answers[id], "pushed") if id in answers else "pushed") for id in ids]
        else:
            self._make(len(self.ids))
            receipts = self._ready
        if self.failed or self.unknown:
            raise PushError(
                ids=receipts,
                stored=[id for id in receipts if id not in self.failed and id not in self.unknown],
                failed=self.failed,
                unknown=[id for id in receipts if id in self.unknown],
            )
        return receipts

    def answered(self, id: str, answer: str) -> None:
        """Notes push_unique's answer for a caller-given id."""
        if answer.startswith("refused:"):
            self.failed[id] = Conflict(id, answer.removeprefix("refused:"))
            return
        self.answers.setdefault(id, []).append(answer)

    def note(self, batch: Batch, result: list[str] | ShardqError, packer: Packer) -> list[Word]:
        """Notes a batch's answer. Returns the words to send again, under other ids."""
        if isinstance(result, ShardqError):
            if isinstance(result, Unanswered):
                self.unknown.update(batch.ids)
            else:
                self.failed.update(dict.fromkeys(batch.ids, result))
            return []
        if batch.width == UNIQUE:
            for id, answer in zip(batch.ids, result, strict=True):
                self.answered(id, answer)
            return []
        if not result:
            return []
        collided = set(result)
        again: list[Word] = []
        first_names = {new: old for old, new in self.renamed.items()}
        words = batch.words
        for at in range(0, len(words), FRESH):
            taken, due, record = str(words[at]), *words[at + 1 : at + FRESH]
            if taken in collided:
                fresh = packer.again(taken, due, record)
                self.renamed[first_names.get(taken, taken)] = fresh[0]
                again += fresh
            else:
                again += (taken, due, record)
        return again


def push(cache: TopologyCache, packer: Packer, entries: Entries, *, most: int) -> Operation[list[Receipt]]:
    """Stores packed tasks. All or nothing for each batch; raises PushError if not all of them are stored."""
    return (yield from complete(cache, packer, PushResults(entries.ids), entries, most=most))


def complete(
    cache: TopologyCache, packer: Packer, results: PushResults, entries: Entries, *, most: int
) -> Operation[list[Receipt]]:
    """Stores the tasks of a push that are still to be sent."""
    for width, words in ((FRESH, entries.fresh), (UNIQUE, entries.unique)):
        round = 0
        while words:
            # The epoch first. A shard then refuses what another thread's newer topology has decided meanwhile, and it
            # is decided anew.
            epoch = cache.topology.epoch
            if width == UNIQUE and cache.topology.priors:
                yield from _push_where_found(cache, packer, results, words)
                break
            words = yield from _send_once(cache, packer, results, words, width, epoch, most=most, round=round)
            round += 1
    return results.receipts()


def _push_where_found(cache: TopologyCache, packer: Packer, results: PushResults, words: list[Word]) -> Operation[None]:
    """Pushes caller-given ids while tasks move: each id is looked for where it may be before it is pushed where it
    belongs.
    """
    for at in range(0, len(words), UNIQUE):
        some = words[at : at + UNIQUE]
        try:
            results.answered(str(some[0]), (yield from push_unique(cache, some)))
        except ShardqError as exc:
            results.note(Batch(cache.home(str(some[0])), some, UNIQUE), exc, packer)


def push_unique(cache: TopologyCache, words: list[Word], *, in_doubt: bool = False) -> Operation[str]:
    """Pushes one task under its id to a shard that already has the id, else to the shard where it belongs. Returns the
    answer.

    Shards are asked in the direction in which tasks move, so that a task that moves meanwhile is met in a later one.
    ``in_doubt``: an earlier send may have been executed. So may each of these, once an answer was lost.
    """
    id = str(words[0])
    round = 0

    def asked(keys: ShardKeys, epoch: int, *, earlier: produce.Earlier) -> Operation[str]:
        nonlocal in_doubt
        call = produce.push_unique(keys, epoch, words, earlier=earlier)
        if in_doubt:
            call = call.after_loss()
        try:
            (answer,) = yield call
        finally:
            in_doubt = in_doubt or call.in_doubt
        return str(answer)

    while True:
        topology = cache.topology
        *former, home = (cache.keys(shard) for shard in topology.homes(id))
        keys = home
        try:
            for keys in former:
                answer = yield from asked(keys, topology.epoch, earlier="1")
                if answer == "moving":
                    # Asked again: what has arrived may be done before we look there, and its window is still here.
                    yield from bring_in(cache, keys, id)
                    answer = yield from asked(keys, topology.epoch, earlier="2")
                if answer != "elsewhere":
                    return answer
            keys = home
            answer = yield from asked(home, topology.epoch, earlier="0")
            if answer != "moving":
                return answer
            yield from bring_in_and_clear(cache, home, id)
        except (Stale, Missing) as fault:
            yield from recover(cache, keys, fault, round, in_doubt=in_doubt)
            round += 1


def _send_once(
    cache: TopologyCache,
    packer: Packer,
    results: PushResults,
    words: list[Word],
    width: int,
    epoch: int,
    *,
    most: int,
    round: int,
) -> Operation[list[Word]]:
    """Sends tasks once, under the topology of this epoch. Returns the words that must be sent again."""
    again: list[Word] = []
    faults: list[tuple[Batch, ShardqError, bool]] = []
    parts = batches(cache, words, width, most=most, sizes=windows(cache.topology.shards))
    for (batch, call), result in (yield Many(_calls(epoch, parts, results))):
        if isinstance(result, (Stale, Missing)):
            faults.append((batch, result, call.in_doubt))
        else:
            again += results.note(batch, result, packer)
    for batch, fault, in_doubt in faults:
        try:
            yield from recover(cache, batch.keys, fault, round, in_doubt=in_doubt)
        except ShardqError as exc:
            results.note(batch, exc, packer)
        else:
            if in_doubt:
                # Some of it may be stored, under the older topology: each task is asked for where it may be.
                yield from push_in_doubt(cache, packer, results, batch)
            else:
                again += batch.words
    return again


def push_in_doubt(cache: TopologyCache, packer: Packer, results: PushResults, batch: Batch) -> Operation[None]:
    """Pushes tasks one by one after a lost answer and a change of topology: what is stored already is ours."""
    words = batch.as_unique()
    for at in range(0, len(words), UNIQUE):
        id = str(words[at])
        try:
            answer = yield from push_unique(cache, words[at : at + UNIQUE], in_doubt=True)
        except ShardqError as exc:
            results.note(Batch(batch.keys, words[at : at + UNIQUE], UNIQUE), exc, packer)
        else:
            if batch.width == UNIQUE:
                results.answered(id, answer)


def _calls(
    epoch: int, source: Iterable[Batch], results: PushResults
) -> Iterator[tuple[tuple[Batch, Call[list[str]]], Call[list[str]]]]:
    for batch in source:
        call = batch.call(epoch)
        yield (batch, call), call
        results.sent(batch)


def push_one(cache: TopologyCache, packer: Packer, entries: Entries) -> Operation[Receipt]:
    """Stores one packed task, and raises its own error as it is."""
    if entries.unique:
        return _receipt(entries.ids[0], (yield from push_unique(cache, entries.unique)))
    words = entries.fresh
    round = 0
    while True:
        # The epoch first, as above.
        epoch = cache.topology.epoch
        batch = Batch(cache.home(str(words[0])), words, FRESH)
        call = batch.call(epoch)
        try:
            if not (yield call):
                return Receipt(words[0])
        except (Stale, Missing) as fault:
            yield from recover(cache, batch.keys, fault, round, in_doubt=call.in_doubt)
            if call.in_doubt:
                yield from push_unique(cache, batch.as_unique(), in_doubt=True)
                return Receipt(words[0])
            round += 1
        else:
            words = [*packer.again(str(words[0]), words[1], words[2])]


def _receipt(id: str, answer: str) -> Receipt:
    if answer.startswith("refused:"):
        raise Conflict(id, answer.removeprefix("refused:"))
    return Receipt.of(id, answer)
