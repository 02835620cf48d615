"""Makes jobs as Sidekiq's own client does, and pushes them to an engine, each queue with a topic of its own.
``shardq.sinks.sidekiq`` enqueues them when they are due.
"""

from __future__ import annotations

import datetime as dt
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from shardq.engine.sync import Engine
from shardq.errors import InvalidOption
from shardq.integrations.delaying import Routes, as_payload, task_id
from shardq.model.checks import check_topic
from shardq.model.task import Outcome, Task


class Sidekiq:
    """Pushes jobs for Sidekiq's workers.

    ``major``: that of the Sidekiq which runs them; before 8 times are seconds, since then milliseconds. ``to``:
    ``sidekiq+`` and the URL of Sidekiq's Redis, as the processes that forward reach it; None: the engine's own server.
    Each queue has a topic: ``sidekiq.default``, or ``topic`` and its name.

    >>> sidekiq = Sidekiq(engine, major=7)
    >>> jid = sidekiq.push("RemindJob", [42, "ann"], delay=3600)
    >>> sidekiq.cancel(jid)
    <Outcome.CANCELLED: 'cancelled'>
    """

    def __init__(self, engine: Engine, *, major: int = 8, topic: str = "sidekiq", to: str | None = None) -> None:
        self._routes = Routes(engine)
        check_topic(topic)
        if not isinstance(major, int) or not 5 <= major <= 99:
            raise InvalidOption(f"major={major!r} is no version of Sidekiq; give its first number, such as 8")
        if to is None and (engine.options.is_embedded or "+cluster:" in str(engine.options.url)):
            raise InvalidOption(
                "Sidekiq is not on the engine's servers, which are a cluster or embedded; give the URL of its Redis: "
                "Sidekiq(engine, to='sidekiq+redis://HOST:PORT/DB')"
            )
        self.engine = engine
        self.major = major
        self.topic = topic
        self._to = to or f"sidekiq+{engine.options.url}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.major} through {self.engine.name!r}>"

    def push(
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

        >>> sidekiq.push("RemindJob", [42], queue="low", delay=60, options={"tags": ["mail"]})
        '...'
        """
        job = self._job(job_class, args, queue, jid, retry, options)
        self._route(queue)
        payload = as_payload(self.engine, msgspec.json.encode(job))
        self.engine.push(payload, delay=delay, at=at, topic=self._topic_of(queue), id=task_id(job["jid"]))
        return str(job["jid"])

    def push_many(
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

        >>> jids = sidekiq.push_many("RemindJob", [[1], [2], [3]], delay=60)
        """
        jobs = [self._job(job_class, each, queue, None, retry, options) for each in args]
        self._route(queue)
        topic = self._topic_of(queue)
        self.engine.push_many(
            Task(as_payload(self.engine, msgspec.json.encode(job)), delay=delay, at=at, topic=topic, id=job["jid"])
            for job in jobs
        )
        return [job["jid"] for job in jobs]

    def cancel(self, jid: str, *, queue: str = "default") -> Outcome:
        """Cancels a job that waits: cancelled, running (it is being enqueued), gone, or unknown when an answer was
        lost.

        >>> sidekiq.cancel("0123456789abcdef01234567")
        <Outcome.GONE: 'gone'>
        """
        return self.engine.cancel(f"{self._topic_of(queue)}/{task_id(jid)}")

    def _job(
        self,
        job_class: str,
        args: Sequence[Any],
        queue: str,
        jid: str | None,
        retry: bool | int,
        options: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The fields of a job, as ``normalize_item`` of Sidekiq makes them."""
        if not isinstance(job_class, str) or not job_class:
            raise InvalidOption(
                f"the class of a job can't be {job_class!r}; give its name in Ruby, such as 'RemindJob'"
            )
        if not isinstance(queue, str) or not queue:
            raise InvalidOption(f"queue={queue!r} is not possible; give the name of a queue of Sidekiq")
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            raise InvalidOption(f"the arguments of a job can't be {args!r}; give a list, such as [{args!r}]")
        now_s = time.time()
        created_at = int(now_s * 1000) if self.major >= 8 else now_s
        if options and (taken := {"class", "args", "queue", "jid", "created_at", "enqueued_at", "at"} & set(options)):
            raise InvalidOption(f"options= can't have {', '.join(sorted(taken))}: that is what push makes itself")
        own = {"retry": retry, **(options or {})}
        _check_json(list(args))
        _check_json(own)
        jid = secrets.token_hex(12) if jid is None else jid
        return {**own, "queue": queue, "class": job_class, "args": list(args), "jid": jid, "created_at": created_at}

    def _route(self, queue: str) -> None:
        self._routes.store(self._topic_of(queue), f"{self._to}#{quote(queue, safe='')}")

    def _topic_of(self, queue: str) -> str:
        return f"{self.topic}.{queue}"


def _check_json(value: list[Any] | dict[str, Any]) -> None:
    """Refuses what Ruby would get as something else, as Sidekiq's strict arguments do."""
    try:
        same = msgspec.json.decode(msgspec.json.encode(value)) == value
    except (TypeError, ValueError, msgspec.MsgspecError):
        same = False
    if not same:
        raise InvalidOption(
            f"{value!r} does not come back from JSON as it is; give numbers, text, True, False, None, lists, and "
            "dicts with text as keys"
        )
