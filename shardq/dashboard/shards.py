"""The shards: how late each was at the last snapshots, as a map, and their counts; and a change of their number.

A change that is begun here is announced to the whole fleet, and the dispatchers complete it: it does not end with this
process.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.model.checks import check_shards
from shardq.core.model.printable import quoted
from shardq.core.resharding import Progress
from shardq.dashboard import drawing
from shardq.dashboard.snapshots import COLUMNS, Caller
from shardq.dashboard.web import Form, action, dashboard_of, done, drawn, live_page, newest, rate_of
from shardq.engine.around import Column, ShardStats, tables
from shardq.errors import ChangeUnderWay, InvalidOption, InvalidShardCount, ShardqError

PER_PAGE = 100
"""Rows of the table at once."""

FRESH_S = 0.8
"""An answer on the progress serves all pages that are open for so long."""

LIVE_S = 1.0
"""The time between two answers on the progress to a page that is open."""

RATE = "to move tasks as fast as possible"
"""The meaning of an empty rate."""


async def shards(request: Request) -> dict[str, Any]:
    found, query = await newest(request), request.query_params
    sort, begin = query.get("sort", "shard"), query.get("begin", "")
    start = int(begin) if begin.isascii() and begin.isdigit() and len(begin) < 6 else 0
    context = found | {"sort": sort, "start": start, "live_query": {"sort": sort, "begin": start}}
    snapshot = found["snapshot"]
    if snapshot is None:
        return context
    view, dashboard = tables.shards(snapshot), dashboard_of(request)
    titles = [column.title for column in view.columns]
    rows = view.shown(sort=titles.index(sort) if sort in titles else 0)
    rows.sort(key=lambda row: not _error(row))
    error = Column[tables.ShardRow]("error", _error, text=True, optional=True)
    return context | {
        "view": drawn(view, rows[start : start + PER_PAGE], [*view.columns, error]),
        "count": len(rows),
        "per_page": PER_PAGE,
        "heat": drawing.heat(list(dashboard.snapshots.columns), COLUMNS),
        "levels": drawing.LEVELS,
        "topology": await dashboard.call(lambda engine: engine.topology),
    }


def _error(row: tables.ShardRow) -> str:
    return (isinstance(row, ShardStats) and row.error) or ""


# ---- another number of shards


class StillMoving(ChangeUnderWay):
    """An earlier change is in force, and its tasks are still being moved."""

    def __init__(self, present: int, wanted: int) -> None:
        super().__init__(present, wanted)
        self.args: tuple[Any, ...] = (
            f"the change to {present} shards is in force, and its tasks are still being moved, so there can be none to "
            f"{wanted} now; wait until every shard is swept",
        )


@dataclass(slots=True)
class Change:
    """The change that a page has begun."""

    shards: int
    rate: float | None
    moved_before: int
    """The tasks that earlier changes had moved."""
    error: str = ""
    """Why it failed."""


class Resizing:
    """The change that is under way, by this process or another. Used in one event loop."""

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._lock = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._progress: tuple[float, Progress] | None = None
        self.change: Change | None = None
        """The last change that a page has begun."""

    @property
    def is_beginning(self) -> bool:
        """True until the new number is in force, or has failed to be."""
        return self._running is not None and not self._running.done()

    async def begin(self, shards: int, rate: float | None) -> None:
        """Begins a change. Returns at once; refuses a second one."""
        self._check_none_begins(shards)
        progress = await self.progress()
        if not progress.done and progress.in_force and progress.shards != shards:
            raise StillMoving(progress.shards, shards)
        if progress.done and progress.shards == shards:
            raise InvalidOption(f"there are {shards} shards already, and every task is where it belongs")
        self._check_none_begins(shards)  # another page may have been faster
        self.change = Change(shards, rate, progress.moved)
        self._running = asyncio.create_task(self._run(self.change))

    def _check_none_begins(self, shards: int) -> None:
        if self.is_beginning and self.change is not None:
            raise ChangeUnderWay(self.change.shards, shards)

    async def _run(self, change: Change) -> None:
        try:
            await self._call(lambda engine: engine.resize(change.shards, rate=change.rate))
        except ShardqError as exc:
            change.error = str(exc)
        finally:
            self._progress = None

    async def progress(self) -> Progress:
        """How far the change is."""
        async with self._lock:
            if self._progress is None or time.monotonic() - self._progress[0] > FRESH_S:
                resize = await self._call(lambda engine: engine.resize(dry_run=True))
                self._progress = time.monotonic(), await self._call(lambda _: resize.progress())
            return self._progress[1]


async def resize(request: Request) -> dict[str, Any]:
    """How far a change is. With ``?shards=N`` also what that number would move."""
    wanted, rate = request.query_params.get("shards", "").strip(), request.query_params.get("rate", "").strip()
    preview = None
    if wanted:
        count = _count(wanted)
        rate_of(rate, RATE)
        preview = await dashboard_of(request).call(lambda engine: engine.resize(count, dry_run=True))
    resizing: Resizing = request.app.state.resizing
    progress, change = await resizing.progress(), resizing.change
    snapshot = (await dashboard_of(request).snapshots.newest()).newest
    return {
        "preview": preview,
        "wanted": wanted,
        "rate": rate,
        "most": MAX_SHARDS,
        "progress": progress,
        "change": change,
        "is_beginning": resizing.is_beginning,
        "moved": max(0, progress.moved - change.moved_before) if change and change.shards == progress.shards else None,
        "busy": snapshot.stats.ready + snapshot.stats.leased if snapshot else 0,
        "dispatchers": sum(member.kind == "dispatcher" for member in snapshot.fleet) if snapshot else 0,
        "seen_at": None,
    }


async def begin(request: Request, form: Form) -> Response:
    count, rate = _count(form.text("shards")), rate_of(form.text("rate"), RATE)
    await request.app.state.resizing.begin(count, rate)
    return done(request, f"the change to {count} shards has begun", back="/shards/number")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise InvalidShardCount(f"{quoted(text)} is not a number of shards; give 1 to {MAX_SHARDS}")
    check_shards(int(text))
    return int(text)


routes: list[Route] = [
    *live_page("/shards", "shards", shards, template="shards.html"),
    *live_page("/shards/number", "resize", resize, template="resize.html", every_s=LIVE_S),
    action("/shards/number", begin),
]
