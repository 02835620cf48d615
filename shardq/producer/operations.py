"""Pushing, cancelling, rescheduling, requeueing and looking up: the operations, written once for both engines."""

from __future__ import annotations

import datetime as dt
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from shardq.atlas import Atlas
from shardq.calls import orders, produce
from shardq.calls.answers import Missing, Moving, Stale
from shardq.calls.request import Command, Word
from shardq.errors import Conflict, PushError, ShardqError, Unanswered
from shardq.growth.moves import brought, cleared
from shardq.layout.keys import ShardKeys
from shardq.model.ids import topic_of
from shardq.model.record import Codec, decode_record
from shardq.model.task import Outcome, Receipt, TaskInfo
from shardq.operation import Make, Many, Operation, mended, resending
from shardq.producer.packing import FRESH, UNIQUE, Batch, Entries, Packer, batches, windows

T = TypeVar("T")

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


RECEIPTS = 8000
"""Made at a time, in less than a millisecond."""


@dataclass(slots=True)
class Tally:
    """What became of the tasks of one push so far."""

    ids: list[str]
    failed: dict[str, ShardqError] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    """Ids that collided, to the ids that took their place."""
    answers: dict[str, list[str]] = field(default_factory=dict)
    """What became of caller-given ids. More than one answer: the call has the id as often, in this order."""
    _ready: list[Receipt] = field(default_factory=list)
    """The first receipts, if all goes well."""
    _sent: int = 0

    def sent(self, batch: Batch) -> None:
        """It is on its way: a moment to make receipts, while the servers work."""
        self._sent += len(batch.words) // batch.width
        if self._sent - len(self._ready) >= RECEIPTS or self._sent == len(self.ids):
            self._make(self._sent)

    def _make(self, until: int) -> None:
        made = self.ids[len(self._ready) : until]
        # Each is an object to the garbage collector, which would go through all of a process's objects several times in
        # a large push: half a microsecond a task. They hold nothing that could be garbage, and so it waits.
        collecting = gc.isenabled()
        gc.disable()
        self._ready += map(Receipt, made)
        if collecting:
            gc.enable()

    def receipts(self) -> list[Receipt]:
        """In the order of the tasks. Raises PushError unless every task is stored, or kept as the caller allowed."""
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
        """What push_unique said of a caller-given id."""
        if answer.startswith("refused:"):
            self.failed[id] = Conflict(id, answer.removeprefix("refused:"))
            return
        self.answers.setdefault(id, []).append(answer)

    def note(self, batch: Batch, result: list[str] | ShardqError, packer: Packer) -> list[Word]:
        """Records a batch's answer; what it answers itself must be sent again, under other ids."""
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


def pushed(atlas: Atlas, packer: Packer, entries: Entries, *, most: int) -> Operation[list[Receipt]]:
    """Stores packed tasks. All or nothing for each batch; raises PushError when not all of them are stored."""
    return (yield from completed(atlas, packer, Tally(entries.ids), entries, most=most))


def completed(atlas: Atlas, packer: Packer, tally: Tally, entries: Entries, *, most: int) -> Operation[list[Receipt]]:
    """The same for the tasks of a tally that are still to be sent."""
    for width, words in ((FRESH, entries.fresh), (UNIQUE, entries.unique)):
        round = 0
        while words:
            # The epoch first: what is decided by a newer topology, which another thread may learn at any moment, is
            # then refused by the shard and decided anew.
            epoch = atlas.topology.epoch
            if width == UNIQUE and atlas.topology.priors:
                yield from _sought(atlas, packer, tally, words)
                break
            words = yield from _sent(atlas, packer, tally, words, width, epoch, most=most, round=round)
            round += 1
    return tally.receipts()


def _sought(atlas: Atlas, packer: Packer, tally: Tally, words: list[Word]) -> Operation[None]:
    """While tasks move, a caller-given id is looked for where it may be before it is pushed where it belongs."""
    for at in range(0, len(words), UNIQUE):
        some = words[at : at + UNIQUE]
        try:
            tally.answered(str(some[0]), (yield from unique_pushed(atlas, some)))
        except ShardqError as exc:
            tally.note(Batch(atlas.home(str(some[0])), some, UNIQUE), exc, packer)


