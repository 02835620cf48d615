"""Pushing, written once for both engines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal, TypeVar

from shardq.core.calls import by_id
from shardq.core.calls.by_id import unique
from shardq.core.calls.request import Call, Word
from shardq.core.collector import uncollected
from shardq.core.layout import destinations
from shardq.core.model.task import Receipt
from shardq.core.operation import Operation
from shardq.core.producer.packing import BATCH, FRESH, UNIQUE, Batch, Entries, Packer, batches, chunk_sizes
from shardq.core.producer.turns import Sending
from shardq.core.resharding.migration import bring_in, bring_in_and_clear
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import take_up_keys
from shardq.core.topology_recovery import REFUSALS, CallChain, Recovery, walk_shards
from shardq.errors import Conflict, InvalidOption, PushError, ShardqError, Unanswered

T = TypeVar("T")

Way = Literal["push", "look"]
"""The way of ids of the caller's own. ``look``: what is nowhere is not stored, and answered ``elsewhere``."""

RECEIPTS = 8000
"""Receipts made at a time, in less than a millisecond."""


@dataclass(slots=True)
class PushResults:
    """The results of one push so far."""

    ids: list[str]
    renamed: dict[str, str] = field(default_factory=dict)
    """Id that collided → the id that took its place."""
    failures: int = 0
    """The number of tasks that are not stored, or not known to be."""
    _answers: list[tuple[int, Sequence[str], Sequence[str | ShardqError]]] = field(default_factory=list)
    """The number of a batch, its ids, and for each push_unique's answer or an error. Tasks that are not here are
    stored. Answers come in any order, and a call may have a caller's id more than once.
    """
    _ready: list[Receipt] = field(default_factory=list)
    """The first receipts, if all goes well."""
    _sent_count: int = 0

    def sent(self, batch: Batch) -> Batch:
        """Notes a batch that is to be sent now."""
        batch.number = self._sent_count
        self._sent_count += len(batch.words) // batch.width
        return batch

    def make_some(self) -> None:
        """Makes receipts for what is in flight, while the servers work, when there are many or no more follow."""
        if self._sent_count - len(self._ready) >= RECEIPTS or self._sent_count == len(self.ids):
            self._make(self._sent_count)

    def _make(self, until: int) -> None:
        made = self.ids[len(self._ready) : until]
        with uncollected():
            self._ready += map(Receipt, made)

    def receipts(self) -> list[Receipt]:
        """The receipts in the order of the tasks. Raises PushError unless every task is stored, or kept as the caller
        allowed.
        """
        if self.failures:
            raise self._error()
        if not self.renamed and not self._answers:
            self._make(len(self.ids))
            return self._ready
        return [Receipt.of(id, outcome) for id, outcome in self.each()]  # type: ignore[arg-type]  # none is an error

    def outcomes(self) -> dict[str, list[str | ShardqError]]:
        """Id → the outcomes of its tasks, in their order."""
        outcomes: dict[str, list[str | ShardqError]] = {}
        for _, ids, said in sorted(self._answers, key=itemgetter(0)):
            for id, outcome in zip(ids, said, strict=True):
                outcomes.setdefault(id, []).append(outcome)
        return outcomes

    def each(self) -> Iterator[tuple[str, str | ShardqError]]:
        """Yields each task's id and outcome, in the order of the tasks."""
        left = {id: iter(said) for id, said in self.outcomes().items()}
        for first in self.ids:
            id = self.renamed.get(first, first)
            yield id, next(left[id], "pushed") if id in left else "pushed"

    def errors(self) -> dict[str, ShardqError]:
        """Id → the error of each task that is not stored, or not known to be; of different ids of the caller's own."""
        if not self.failures:
            return {}
        said = itertools.chain.from_iterable(zip(ids, said, strict=True) for _, ids, said in self._answers)
        return {id: outcome for id, outcome in said if isinstance(outcome, ShardqError)}

    def _error(self) -> PushError:
        ids: list[str] = []
        failed: dict[str, ShardqError] = {}
        unknown: list[str] = []
        first: ShardqError | None = None
        for id, outcome in self.each():
            if isinstance(outcome, str):
                ids.append(Receipt.of(id, outcome))
                continue
            ids.append(id)
            first = first or outcome
            if isinstance(outcome, Unanswered):
                unknown.append(id)
            else:
                failed.setdefault(id, outcome)
        stored = [id for id in ids if isinstance(id, Receipt)]
        return PushError(ids=ids, stored=stored, failed=failed, unknown=unknown, first=first)

    def answered(self, ids: Sequence[str], answers: Sequence[str | ShardqError], number: int | None = None) -> None:
        """Notes push_unique's answers for ids of the caller, or the errors of any tasks. ``number``: their batch's."""
        said = [conflict_in(id, answer) or answer for id, answer in zip(ids, answers, strict=True)]
        self.failures += sum(isinstance(outcome, ShardqError) for outcome in said)
        self._answers.append((self._sent_count if number is None else number, ids, said))

    def note(self, batch: Batch, result: list[str] | ShardqError, packer: Packer) -> list[Word]:
        """Notes a batch's answer. Returns the words to send again, under other ids."""
        if isinstance(result, ShardqError) or batch.width == UNIQUE:
            said = [result] * len(batch.ids) if isinstance(result, ShardqError) else result
            self.answered(batch.ids, said, batch.number)
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


