# For asyncio. `make fmt` generates storing_sync.py from it.
"""The cold store in the chain of stores of an engine: a command on what is far away is one statement, and Redis is not
asked. What is near, and still in the table, is moved to Redis first, and is Redis' alone then.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from shardq.core.calls.by_id import Found
from shardq.core.calls.request import Word
from shardq.core.collector import uncollected
from shardq.core.layout.topology import ColdTable
from shardq.core.model.checks import instant_ms
from shardq.core.model.record import Codec, decode_record, undecoded
from shardq.core.model.task import Outcome, Receipt, Task, TaskInfo
from shardq.core.operation import Operation
from shardq.core.producer.commands_by_id import Verb, info_of
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import FRESH, RUN, UNIQUE, Entries
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ColdTopic, PushError, ShardqError, Unanswered, Unavailable
from shardq.features.cold.cold import Cold, chunks, stats_of
from shardq.features.cold.ids import Place, bucket_of, place_in, spelled_all
from shardq.features.cold.moving import Mover
from shardq.features.cold.own_aio import Answer, AsyncOwnIds
from shardq.features.cold.report import ColdStats, LoaderReport
from shardq.features.cold.rows import Row
from shardq.features.cold.store import Counted, Filtered
from shardq.features.listing.bulk import Bulk
from shardq.features.listing.forecast import Forecast, Horizon
from shardq.features.listing.pages import readable
from shardq.features.listing.query import Place as QueryPlace
from shardq.features.listing.query import Query, TaskPage
from shardq.relay.chain_aio import AsyncTaskStore, Progress
from shardq.relay.sending import Failing

if True:  # ASYNC
    import asyncio

if TYPE_CHECKING:
    from shardq.relay.report import SpoolStats

T = TypeVar("T")

MS = dt.timedelta(milliseconds=1)

BULK_ROWS = 1000
"""The rows that a command on many tasks deals with together."""

BY_PLACE, BY_NAME = -1, -2
"""In the place of a shard: a cursor is in the table, among rows that are found by their places, or by their names."""

Declare = Callable[[TopologyCache, Cold, str], Operation[ColdTable]]
"""Makes the engine use the table of this identity. Returns the engine's note of its table."""


