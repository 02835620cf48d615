# For asyncio. `make fmt` generates own_sync.py from it.
"""Pushes under ids of the caller's own in a cold topic. ``own.py`` has the rules, and the statements."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from shardq.core.calls.request import Word
from shardq.core.operation import Operation
from shardq.core.producer.packing import UNIQUE, Entries, Packer
from shardq.core.producer.pushing import PushResults, complete, conflict_in
from shardq.core.topology_cache import TopologyCache
from shardq.errors import PushError, ShardqError, Unanswered, Unavailable
from shardq.features.cold.cold import Cold
from shardq.features.cold.own import TOGETHER, Known, Push, add, known_of
from shardq.features.cold.rows import Row

Refused = list[tuple[Row, ShardqError]]

Answer = str | ShardqError
"""An answer of ``push_unique`` (except ``elsewhere`` and ``moving``), or an error."""


class AsyncOwnIds:
    """Pushes tasks under ids of the caller's own, for one ``AsyncEngine``."""

    def __init__(
        self,
        cold: Cold,
        packer: Packer,
        *,
        query: Callable[..., Awaitable[Any]],
        redis: Callable[[Callable[[TopologyCache], Operation[Any]], float], Awaitable[Any]],
        moved: Callable[[Sequence[Row], float, float], Awaitable[Refused]],
        moved_settled: Callable[[Sequence[str], float], Awaitable[Refused]],
    ) -> None:
        """``query`` carries out a call of the store, ``redis`` an operation until a deadline; ``moved`` moves near rows
        to Redis, which were read at an instant of the database's clock, and returns those that are refused;
        ``moved_settled`` reads them first, by their ids.
        """
        self._cold = cold
        self._packer = packer
        self._query = query
        self._redis = redis
        self._moved = moved
        self._moved_settled = moved_settled

    async def push(self, words: Sequence[Word], deadline: float, *, in_doubt: bool = False) -> list[Answer]:
        """Stores tasks, given as words of ``push_unique``. Returns their answers in their order. ``in_doubt``: an
        earlier push of them may have been carried out.
        """
        answers: list[Answer] = []
        for some in _in_turn([words[at : at + UNIQUE] for at in range(0, len(words), UNIQUE)]):
            pushes = {push.id: push for push in map(self._cold.push_of, some)}
            said = await self._together(pushes, set(pushes) if in_doubt else set(), deadline)
            answers += [said[id] for id in pushes]
        self._packer.pushed += sum(isinstance(answer, str) for answer in answers)
        return answers

    async def _together(self, pushes: dict[str, Push], in_doubt: set[str], deadline: float) -> dict[str, Answer]:
        """Stores tasks of different ids."""
        said: dict[str, Answer] = {}
        sent_before = frozenset(in_doubt)
        while left := {id: push for id, push in pushes.items() if id not in said}:
            try:
                await self._once(left, said, in_doubt, deadline)
                if time.monotonic() > deadline:
                    raise Unavailable(f"the cold store {self._cold.store.where} is slow, or others push the same ids")
            except ShardqError as exc:
                doubtful = Unanswered(str(exc))
                for id in pushes.keys() - said.keys():
                    said[id] = doubtful if id in in_doubt - sent_before else exc
        return said

    async def _once(self, left: dict[str, Push], said: dict[str, Answer], in_doubt: set[str], deadline: float) -> None:
        """One try, which ends without an answer where others push the same ids."""
        known: dict[str, Known] = await self._query(known_of, self._cold.store, list(left), deadline)
        now_ms = self._cold.store.now_ms
        for id, push in list(left.items()):
            answer = known[id].said_to(push, in_doubt=id in in_doubt, now_ms=now_ms)
            if answer is not None:
                said[id] = conflict_in(id, answer) or answer
                del left[id]
        near = [id for id in left if known[id].row is not None and not known[id].far]
        if near:
            said |= await self._moved_first(near, deadline)
            left = {id: push for id, push in left.items() if id not in near}  # those are looked for again
        asked = [push for id, push in left.items() if not known[id].far]
        said |= await self._asked(asked, in_doubt, deadline)
        for push in asked:
            if push.id not in said and (answer := known[push.id].seen_by(push, now_ms=now_ms)) is not None:
                said[push.id] = conflict_in(push.id, answer) or answer
        left = {id: push for id, push in left.items() if id not in said}
        said |= await self._added(left, known, in_doubt, deadline)

    async def _moved_first(self, ids: Sequence[str], deadline: float) -> dict[str, Answer]:
        """Moves near rows to Redis, which then says what becomes of a push. Returns the errors."""
        try:
            refused = await self._moved_settled(ids, deadline)
        except ShardqError as exc:
            return dict.fromkeys(ids, exc)
        return {row.id: error for row, error in refused}

    async def _asked(self, pushes: Sequence[Push], in_doubt: set[str], deadline: float) -> dict[str, Answer]:
        """The answers of Redis to pushes whose ids it knows."""
        said: dict[str, Answer] = {}
        for doubted in (False, True):
            some = [push for push in pushes if (push.id in in_doubt) is doubted]
            if some:
                entries = Entries(ids=[push.id for push in some], unique=[word for push in some for word in push.words])
                results = PushResults(entries.ids)
                with suppress(PushError):  # its errors are read below
                    await self._redis(partial(_look, self._packer, results, entries, doubted), deadline)
                said |= {id: answer for id, answer in results.each() if answer != "elsewhere"}
        return said

    async def _added(
        self, pushes: dict[str, Push], known: dict[str, Known], in_doubt: set[str], deadline: float
    ) -> dict[str, Answer]:
        """Adds rows. Returns the answers to those that were added; the others are to be looked for again."""
        if not pushes:
            return {}
        added_ms = self._cold.store.now_ms
        done: dict[str, bool | None] = await self._query(add, self._cold.store, pushes, known, deadline)
        in_doubt |= {id for id, stored in done.items() if stored is None}
        near = [
            pushes[id].row for id, stored in done.items() if stored and not self._cold.store.is_far(pushes[id].row.due)
        ]
        if near:
            with suppress(ShardqError):  # they are stored: what fails here is done by a loader
                await self._moved([pushes[row.name].after(known[row.name]) for row in near], added_ms, deadline)
        return {id: "replaced" if known[id].row else "pushed" for id, stored in done.items() if stored}


def _look(
    packer: Packer, results: PushResults, entries: Entries, in_doubt: bool, cache: TopologyCache
) -> Operation[object]:
    return complete(cache, packer, results, entries, in_doubt=in_doubt, way="look")


def _in_turn(tasks: Sequence[Sequence[Word]]) -> Iterator[Sequence[Sequence[Word]]]:
    """The tasks in their order, in groups that have no id twice."""
    group: list[Sequence[Word]] = []
    ids = set[Word]()
    for task in tasks:
        if len(group) == TOGETHER or task[0] in ids:
            yield group
            group, ids = [], set()
        group.append(task)
        ids.add(task[0])
    if group:
        yield group