def push(cache: TopologyCache, packer: Packer, entries: Entries, *, in_doubt: bool = False) -> Operation[list[Receipt]]:
    """Stores packed tasks. All or nothing for each batch; raises PushError if not all of them are stored.

    ``in_doubt``: an earlier push of the same entries may have been executed. They are sent as after a lost answer: what
    is stored, or remembered, of that push counts as pushed.
    """
    check_hooked(cache, entries.hooked or ())
    results = PushResults(entries.ids)
    yield from complete(cache, packer, results, entries, in_doubt=in_doubt)
    return results.receipts()


def check_hooked(cache: TopologyCache, topics: Iterable[str]) -> None:
    """Raises InvalidOption for a topic of tasks with URLs that goes elsewhere, as far as this process knows."""
    for topic in topics:
        route = cache.topology.settings_of(topic).route
        if route is not None and not destinations.is_of_urls(route.to):
            raise InvalidOption(
                f"url= can't be given: topic {topic!r} is forwarded to {route.named}, which has no use for it; leave "
                "it out, or push to a topic that is forwarded to webhook://, or has a handler"
            )


def complete(
    cache: TopologyCache,
    packer: Packer,
    results: PushResults,
    entries: Entries,
    *,
    most: int = BATCH,
    in_doubt: bool = False,
    way: Way = "push",
) -> Operation[None]:
    """Stores the tasks of a push that are still to be sent; the results are told what became of them. Those of one key,
    and those of one id, are stored in their order: see ``turns``.
    """
    have_keys = entries.have_keys
    for width, words in ((FRESH, entries.fresh), (UNIQUE, entries.unique)):
        recovery = Recovery(cache)
        while words:
            # Again after a refusal: the engine may be lost, and begun anew without keys.
            if have_keys and not cache.topology.is_keyed:
                yield from take_up_keys(cache)
            # The epoch first. A shard then refuses what another thread's newer topology has decided meanwhile, and it
            # is decided anew.
            epoch = cache.topology.stamp
            if width == UNIQUE and cache.topology.priors:
                yield from push_each(cache, results, words, UNIQUE, in_doubt=in_doubt, way=way)
                break
            sizes = chunk_sizes(cache.topology.shards)
            parts = batches(cache, epoch, words, width, most=most, sizes=sizes, look=way == "look")
            if in_doubt:
                parts = _in_doubt(parts)
            sending = _Pushing(results, parts, in_order=have_keys or _come_again(words, width))
            words = []
            for batch, result in (yield from recovery.send(sending, sending.told)):
                if not isinstance(result, REFUSALS):
                    words += results.note(batch, result, packer)
                elif batch.call.in_doubt:
                    # Some of it may be stored, under the older topology: each task is asked for where it may be.
                    yield from push_each(
                        cache, results, batch.words, width, in_doubt=True, way=way, number=batch.number
                    )
                else:
                    words += batch.words
            for batch in sending.rest():
                words += batch.words
    if way == "push":
        packer.pushed += len(results.ids) - results.failures


def _come_again(words: Sequence[Word], width: int) -> bool:
    """True if an id of the caller's own is there more than once."""
    return width == UNIQUE and len(set(words[::UNIQUE])) * UNIQUE < len(words)


class _Pushing(Sending[Batch]):
    def __init__(self, results: PushResults, batches: Iterable[Batch], *, in_order: bool) -> None:
        super().__init__(batches, is_over, in_order=in_order)
        self._results = results

    def __next__(self) -> tuple[Batch, Call[list[str]]]:
        self._results.make_some()
        batch, call = super().__next__()
        return self._results.sent(batch), call


def is_over(batch: Batch, result: list[str] | ShardqError) -> bool:
    """True if no task of a batch is sent again after this answer, under another topology or another id."""
    return not (isinstance(result, REFUSALS) or (batch.width == FRESH and isinstance(result, list) and result))


