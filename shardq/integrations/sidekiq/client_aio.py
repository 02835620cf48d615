# For asyncio. `make fmt` generates client_sync.py from it.
"""The client: pushes jobs to an engine, each queue with a topic of its own. The sink of Sidekiq enqueues them
when they are due.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from shardq.core.model.checks import check_topic
from shardq.core.model.task import Outcome, Task
from shardq.engine.aio import AsyncEngine
from shardq.engine.base import Inside
from shardq.errors import InvalidOption
from shardq.integrations.delaying import as_payload, check_codec, is_routed, task_id
from shardq.integrations.sidekiq.jobs import new_job


class AsyncSidekiq:
    """Pushes jobs for Sidekiq's workers.

    ``major``: that of the Sidekiq which runs them; before 8 times are seconds, since then milliseconds. ``to``:
    ``sidekiq+`` and the URL of Sidekiq's Redis, as the processes that forward reach it; None: the engine's own server.
    Each queue has a topic: ``sidekiq.default``, or ``topic`` and its name.

    >>> sidekiq = AsyncSidekiq(engine, major=7)
    >>> jid = await sidekiq.push("RemindJob", [42, "ann"], delay=3600)
    >>> await sidekiq.cancel(jid)
    <Outcome.CANCELLED: 'cancelled'>
    """

    def __init__(self, engine: AsyncEngine, *, major: int = 8, topic: str = "sidekiq", to: str | None = None) -> None:
        if not isinstance(engine, AsyncEngine):
            raise InvalidOption(f"AsyncSidekiq takes a shardq.AsyncEngine, not {type(engine).__name__}")
        check_codec(Inside(engine).options)
        check_topic(topic)
        if not isinstance(major, int) or not 5 <= major <= 99:
            raise InvalidOption(f"major={major!r} is no version of Sidekiq; give its first number, such as 8")
        if to is None and (Inside(engine).options.is_embedded or "+cluster:" in str(Inside(engine).options.url)):
            raise InvalidOption(
                "Sidekiq is not on the engine's servers, which are a cluster or embedded; give the URL of its Redis: "
                "AsyncSidekiq(engine, to='sidekiq+redis://HOST:PORT/DB')"
            )
        self.engine = engine
        self._routed: set[str] = set()
        self.major = major
        self.topic = topic
        self._to = to or f"sidekiq+{Inside(engine).options.url}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.major} through {self.engine.name!r}>"

    async def push(
        self,
        job_class: str,
        args: Sequence[Any] = (),
        *,
        queue: str = "default",
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
        jid: str | None = None,
        retry: bool | int = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Stores one job, due after ``delay`` seconds or ``at`` an instant; returns its jid when it is stored.

        ``args`` must be what JSON gives back: numbers, text, lists, and dicts with text as keys. ``options`` are
        further fields of the job, such as ``backtrace``, ``tags`` or ``wrapped``. A push with a ``jid`` of your own is
        idempotent: while its job waits, another push of it stores nothing.

        >>> await sidekiq.push("RemindJob", [42], queue="low", delay=60, options={"tags": ["mail"]})
        '...'
        """
        job = new_job(self.major, job_class, args, queue=queue, jid=jid, retry=retry, options=options)
        topic = await self._route(queue)
        payload = as_payload(Inside(self.engine).options, msgspec.json.encode(job))
        await self.engine.push(payload, delay=delay, at=at, topic=topic, id=task_id(job["jid"]))
        return str(job["jid"])

    async def push_many(
        self,
        job_class: str,
        args: Iterable[Sequence[Any]],
        *,
        queue: str = "default",
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
        retry: bool | int = True,
        options: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Stores a job for each of ``args``; returns their jids in order. Raises PushError when some are not stored.

        >>> jids = await sidekiq.push_many("RemindJob", [[1], [2], [3]], delay=60)
        """
        jobs = [
            new_job(self.major, job_class, each, queue=queue, jid=None, retry=retry, options=options) for each in args
        ]
        topic = await self._route(queue)
        payloads = [as_payload(Inside(self.engine).options, msgspec.json.encode(job)) for job in jobs]
        await self.engine.push_many(
            Task(payload, delay=delay, at=at, topic=topic, id=job["jid"])
            for job, payload in zip(jobs, payloads, strict=True)
        )
        return [job["jid"] for job in jobs]

    async def cancel(self, jid: str, *, queue: str = "default") -> Outcome:
        """Cancels a job that waits: cancelled, running (it is being enqueued), gone, or unknown when an answer was
        lost.

        >>> await sidekiq.cancel("0123456789abcdef01234567")
        <Outcome.GONE: 'gone'>
        """
        return await self.engine.cancel(f"{self._topic_of(queue)}/{task_id(jid)}")

    async def _route(self, queue: str) -> str:
        """The topic of a queue, whose route is stored when it is needed first."""
        topic = self._topic_of(queue)
        if topic not in self._routed:
            await self.engine.open()
            to = f"{self._to}#{quote(queue, safe='')}"
            if not is_routed(self.engine.topology, topic, to):
                await self.engine.forward(topic, to=to)
            self._routed.add(topic)
        return topic

    def _topic_of(self, queue: str) -> str:
        return f"{self.topic}.{queue}"
