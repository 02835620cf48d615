# For asyncio. `make fmt` generates client_sync.py from it.
"""The client: pushes jobs to an engine, each queue with a topic of its own. The sink of Sidekiq enqueues them
when they are due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Unpack

from shardq.core.model.task import Outcome
from shardq.engine.aio import AsyncEngine
from shardq.engine.base import EngineBase
from shardq.integrations.delaying import task_id
from shardq.integrations.sidekiq.jobs import Client, JobOptions


class AsyncSidekiq(Client[AsyncEngine]):
    """Pushes jobs for Sidekiq's workers.

    ``major``: that of the Sidekiq which runs them; before 8 times are seconds, since then milliseconds. ``to``:
    ``sidekiq+`` and the URL of Sidekiq's Redis, as the processes that forward reach it; None: the engine's own server.
    Each queue has a topic: ``sidekiq.default``, or ``topic`` and its name.

    >>> sidekiq = AsyncSidekiq(engine, major=7)
    >>> jid = await sidekiq.push("RemindJob", [42, "ann"], delay=3600)
    >>> await sidekiq.cancel(jid)
    <Outcome.CANCELLED: 'cancelled'>
    """

    kind: ClassVar[type[EngineBase]] = AsyncEngine

    async def push(
        self, job_class: str, args: Sequence[Any] = (), *, jid: str | None = None, **options: Unpack[JobOptions]
    ) -> str:
        """Stores one job, due after ``delay`` seconds or ``at`` an instant; returns its jid when it is stored.

        ``args`` must be what JSON gives back: numbers, text, lists, and dicts with text as keys. ``queue`` is
        "default", ``retry`` True, False or a number of retries. ``options`` are further fields of the job, such as
        ``backtrace``, ``tags`` or ``wrapped``. A push with a ``jid`` of your own is idempotent: while its job waits,
        another push of it stores nothing.

        >>> await sidekiq.push("RemindJob", [42], queue="low", delay=60, options={"tags": ["mail"]})
        '...'
        """
        jid, task = self._job(job_class, args, jid, **options)
        await self._route(**options)
        await self.engine.push(task.payload, delay=task.delay, at=task.at, topic=task.topic, id=task.id)
        return jid

    async def push_many(
        self, job_class: str, args: Iterable[Sequence[Any]], **options: Unpack[JobOptions]
    ) -> list[str]:
        """Stores a job for each of ``args``; returns their jids in order. Raises PushError when some are not stored.

        >>> jids = await sidekiq.push_many("RemindJob", [[1], [2], [3]], delay=60)
        """
        jobs = [self._job(job_class, each, **options) for each in args]
        await self._route(**options)
        await self.engine.push_many(task for _, task in jobs)
        return [jid for jid, _ in jobs]

    async def cancel(self, jid: str, *, queue: str = "default") -> Outcome:
        """Cancels a job that waits: cancelled, running (it is being enqueued), gone, or unknown when an answer was
        lost.

        >>> await sidekiq.cancel("0123456789abcdef01234567")
        <Outcome.GONE: 'gone'>
        """
        return await self.engine.cancel(f"{self._topic_of(queue)}/{task_id(jid)}")

    async def _route(self, queue: str = "default", **_: object) -> None:
        """Stores the route of a queue when it is needed first."""
        if queue not in self._routed:
            await self.engine.open()
            if (lacking := self._lacking(queue)) is not None:
                topic, to = lacking
                await self.engine.forward(topic, to=to)
            self._routed.add(queue)