def unique_pushed(atlas: Atlas, words: list[Word], *, in_doubt: bool = False) -> Operation[str]:
    """Pushes one task under its id: to a shard that has the id from earlier, else where it belongs. The answer.

    The order of the shards is the way tasks move, so that one that moves on meanwhile is met in a later one.
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
        topology = atlas.topology
        *former, home = (atlas.keys(shard) for shard in topology.homes(id))
        keys = home
        try:
            for keys in former:
                answer = yield from asked(keys, topology.epoch, earlier="1")
                if answer == "moving":
                    # asked again: what arrives may be done before we look there, and its window is still here
                    yield from brought(atlas, keys, id)
                    answer = yield from asked(keys, topology.epoch, earlier="2")
                if answer != "elsewhere":
                    return answer
            keys = home
            answer = yield from asked(home, topology.epoch, earlier="0")
            if answer != "moving":
                return answer
            yield from cleared(atlas, home, id)
        except (Stale, Missing) as fault:
            yield from mended(atlas, keys, fault, round, in_doubt=in_doubt)
            round += 1


def _sent(
    atlas: Atlas, packer: Packer, tally: Tally, words: list[Word], width: int, epoch: int, *, most: int, round: int
) -> Operation[list[Word]]:
    """Sends tasks once, by the topology of this epoch; answers the words that must be sent again."""
    again: list[Word] = []
    faults: list[tuple[Batch, ShardqError, bool]] = []
    sent: dict[int, Batch] = {}
    parts = batches(atlas, words, width, most=most, sizes=windows(atlas.topology.shards))
    for call, result in (yield Many(_calls(epoch, parts, sent, tally))):
        batch = sent.pop(id(call))
        if isinstance(result, (Stale, Missing)):
            faults.append((batch, result, call.in_doubt))
        else:
            again += tally.note(batch, result, packer)
    for batch, fault, in_doubt in faults:
        try:
            yield from mended(atlas, batch.keys, fault, round, in_doubt=in_doubt)
        except ShardqError as exc:
            tally.note(batch, exc, packer)
        else:
            if in_doubt:
                # some of it may be stored, by the older topology: each is asked for where it may be
                yield from asked_for(atlas, packer, tally, batch)
            else:
                again += batch.words
    return again


def asked_for(atlas: Atlas, packer: Packer, tally: Tally, batch: Batch) -> Operation[None]:
    """Pushes tasks one by one after a lost answer and a change of topology: what is stored already is ours."""
    words = batch.as_unique()
    for at in range(0, len(words), UNIQUE):
        id = str(words[at])
        try:
            answer = yield from unique_pushed(atlas, words[at : at + UNIQUE], in_doubt=True)
        except ShardqError as exc:
            tally.note(Batch(batch.keys, words[at : at + UNIQUE], UNIQUE), exc, packer)
        else:
            if batch.width == UNIQUE:
                tally.answered(id, answer)


def _calls(epoch: int, source: Iterable[Batch], sent: dict[int, Batch], tally: Tally) -> Iterator[Command[list[str]]]:
    for batch in source:
        call = batch.call(epoch)
        sent[id(call)] = batch
        yield call
        tally.sent(batch)


def pushed_one(atlas: Atlas, packer: Packer, entries: Entries) -> Operation[Receipt]:
    """Stores one packed task; its own error is raised as it is."""
    if entries.unique:
        return _receipt(entries.ids[0], (yield from unique_pushed(atlas, entries.unique)))
    words = entries.fresh
    round = 0
    while True:
        # the epoch first, as above
        epoch = atlas.topology.epoch
        batch = Batch(atlas.home(str(words[0])), words, FRESH)
        call = batch.call(epoch)
        try:
            if not (yield call):
                return Receipt(words[0])
        except (Stale, Missing) as fault:
            yield from mended(atlas, batch.keys, fault, round, in_doubt=call.in_doubt)
            if call.in_doubt:
                yield from unique_pushed(atlas, batch.as_unique(), in_doubt=True)
                return Receipt(words[0])
            round += 1
        else:
            words = [*packer.again(str(words[0]), words[1], words[2])]


def _receipt(id: str, answer: str) -> Receipt:
    if answer.startswith("refused:"):
        raise Conflict(id, answer.removeprefix("refused:"))
    return Receipt.of(id, answer)


def looked_up(
    atlas: Atlas, id: str, make: Make[T], *, absent: Callable[[T], bool], in_doubt: bool = False
) -> Operation[T]:
    """An order or question by id, put to each shard that may hold the id until one knows it.

    The order of the shards is the way tasks move: an id that moves on meanwhile is met in a later one. A topology
    that changes meanwhile starts the round anew. What is on its way is put where it goes, and asked for there.
    ``in_doubt``: an earlier send may have been executed. So may each of these, once an answer was lost: all that follow
    are sent, and their answers read, as after that.
    """
    round = 0
    while True:
        topology = atlas.topology
        shards = topology.homes(id)
        keys = atlas.keys(shards[0])
        try:
            for shard in shards:
                keys = atlas.keys(shard)
                call = (resending(make) if in_doubt else make)(keys, topology.epoch)
                try:
                    result = yield call
                except Moving:
                    if shard == shards[-1]:
                        raise
                    yield from brought(atlas, keys, id)
                    continue
                finally:
                    in_doubt = in_doubt or call.in_doubt
                if not absent(result):
                    break
        except (Stale, Missing) as fault:
            yield from mended(atlas, keys, fault, round, in_doubt=in_doubt)
            round += 1
        except Moving:
            yield from cleared(atlas, keys, id)
        else:
            return result  # type: ignore[no-any-return]  # what a yield gives back is untyped


def cancelled(atlas: Atlas, id: str) -> Operation[Outcome]:
    return (yield from looked_up(atlas, id, partial(orders.cancel, id=id), absent=_gone))


def rescheduled(atlas: Atlas, id: str, due: int) -> Operation[Outcome]:
    return (yield from looked_up(atlas, id, partial(orders.reschedule, id=id, due=due), absent=_gone))


def requeued(atlas: Atlas, id: str, due: int, *, in_doubt: bool = False) -> Operation[Outcome]:
    make = partial(orders.requeue, id=id, due=due)
    return (yield from looked_up(atlas, id, make, absent=_gone, in_doubt=in_doubt))


REQUEUES = 500
"""Sent together."""


def all_requeued(atlas: Atlas, ids: Sequence[str], due: int) -> Operation[int]:
    """Requeues those that are dead; answers how many were."""
    count = 0
    for at in range(0, len(ids), REQUEUES):
        topology, some = atlas.topology, ids[at : at + REQUEUES]
        homes = [atlas.keys(topology.homes(each)[0]) for each in some]
        calls = [orders.requeue(keys, topology.epoch, each, due) for keys, each in zip(homes, some, strict=True)]
        ids_of = dict(zip(map(id, calls), some, strict=True))
        for call, outcome in (yield Many(calls)):
            if isinstance(outcome, ShardqError) or _gone(outcome):
                # not there, or not by this topology: looked for like any other
                outcome = yield from requeued(atlas, ids_of[id(call)], due, in_doubt=call.in_doubt)
            count += bool(outcome)
    return count


def found(atlas: Atlas, id: str, codec: Codec) -> Operation[TaskInfo | None]:
    task = yield from looked_up(atlas, id, partial(orders.get, id=id), absent=lambda found: found is None)
    if task is None:
        return None
    record = decode_record(task.record, own=codec)
    # no division: the float would miss the millisecond in years far away
    instant = _EPOCH + dt.timedelta(milliseconds=task.instant_ms) if task.instant_ms is not None else None
    return TaskInfo(
        id=id,
        topic=topic_of(id),
        state=task.state,
        due=instant if task.state == "scheduled" else None,
        deadline=instant if task.state == "leased" else None,
        attempt=task.failures + task.lapses + 1,
        failures=task.failures,
        lapses=task.lapses,
        reason=task.reason,
        payload=record.payload,
        headers=record.headers,
        max_attempts=record.max_attempts,
    )


def _gone(outcome: Outcome) -> bool:
    """True if the shard that was asked does not hold the id now."""
    return outcome in (Outcome.GONE, Outcome.UNKNOWN)
