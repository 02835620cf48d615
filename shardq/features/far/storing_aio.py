# For asyncio. `make fmt` generates storing_sync.py from it.
"""The far store in the chain of stores of an engine: a command on what is far away is one statement, and Redis is not
asked. What is near, and still in the table, is moved to Redis first, and is Redis' alone then.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from shardq.core.calls.by_id import Found
from shardq.core.collector import uncollected
from shardq.core.model.checks import instant_ms
from shardq.core.model.record import Codec, decode_record, undecoded
from shardq.core.model.task import Outcome, Receipt, Task, TaskInfo
from shardq.core.operation import Operation
from shardq.core.producer.commands_by_id import Verb, info_of
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import FRESH, RUN, Entries
from shardq.core.topology_cache import TopologyCache
from shardq.errors import Conflict, PushError, ShardqError, Unanswered, Unavailable
from shardq.features.far.far import Far, anew, chunks, stats_of
from shardq.features.far.moving import move
from shardq.features.far.report import FarStats, LoaderReport
from shardq.features.far.rows import Row, is_made
from shardq.features.far.store import EVER, Counted, Filtered
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

IN_TABLE = -1
"""In the place of a shard: a cursor is in the table."""

Declare = Callable[[TopologyCache, str, str], Operation[str]]
"""Links a table of this identity, and at this place, to the engine. Returns the identity of the one that it has."""


class AsyncFarStore(AsyncTaskStore):
    """The link of a far store. The tasks of its table are not in Redis, and what is said of them is done there alone.

    A database that is away holds up nothing that is Redis' own.
    """

    def __init__(
        self,
        near: AsyncTaskStore,
        far: Far,
        declare: Declare,
        loader: Callable[[], LoaderReport | None] = lambda: None,
    ) -> None:
        """``loader`` tells what the loader of this process says."""
        super().__init__(near)
        self._far = far
        self._declare = declare
        self._loader = loader

    async def _sql(self, call: Callable[..., T], *arguments: Any) -> T:
        if True:  # ASYNC
            return await asyncio.to_thread(call, *arguments)
        else:
            return call(*arguments)

    async def _ready(self, deadline: float) -> None:
        """Makes sure that the table is the engine's. Raises why it can't be used."""
        if not self._far.is_ours:
            await self.opened(deadline)
            identity = await self._sql(self._far.opened, deadline)
            place = self._far.store.place
            self._far.accept(identity, await self.run(lambda cache: self._declare(cache, identity, place), deadline))

    # ---- pushing

    async def push_one(self, entries: Entries, deadline: float, durability: Durability | None = None) -> Receipt:
        if self._far.has_far(entries):
            await self._ready(deadline)
            if entries.hooked:
                self.check_hooked(entries.hooked)
            if (split := self._far.split(entries, self.packer)) is not None:
                [row], outcomes = await self._inserted(list(split.far.values()), deadline)
                outcome = outcomes.get(0)
                if isinstance(outcome, ShardqError):
                    raise outcome
                if outcome is None:
                    return Receipt(row.id)
        return await self.near.push_one(entries, deadline, durability)

    async def push(self, entries: Entries, deadline: float, durability: Durability | None = None) -> list[Receipt]:
        """Stores tasks of both: Redis' own first, in half of the time, as either may answer nothing."""
        if not self._far.has_far(entries):
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
            split = self._far.split(entries, self.packer)
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
                made = [Receipt(row.id) for row in rows]
                told = dict(zip(itertools.islice(ids, len(rows)), made, strict=True))
            for id, outcome in zip(list(told), map(outcomes.get, range(len(rows))), strict=True) if outcomes else ():
                if outcome == "near":
                    del told[id]
                elif outcome is not None:
                    errors[told[id]] = outcome
            stored |= told
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
        return _together(entries, stored, errors, iter(receipts), error)

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
                fates = await self._sql(self._far.store.insert, [done[number] for number in left], deadline)
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
                    where = self._far.store.where
                    outcomes[number] = Unanswered(f"the far store {where} did not answer, and it is too late to ask")
            if taken:
                others = anew([done[number] for number in taken], self.packer)
                for number, row in zip(taken, others, strict=True):
                    done[number] = row
            left = taken
        return done, outcomes

    # ---- by id

    async def order(self, verb: Verb, id: str, due: int, deadline: float) -> Outcome:
        """An id of the caller's own is looked for in Redis first: it is in the table only if an outbox put it there."""
        if is_made(id):
            return await self._order_far(verb, id, due, deadline)
        outcome = await self.near.order(verb, id, due, deadline)
        return await self._order_far(verb, id, due, deadline) if outcome is Outcome.GONE else outcome

    async def _order_far(self, verb: Verb, id: str, due: int, deadline: float) -> Outcome:
        """The same of an id that may be in the table, where it is looked for first."""
        await self._ready(deadline)
        store = self._far.store
        if verb == "requeue":
            if await self._moved_if_near(id, deadline) == "far":
                return Outcome.SCHEDULED
            return await self.near.order(verb, id, due, deadline)
        due_ms = due if due > 0 else int(store.now_ms) + 1 - due
        said = await self._in_table("cancel" if verb == "cancel" else "reschedule", id, due_ms, deadline)
        if said == "done":
            return Outcome.CANCELLED if verb == "cancel" else Outcome.MOVED
        outcome = await self.near.order(verb, id, due, deadline)
        return Outcome.UNKNOWN if said == "unknown" and outcome is Outcome.GONE else outcome

    async def _in_table(
        self, verb: Literal["cancel", "reschedule"], id: str, due_ms: int, deadline: float, latest: int = EVER
    ) -> Literal["done", "gone", "unknown"]:
        """Carries out a command where the task is far, and moves it to Redis where it is near. ``gone``: it is left to
        Redis. ``unknown``: that, too, and it may have been carried out here, as an answer was lost. Raises Conflict
        after ``latest``.
        """
        store, in_doubt = self._far.store, False
        statement = store.cancel if verb == "cancel" else partial(store.reschedule, due_ms=due_ms)
        while (said := await self._sql(lambda: statement(id, deadline=deadline, latest=latest))) != "done":
            if latest < store.now_ms:
                raise Conflict(id, "late")
            in_doubt = in_doubt or said == "unknown"
            where = await self._moved_if_near(id, deadline, drop=verb == "cancel")
            if where != "far":
                return "done" if where == "dropped" else "unknown" if in_doubt else "gone"
        if verb == "reschedule" and not store.is_far(due_ms):
            # Committed as near: what fails here is done by a loader.
            with suppress(ShardqError):
                await self._moved_if_near(id, deadline)
        return "done"

    async def get(self, id: str, codec: Codec | None, deadline: float) -> TaskInfo | None:
        if not is_made(id) and (info := await self.near.get(id, codec, deadline)) is not None:
            return info
        await self._ready(deadline)
        found = await self._sql(self._far.store.find, [id], deadline)
        if not found or found[0].is_gone:
            return await self.near.get(id, codec, deadline)
        row, is_far, _ = found[0]
        if not is_far and await self._moved_if_near(id, deadline) == "gone":
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
        name = self._far.engine
        place = query.place(name, cursor)
        if query.is_of_lanes and (cursor is None or place.shard >= 0):
            page = await self.near.page(query, cursor, limit, codec, deadline)
            if page.cursor is None:
                page.cursor = query.cursor(name, QueryPlace("scheduled", shard=IN_TABLE))
            return page
        if "scheduled" not in query.states or query.failed or (cursor is not None and place.shard >= 0):
            return await self.near.page(query, cursor, limit, codec, deadline)
        await self._ready(deadline)
        after = place.id if cursor is not None else ""
        found = await self._sql(self._far.store.page, filtered(query), after, limit, deadline)
        infos = [info_of(row.id, found_in(row), readable(row.record, codec, row.id)) for row, _ in found.rows]
        following = None if query.is_of_lanes else query.first
        if found.after is not None:
            following = QueryPlace("scheduled", 0, found.after, shard=IN_TABLE)
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
        store, asked = self._far.store, filtered(bulk.asked)
        if bulk.verb == "reschedule" and bulk.due <= 0:
            bulk.due = int(store.now_ms) + 1 - bulk.due
        after: str | None = ""
        while after is not None:
            deadline = self.until()
            page = await self._sql(store.page, asked, after, BULK_ROWS, deadline)
            after = page.after
            far = [row.id for row, is_far in page.rows if is_far]
            near = [row.id for row, is_far in page.rows if not is_far]
            if bulk.count_only:
                bulk.far_matched += len(far)
            elif bulk.verb == "cancel":
                done = await self._sql(store.cancel_all, far, deadline) if far else 0
                bulk.far_matched += done
                bulk.far_done += done
            else:
                near += await self._rescheduled(far, bulk, deadline)
            if near and not bulk.count_only:
                refused = [row for row, _ in await self._moved_settled(near, deadline)]
                bulk.far_matched += len(refused)
                if refused and bulk.verb == "cancel":
                    await self._sql(store.forget, refused, deadline)
                    bulk.far_done += len(refused)
            progress(bulk.so_far)

    async def _rescheduled(self, ids: Sequence[str], bulk: Bulk, deadline: float) -> list[str]:
        """Gives far rows another due time. Returns those that are near now."""
        store = self._far.store
        done = await self._sql(store.reschedule_all, ids, bulk.due, deadline) if ids else []
        bulk.far_matched += len(done)
        bulk.far_done += len(done)
        return [] if store.is_far(bulk.due) else done

    async def forecast(self, horizon: Horizon, deadline: float) -> Forecast:
        near = await self.near.forecast(horizon, deadline)
        await self._ready(deadline)
        begin, step = near.buckets[0][0], near.step
        counts = await self._sql(self._far.store.spans, instant_ms(begin), step // MS, len(near.buckets), deadline)
        buckets = [(start, count + more) for (start, count), more in zip(near.buckets, counts, strict=False)]
        return msgspec.structs.replace(near, buckets=buckets, later=near.later + counts[-1])

    async def here(self, deadline: float) -> tuple[SpoolStats | None, FarStats | None]:
        spool, _ = await self.near.here(deadline)
        counted: Counted | ShardqError
        try:
            await self._ready(deadline)
            counted = await self._sql(self._far.store.counted, deadline)
        except ShardqError as exc:
            counted = exc
        return spool, stats_of(self._far, counted, self._loader())

    def close(self) -> None:
        self._far.store.close()
        self.near.close()

    # ---- to Redis

    async def _moved_if_near(
        self, id: str, deadline: float, *, drop: bool = False
    ) -> Literal["far", "gone", "dropped"]:
        """Moves a near task to Redis, if it is in the table. ``drop``: removes one that can't be moved, as what another
        program has put there; else that raises why.
        """
        store = self._far.store
        read_ms = store.now_ms
        found = await self._sql(lambda: store.find([id], deadline, settled=True))
        if not found or found[0].is_gone:
            return "gone"
        row, far, _ = found[0]
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
        read_ms = self._far.store.now_ms
        found = await self._sql(lambda: self._far.store.find(ids, deadline, settled=True))
        rows = [each.row for each in found if not each.is_far and not each.is_gone]
        return await self._moved(rows, read_ms, deadline) if rows else []

    async def _moved(self, rows: Sequence[Row], read_ms: float, deadline: float) -> list[tuple[Row, ShardqError]]:
        """Moves near rows to Redis, which were read at an instant of the database's clock, or later. Returns those that
        are refused for themselves. Raises why others can't be moved. A loader removes them when they are confirmed: the
        disk may take two seconds.
        """
        store, failing = self._far.store, Failing()
        if store.halted:
            raise Unavailable(store.halted)
        moved = await self.run(lambda cache: move(cache, self.packer, store.horizon, rows, read_ms, failing), deadline)
        if moved.sent:
            await self._sql(store.sent, moved.sent, max(deadline, time.monotonic() + 1.0))
        if moved.late:
            raise Unavailable(f"{moved.late[0].id} was read from the far store too long ago to be moved; try again")
        if len(moved.sent) + len(moved.refused) < len(rows):
            raise next(iter(failing.errors.values()))
        return moved.refused


def filtered(query: Query) -> Filtered:
    """The rows that a query asks for."""
    return Filtered(query.topic, query.begin_ms, query.end_ms, query.tag, query.key)


def found_in(row: Row) -> Found:
    """A far task as Redis would tell it."""
    return Found("scheduled", row.due, failures=0, lapses=0, token="", reason=None, record=row.record)


def _together(
    entries: Entries,
    stored: Mapping[str, str],
    errors: Mapping[str, ShardqError],
    near: Iterator[str],
    error: PushError | None,
) -> list[Receipt]:
    """The receipts of all tasks, in their order. ``stored``: the id that was made for a task that is not near → that of
    its row. ``errors``: that → why it is not in the table. Raises PushError unless all are stored.
    """

    def told(id: str) -> str:
        if (known := stored.get(id)) is not None:
            return str(known) if known in errors else known
        return next(near)

    ids = [told(id) for id in entries.ids]
    if not errors and error is None:
        return ids  # type: ignore[return-value]  # those of near tasks are receipts
    failed = dict(error.failed) if error is not None else {}
    unknown = list(error.unknown) if error is not None else []
    failed |= {str(id): why for id, why in errors.items() if not isinstance(why, Unanswered)}
    unknown += [str(id) for id, why in errors.items() if isinstance(why, Unanswered)]
    raise PushError(
        ids=ids,
        stored=[id for id in ids if isinstance(id, Receipt)],
        failed=failed,
        unknown=unknown,
        first=next(iter(errors.values()), None),
    ) from error