class AsyncColdStore(AsyncTaskStore):
    """The link of a cold store. The tasks of its table are not in Redis, and what is said of them is done there alone.

    A database that is away holds up nothing that is Redis' own.
    """

    def __init__(
        self,
        near: AsyncTaskStore,
        cold: Cold,
        declare: Declare,
        loader: Callable[[], LoaderReport | None] = lambda: None,
    ) -> None:
        """``loader`` tells what the loader of this process says."""
        super().__init__(near)
        self._cold = cold
        self._declare = declare
        self._loader = loader

    async def _sql(self, call: Callable[..., T], *arguments: Any) -> T:
        if True:  # ASYNC
            return await asyncio.to_thread(call, *arguments)
        else:
            return call(*arguments)

    async def _concerns(self, id: str, deadline: float) -> bool:
        """True for an id that may be in the table."""
        return place_in(id) is not None or await self._owns([id], deadline)

    async def _concerns_any(self, entries: Entries, deadline: float) -> bool:
        """True if the table has to be asked about some of these."""
        if self._cold.has_far(entries):
            return True
        return bool(entries.unique) and await self._owns(list(map(str, entries.unique[::UNIQUE])), deadline)

    async def _owns(self, ids: Sequence[str], deadline: float) -> bool:
        """True if some of these ids of the caller's own are in a cold topic."""
        if any(self._cold.owns(id, None) for id in ids):
            return True
        with suppress(ShardqError):  # it is said by what is done instead
            await self.opened(deadline)
            return any(map(self.cache().topology.is_cold, ids))
        return False

    def _is_cold(self, id: str) -> bool:
        return self._cold.owns(id, None if self._cold.table is None else self.cache().topology)

    @cached_property
    def _own(self) -> AsyncOwnIds:
        return AsyncOwnIds(
            self._cold, self.packer, query=self._sql, redis=self.run, moved=self._moved,
            moved_settled=self._moved_settled,
        )  # fmt: skip

    async def _ready(self, deadline: float) -> None:
        """Makes sure that the table is the engine's. Raises why it can't be used."""
        if self._cold.table is None:
            await self.opened(deadline)
            identity = await self._sql(self._cold.store.open, self._cold.engine, deadline)
            table = await self.run(lambda cache: self._declare(cache, self._cold, identity), deadline)
            self._cold.accept(table, identity)

    # ---- pushing

    async def push_one(self, entries: Entries, deadline: float, durability: Durability | None = None) -> Receipt:
        if (receipt := await self._push_one(entries, deadline)) is not None:
            return receipt
        try:
            return await self.near.push_one(entries, deadline, durability)
        except ColdTopic:  # one that was added meanwhile
            if (receipt := await self._push_one(entries, deadline)) is None:
                raise
            return receipt

    async def push_own(self, words: Sequence[Word], deadline: float) -> list[Answer]:
        """Stores tasks by their ids, given as words of ``push_unique``, as after a lost answer."""
        await self._ready(deadline)
        return await self._own.push(words, deadline, in_doubt=True)

    async def _push_one(self, entries: Entries, deadline: float) -> Receipt | None:
        """Stores a task that concerns the table; else returns None."""
        if not await self._concerns_any(entries, deadline):
            return None
        await self._ready(deadline)
        if entries.hooked:
            self.check_hooked(entries.hooked)
        if (split := self._cold.split(entries, self._is_cold, self.packer)) is None:
            return None
        if split.own:
            [answer] = await self._own.push(split.own, deadline)
            if isinstance(answer, ShardqError):
                raise answer
            return Receipt.of(entries.ids[0], answer)
        [row], outcomes = await self._inserted(list(split.far.values()), deadline)
        outcome = outcomes.get(0)
        if isinstance(outcome, ShardqError):
            raise outcome
        return Receipt(row.id) if outcome is None else None

    async def push(self, entries: Entries, deadline: float, durability: Durability | None = None) -> list[Receipt]:
        """Stores tasks of both: Redis' own first, in half of the time, as either may answer nothing."""
        if not await self._concerns_any(entries, deadline):
            return await self.near.push(entries, deadline, durability)
        if entries.hooked:
            self.check_hooked(entries.hooked)
        half = (time.monotonic() + deadline) / 2
        failed: ShardqError | None = None
        try:
            await self._ready(half)
        except ShardqError as exc:
            failed = exc
        with uncollected():
            split = self._cold.split(entries, self._is_cold, self.packer)
        if split is None:
            return await self.near.push(entries, deadline, durability)
        receipts, error = await self._pushed_near(split.near, half if failed is None else deadline, durability)
        ids, stored, errors = iter(split.far), dict[str, str](), dict[str, ShardqError]()
        for chunk in chunks(list(split.far.values())):
            if failed is None:
                rows, outcomes = await self._inserted(chunk, deadline)
            else:
                rows, outcomes = chunk, dict.fromkeys(range(len(chunk)), failed)
            with uncollected():
                # by its place, also where it is found by its name
                made = spelled_all((row.beginning, row.bucket, row.seq) for row in rows)
                told = dict(zip(itertools.islice(ids, len(rows)), map(Receipt, made), strict=True))
            for id, outcome in zip(list(told), map(outcomes.get, range(len(rows))), strict=True) if outcomes else ():
                if outcome == "near":
                    del told[id]
                elif outcome is not None:
                    errors[told[id]] = outcome
            stored |= told
        owned: list[Answer] = [failed] * (len(split.own) // UNIQUE) if failed is not None else []
        if split.own and failed is None:
            owned = await self._own.push(split.own, deadline)
        if len(stored) < len(split.far):  # they are near by now
            rest = Entries(ids=[id for id in split.far if id not in stored])
            for at in range(0, len(entries.fresh), FRESH):
                if entries.fresh[at] in split.far and entries.fresh[at] not in stored:
                    rest.fresh += entries.fresh[at : at + FRESH]
            others, late = await self._pushed_near(rest, deadline, durability)
            stored |= zip(rest.ids, others, strict=False)
            both = [each for each in (error, late) if isinstance(each, PushError)]
            error = PushError.merged(both) if len(both) > 1 else error or late
        if error is not None and not isinstance(error, PushError):
            raise error
        return _together(entries, stored, errors, _by_id(split.own[::UNIQUE], owned), iter(receipts), error)

    async def _pushed_near(
        self, entries: Entries, deadline: float, durability: Durability | None
    ) -> tuple[Sequence[str], ShardqError | None]:
        """Pushes what is not for the table. Returns the ids, those of stored ones as receipts, and the error."""
        if not entries.ids:
            return (), None
        try:
            return await self.near.push(entries, deadline, durability), None
        except ShardqError as exc:
            return exc.ids if isinstance(exc, PushError) else (), exc

    async def push_iter(self, tasks: Iterator[Task]) -> AsyncIterator[list[Receipt]]:
        while some := list(itertools.islice(tasks, RUN)):
            yield await self.push(self.packer.many(some), self.until())

    async def _inserted(
        self, rows: Sequence[Row], deadline: float
    ) -> tuple[Sequence[Row], dict[int, Literal["near"] | ShardqError]]:
        """Adds rows. Returns them as they were added, and by number why some were not: they are near, or an error."""
        done = list(rows)
        outcomes: dict[int, Literal["near"] | ShardqError] = {}
        left: Sequence[int] = range(len(done))
        while left:
            try:
                fates = await self._sql(self._cold.store.insert, [done[number] for number in left], deadline)
            except ShardqError as exc:
                outcomes |= dict.fromkeys(left, exc)
                break
            taken: list[int] = []
            for number, fate in zip(left, fates, strict=True) if set(fates) != {"stored"} else ():
                if fate == "taken":
                    taken.append(number)
                elif fate == "near":
                    outcomes[number] = "near"
                elif fate == "doubtful":
                    where = self._cold.store.where
                    outcomes[number] = Unanswered(f"the cold store {where} did not answer, and it is too late to ask")
            if taken:
                anew = self._cold.anew([done[number] for number in taken], self.packer)
                for number, row in zip(taken, anew, strict=True):
                    done[number] = row
            left = taken
        return done, outcomes

    # ---- by id

    async def order(self, verb: Verb, id: str, due: int, deadline: float) -> Outcome:
        if not await self._concerns(id, deadline):
            return await self.near.order(verb, id, due, deadline)
        await self._ready(deadline)
        store = self._cold.store
        if verb == "requeue":
            if await self._moved_if_near(id, deadline) == "far":
                return Outcome.SCHEDULED
            return await self.near.order(verb, id, due, deadline)
        due_ms, in_doubt = due if due > 0 else int(store.now_ms) + 1 - due, False
        statement = store.cancel if verb == "cancel" else partial(store.reschedule, due_ms=due_ms)
        done = Outcome.CANCELLED if verb == "cancel" else Outcome.MOVED
        while (said := await self._sql(lambda: statement(id, deadline=deadline))) != "done":
            in_doubt = in_doubt or said == "unknown"
            where = await self._moved_if_near(id, deadline, drop=verb == "cancel")
            if where == "dropped":
                return done
            if where == "gone":
                outcome = await self.near.order(verb, id, due, deadline)
                return Outcome.UNKNOWN if in_doubt and outcome is Outcome.GONE else outcome
        if verb == "reschedule" and not store.is_far(due_ms):
            # Committed as near: what fails here is done by a loader.
            with suppress(ShardqError):
                await self._moved_if_near(id, deadline)
        return done

    async def get(self, id: str, codec: Codec | None, deadline: float) -> TaskInfo | None:
        if not await self._concerns(id, deadline):
            return await self.near.get(id, codec, deadline)
        await self._ready(deadline)
        found = await self._sql(self._cold.store.find, id, deadline)
        if found is None:
            return await self.near.get(id, codec, deadline)
        row, far = found
        if not far and await self._moved_if_near(id, deadline) == "gone":
            return await self.near.get(id, codec, deadline)
        record = undecoded(row.record) if codec is None else decode_record(row.record, own=codec, id=row.id)
        return info_of(row.id, found_in(row), record)

    # ---- many

    async def page(
        self, query: Query, cursor: str | None, limit: int, codec: Codec | None, deadline: float
    ) -> TaskPage:
        """The table's tasks are listed before those of Redis: one that is loaded meanwhile may be listed twice, and is
        not missed. But of a key those of Redis are first: they run first. The others are in the order of their ids.
        """
        name = self._cold.engine
        place = query.place(name, cursor)
        if query.is_of_lanes and (cursor is None or place.shard >= 0):
            page = await self.near.page(query, cursor, limit, codec, deadline)
            if page.cursor is None:
                page.cursor = query.cursor(name, QueryPlace("scheduled", shard=BY_NAME))
            return page
        if "scheduled" not in query.states or query.failed or (cursor is not None and place.shard >= 0):
            return await self.near.page(query, cursor, limit, codec, deadline)
        await self._ready(deadline)
        after: Place | str = Place(0, -1)
        if cursor is not None:
            after = place.id if place.shard == BY_NAME else Place(place.at or 0, int(place.id))
        found = await self._sql(self._cold.store.page, filtered(query), after, limit, deadline)
        infos = [info_of(row.id, found_in(row), readable(row.record, codec, row.id)) for row, _ in found.rows]
        following: QueryPlace | None = None
        if found.after is None:
            following = None if query.is_of_lanes else query.first
        elif isinstance(found.after, str):
            following = QueryPlace("scheduled", 0, found.after, shard=BY_NAME)
        else:
            following = QueryPlace("scheduled", found.after.bucket, str(found.after.seq), shard=BY_PLACE)
        return TaskPage(infos, query.cursor(name, following))

    async def bulk(self, bulk: Bulk, progress: Progress) -> None:
        await self._bulk(bulk, progress)
        await self.near.bulk(bulk, progress)

    async def purge(self, bulk: Bulk) -> int:
        await self._bulk(bulk, lambda _: None)
        return await self.near.purge(bulk)

    async def _bulk(self, bulk: Bulk, progress: Progress) -> None:
        """Does the table's part of a command on many tasks: what is far is dealt with here, what is near is moved, so
        that the walk through Redis meets it.
        """
        has_failed = bulk.asked.failed or bulk.reason is not None  # which nothing in the table has
        if bulk.verb == "requeue" or "scheduled" not in bulk.asked.states or has_failed:
            return
        await self._ready(self.until())
        store, asked = self._cold.store, filtered(bulk.asked)
        if bulk.verb == "reschedule" and bulk.due <= 0:
            bulk.due = int(store.now_ms) + 1 - bulk.due
        after: Place | str | None = Place(0, -1)
        while after is not None:
            deadline = self.until()
            page = await self._sql(store.page, asked, after, BULK_ROWS, deadline)
            after = page.after
            # A rescheduled one is met again, by its name.
            met = [each for each in page.rows if bulk.verb != "reschedule" or each[0].due != bulk.due]
            far = [row for row, is_far in met if is_far]
            near = [row for row, is_far in met if not is_far]
            if bulk.count_only:
                bulk.far_matched += len(far)
            elif bulk.verb == "cancel":
                done = await self._sql(store.cancel_all, far, deadline) if far else 0
                bulk.far_matched += done
                bulk.far_done += done
            else:
                near += await self._rescheduled(far, bulk, deadline)
            if near and not bulk.count_only:
                refused = [row for row, _ in await self._moved_settled([row.id for row in near], deadline)]
                bulk.far_matched += len(refused)
                if refused and bulk.verb == "cancel":
                    await self._sql(store.forget, refused, deadline)
                    bulk.far_done += len(refused)
            progress(bulk.so_far)

    async def _rescheduled(self, rows: Sequence[Row], bulk: Bulk, deadline: float) -> list[Row]:
        """Gives far rows another due time. Returns those that are near now."""
        store = self._cold.store
        done = set(await self._sql(store.reschedule_all, rows, bulk.due, deadline)) if rows else set[str]()
        bulk.far_matched += len(done)
        bulk.far_done += len(done)
        if store.is_far(bulk.due):
            return []
        bucket = bucket_of(bulk.due)
        return [row._replace(due=bulk.due, bucket=bucket, name=row.id) for row in rows if row.id in done]

    async def forecast(self, horizon: Horizon, deadline: float) -> Forecast:
        near = await self.near.forecast(horizon, deadline)
        await self._ready(deadline)
        begin, step = near.buckets[0][0], near.step
        counts = await self._sql(self._cold.store.spans, instant_ms(begin), step // MS, len(near.buckets), deadline)
        buckets = [(start, count + more) for (start, count), more in zip(near.buckets, counts, strict=False)]
        return msgspec.structs.replace(near, buckets=buckets, later=near.later + counts[-1])

    async def here(self, deadline: float) -> tuple[SpoolStats | None, ColdStats | None]:
        spool, _ = await self.near.here(deadline)
        counted: Counted | ShardqError
        try:
            await self._ready(deadline)
            counted = await self._sql(self._cold.store.counted, deadline)
        except ShardqError as exc:
            counted = exc
        return spool, stats_of(self._cold, counted, self._loader())

    def close(self) -> None:
        self._cold.store.close()
        self.near.close()

    # ---- to Redis

    async def _moved_if_near(
        self, id: str, deadline: float, *, drop: bool = False
    ) -> Literal["far", "gone", "dropped"]:
        """Moves a near task to Redis, if it is in the table. ``drop``: removes one that can't be moved, as what another
        program has put there; else that raises why.
        """
        store = self._cold.store
        read_ms = store.now_ms
        found = await self._sql(lambda: store.find(id, deadline, settled=True))
        if found is None:
            return "gone"
        row, far = found
        if far:
            return "far"
        for _, error in await self._moved([row], read_ms, deadline):
            if not drop:
                raise error
            await self._sql(store.forget, [row], deadline)
            return "dropped"
        return "gone"

    async def _moved_settled(self, ids: Sequence[str], deadline: float) -> list[tuple[Row, ShardqError]]:
        """Moves those of some rows that are near, and that nobody is changing; else as ``_moved``."""
        read_ms = self._cold.store.now_ms
        rows = await self._sql(self._cold.store.settled, ids, deadline)
        return await self._moved(rows, read_ms, deadline) if rows else []

    async def _moved(self, rows: Sequence[Row], read_ms: float, deadline: float) -> list[tuple[Row, ShardqError]]:
        """Moves near rows to Redis, which were read at an instant of the database's clock, or later. Returns those that
        are refused for themselves. Raises why others can't be moved.
        """
        store, failing = self._cold.store, Failing()
        moved = await self.run(
            lambda cache: Mover(cache, self.packer, store.horizon).move(rows, read_ms, failing), deadline
        )
        if moved.done:
            await self._sql(store.forget, moved.done, max(deadline, time.monotonic() + 1.0))
        if moved.late:
            raise Unavailable(f"{moved.late[0].id} was read from the cold store too long ago to be moved; try again")
        if len(moved.done) + len(moved.refused) < len(rows):
            raise next(iter(failing.errors.values()), None) or Unavailable(
                f"{rows[0].id} can't leave the cold store: the replicas of its shard do not confirm it"
            )
        return moved.refused


def filtered(query: Query) -> Filtered:
    """The rows that a query asks for."""
    return Filtered(query.topic, query.begin_ms, query.end_ms, query.tag, query.key)


def found_in(row: Row) -> Found:
    """A far task as Redis would tell it."""
    return Found("scheduled", row.due, failures=0, lapses=0, token="", reason=None, record=row.record)


def _by_id(ids: Sequence[object], answers: Sequence[Answer]) -> dict[str, Iterator[Answer]]:
    """Id → the answers to its pushes, in their order."""
    found: dict[str, list[Answer]] = {}
    for id, answer in zip(ids, answers, strict=True):
        found.setdefault(str(id), []).append(answer)
    return {id: iter(answers) for id, answers in found.items()}


def _together(
    entries: Entries,
    stored: Mapping[str, str],
    errors: Mapping[str, ShardqError],
    own: Mapping[str, Iterator[Answer]],
    near: Iterator[str],
    error: PushError | None,
) -> list[Receipt]:
    """The receipts of all tasks, in their order. ``stored``: the id that was made for a task that is not near → that of
    its row. ``errors``: that → why it is not in the table. ``own``: an id of the caller's own in a cold topic → its
    answers. Raises PushError unless all are stored.
    """
    failures = dict(errors)

    def told(id: str) -> str:
        if (known := stored.get(id)) is not None:
            return str(known) if known in errors else known
        if id not in own:
            return next(near)
        answer = next(own[id])
        if isinstance(answer, ShardqError):
            failures.setdefault(id, answer)
            return id
        return Receipt.of(id, answer)

    ids = [told(id) for id in entries.ids]
    if not failures and error is None:
        return ids  # type: ignore[return-value]  # those of near tasks are receipts
    failed = dict(error.failed) if error is not None else {}
    unknown = list(error.unknown) if error is not None else []
    failed |= {str(id): why for id, why in failures.items() if not isinstance(why, Unanswered)}
    unknown += [str(id) for id, why in failures.items() if isinstance(why, Unanswered)]
    raise PushError(
        ids=ids, stored=[id for id in ids if isinstance(id, Receipt)], failed=failed, unknown=unknown
    ) from error