def _in_doubt(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same batches, in the form in which they are sent after a lost answer."""
    for batch in batches:
        batch.call = batch.call.after_loss()
        yield batch


def push_each(
    cache: TopologyCache,
    results: PushResults,
    words: list[Word],
    width: int,
    *,
    in_doubt: bool = False,
    way: Way = "push",
    number: int | None = None,
) -> Operation[None]:
    """Pushes tasks one by one, each looked for where it may be before it is pushed where it belongs: caller-given ids
    while tasks move, and any task ``in_doubt``, whose earlier send may have been executed. ``number``: their batch's.
    """
    for at in range(0, len(words), width):
        task = words[at : at + width]
        id = str(task[0])
        try:
            if width == UNIQUE:
                answer = yield from push_unique(cache, task, in_doubt=in_doubt, way=way)
            else:
                answer = yield from push_unique(cache, unique(task), in_doubt=in_doubt)
        except ShardqError as exc:
            results.answered([id], [exc], number)
        else:
            # What is stored under an id that was made here is ours.
            if width == UNIQUE:
                results.answered([id], [answer], number)


def push_unique(
    cache: TopologyCache, words: list[Word], *, in_doubt: bool = False, way: Way = "push"
) -> Operation[str]:
    """Pushes one task under its id to a shard that already has the id, else to the shard where it belongs. Returns the
    answer.

    Shards are asked in the direction in which tasks move, so that a task that moves meanwhile is met in a later one.
    Windows follow when all tasks have moved: what an earlier shard has seen may be in a later one by now.
    ``in_doubt``: an earlier send may have been executed.
    """
    id = str(words[0])

    def walk(chain: CallChain) -> Operation[str]:
        while True:
            if not cache.topology.is_keyed and way != "look" and id.count("/") == 2:
                yield from take_up_keys(cache)
            topology, seen = cache.topology, ""
            *former, home = map(cache.keys, topology.homes(id))
            for keys in former:
                (answer,) = yield chain.next(keys, by_id.push_unique(keys, topology.stamp, words, earlier="1"))
                if answer == "moving":
                    # Asked again: what has arrived may be done before we look there, and its window is still here.
                    yield from bring_in(cache, keys, id)
                    (answer,) = yield chain.next(keys, by_id.push_unique(keys, topology.stamp, words, earlier="2"))
                if answer in ("seen", "refused:seen"):
                    seen = answer
                elif answer != "elsewhere":
                    return answer  # type: ignore[no-any-return]  # what a yield gives back is untyped
            only_if_there = seen or way == "look"
            last = by_id.push_unique(
                home, topology.stamp, topology.marked(words, UNIQUE), earlier="1" if only_if_there else "0"
            )
            (answer,) = yield chain.next(home, last)
            if answer != "moving":
                return seen or answer if answer == "elsewhere" else answer
            yield from bring_in_and_clear(cache, home, id)

    return walk_shards(cache, walk, in_doubt=in_doubt)


def push_one(cache: TopologyCache, packer: Packer, entries: Entries, *, in_doubt: bool = False) -> Operation[Receipt]:
    """Stores one packed task, and raises its own error as it is.

    ``in_doubt``: an earlier push of it may have been executed.
    """
    id, words = entries.ids[0], entries.fresh
    if entries.hooked:
        check_hooked(cache, entries.hooked)
    if entries.keyed is not False and not cache.topology.is_keyed and entries.have_keys:
        yield from take_up_keys(cache)
    if not words:
        receipt = receipt_of(id, (yield from push_unique(cache, entries.unique, in_doubt=in_doubt)))
        packer.pushed += 1
        return receipt
    topology = cache.topology
    marked = topology.marked(words, FRESH) if topology.priors else words
    call = by_id.push(cache.keys(topology.shard_of(id)), topology.stamp, marked)
    try:
        if not in_doubt and not (yield call):
            cache.heard_at = time.monotonic()
            packer.pushed += 1
            return Receipt(id)
    except REFUSALS:
        in_doubt = call.in_doubt
    if in_doubt:
        yield from push_unique(cache, unique(words), in_doubt=True)
        packer.pushed += 1
        return Receipt(id)
    # Refused, or the id is taken: begun anew like many.
    results = PushResults(entries.ids)
    yield from complete(cache, packer, results, entries, most=1)
    ((id, answer),) = results.each()
    if isinstance(answer, ShardqError):
        raise answer from answer.__cause__
    return Receipt.of(id, answer)


def receipt_of(id: str, answer: str) -> Receipt:
    """The receipt that an answer of push_unique means. Raises Conflict."""
    if conflict := conflict_in(id, answer):
        raise conflict
    return Receipt.of(id, answer)


def conflict_in(id: str, answer: str | ShardqError) -> Conflict | None:
    """The conflict that an answer of push_unique means."""
    refused = isinstance(answer, str) and answer.startswith("refused:")
    return Conflict(id, str(answer).removeprefix("refused:")) if refused else None
