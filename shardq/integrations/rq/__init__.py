"""RQ: ``enqueue_in`` and ``enqueue_at`` go through an engine, in place of RQ's scheduler. ``README.md`` tells how.

This stands in for ``Queue.schedule_job``, by which both keep a job for later. A job is saved as RQ saves it, with its
ticket, and the ticket pushed to the engine. The sink of RQ puts the job on its queue. Until the push is stored, the job
is in RQ's registry of scheduled jobs as well, ``RQ_NET_S`` later than it is due: if this process dies in between, RQ's
own scheduler has it.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from shardq import Engine
from shardq.errors import InvalidOption, MissingPackage
from shardq.features.sinks.redis import RQ_FIELD, RQ_NET_S, Ticket
from shardq.integrations.delaying import RoutedDelaying, as_payload, task_id, url_of

try:
    import redis
    import rq
    from rq.job import Job
except ImportError as _exc:
    raise MissingPackage("shardq.integrations.rq needs RQ: pip install 'shardq[rq]'") from _exc

__all__ = ["RqDelaying", "delay_through"]

Original = Callable[..., Job]


def delay_through(
    queue: rq.Queue | type[rq.Queue], engine: Engine, *, above: float = 60, topic: str = "rq", to: str | None = None
) -> RqDelaying:
    """Sends what this queue is to delay for more than ``above`` seconds through the engine; with 0 all that it is to
    delay, so that no scheduler of RQ is needed. Returns what ends it again.

    ``queue``: a queue, or a class of queues (``rq.Queue`` itself, or the ``--queue-class`` of a worker), for all queues
    of that class in this process. ``to``: ``rq+`` and the URL of RQ's Redis, as the processes that forward reach it;
    None: as the queue's connection does. It is stored with the engine's settings: write ``${NAME}`` for a password. The
    route of the ``topic`` is stored with the first job. Called again with the same arguments it returns what is there.

    >>> queue = rq.Queue("mail", connection=redis.Redis())
    >>> delaying = delay_through(queue, engine, above=60)
    >>> job = queue.enqueue_in(dt.timedelta(hours=1), "shop.send_mail", 42)
    >>> delaying
    <RqDelaying of Queue('mail'): above 60 s through '...', 1 so far>
    """
    present = getattr(getattr(queue, "schedule_job", None), "delaying", None)
    if isinstance(present, RqDelaying):
        return present.again(queue, engine, above, topic, to)
    return RqDelaying(queue, engine, above=above, topic=topic, to=to)


class RqDelaying(RoutedDelaying):
    """The delays of an RQ queue, or of a class of queues, that go through an engine."""

    def __init__(
        self, queue: rq.Queue | type[rq.Queue], engine: Engine, *, above: float, topic: str, to: str | None
    ) -> None:
        super().__init__(queue, engine, above=above, topic=topic, to=to)
        if not isinstance(queue, rq.Queue) and not (isinstance(queue, type) and issubclass(queue, rq.Queue)):
            raise InvalidOption(f"delay_through takes an rq.Queue, or a class of queues, not {type(queue).__name__}")
        self._to = to
        self._place: tuple[object, ...] | None = None
        self._own = vars(queue).get("schedule_job")
        """None if it is inherited."""
        if isinstance(queue, rq.Queue):
            self._check_place(queue.connection)
        self._replace(queue.schedule_job)

    def _replace(self, original: Original) -> None:
        is_class = isinstance(self._theirs, type)

        def schedule_job(queue: rq.Queue, job: Job, datetime: dt.datetime, pipeline: Any = None, **options: Any) -> Job:
            own = partial(original, queue) if is_class else original
            return self._schedule(own, queue, job, datetime, pipeline, options)

        replaced: Any = schedule_job if is_class else partial(schedule_job, self._theirs)
        replaced.delaying = self
        self._theirs.schedule_job = replaced

    def _restore(self) -> None:
        if self._own is not None:
            self._theirs.schedule_job = self._own
        else:
            del self._theirs.schedule_job

    def _target(self) -> str:
        return self._theirs.__qualname__ if isinstance(self._theirs, type) else repr(self._theirs)

    def _check_place(self, connection: redis.Redis) -> str:
        """The URL to forward to. The first queue's Redis is that of all."""
        place = tuple(connection.connection_pool.connection_kwargs.get(name) for name in ("host", "port", "path", "db"))
        if self._place is None or self._to is None:
            self._to = self._to or f"rq+{url_of(connection)}"
            self._place = place
        elif place != self._place:
            raise InvalidOption(
                f"the topic {self.topic!r} is for the queues of one Redis, and this queue is on another; call "
                "delay_through for that queue alone, or for a class of its own, with another topic="
            )
        return self._to

    def _schedule(
        self, original: Original, queue: rq.Queue, job: Job, when: dt.datetime, pipeline: Any, options: dict[str, Any]
    ) -> Job:
        """Does what ``queue.schedule_job`` does. A time without a zone is this machine's, as RQ has it."""
        due, unique = when if when.tzinfo else when.astimezone(), bool(options.get("unique"))
        takes = self._takes((due - dt.datetime.now(dt.UTC)).total_seconds())
        if not takes or pipeline is not None or getattr(job, "has_rate_limit", False):
            return _keep_in_rq(original, queue, job, when, pipeline, options)
        self._route(self.topic, self._check_place(queue.connection))
        registry = queue.scheduled_job_registry
        keys = {"queue": queue.key, "queues": queue.redis_queues_keys, "scheduled": registry.key}
        ticket = Ticket(id=job.id, ticket=secrets.token_hex(8), job=key_of(job), **keys)
        payload = as_payload(self._options, msgspec.json.encode(ticket))
        job.origin = queue.name
        if job.timeout is None:
            job.timeout = queue._default_timeout  # as RQ does when it enqueues the job
        with queue.connection.pipeline() as saving:
            saving.exists(ticket.job)
            if unique:
                original(job, when, **options)  # a script, which refuses a second one
            else:
                original(job, when, pipeline=saving)
            saving.hset(ticket.job, RQ_FIELD, ticket.ticket)
            saving.zadd(registry.key, {job.id: int(due.timestamp()) + RQ_NET_S})
            existed, *_ = saving.execute()
        try:
            self.engine.push(payload, at=due, topic=self.topic, id=f"{task_id(job.id)}.{ticket.ticket}")
        except BaseException:
            # stored or not, the engine's task does nothing without the ticket in the job
            with queue.connection.pipeline() as undoing:
                undoing.hdel(ticket.job, RQ_FIELD)
                registry.schedule(job, due, pipeline=undoing)
                undoing.execute()
            if unique or not existed:
                job.delete()
            raise
        registry.remove(job)
        self.delayed += 1
        return job

    def move_back(self, connection: redis.Redis | None = None) -> int:
        """Ends it, and gives the jobs that wait in the engine to RQ's own scheduler. Returns how many. A class of
        queues needs the ``connection`` to RQ's Redis. Other processes should have ended it before.

        >>> delaying.move_back()
        1
        """
        self.remove()
        if connection is None:
            if isinstance(self._theirs, type):
                raise InvalidOption("a class of queues has no connection: give move_back that to RQ's Redis")
            connection = self._theirs.connection
        moved = 0
        for task in self._waiting(self.topic):
            assert task.due is not None, "it is scheduled"
            moved += _give_back(connection, task.payload, task.due)
            self.engine.cancel(task.id)
        return moved


def _keep_in_rq(
    original: Original, queue: rq.Queue, job: Job, when: dt.datetime, pipeline: Any, options: dict[str, Any]
) -> Job:
    """RQ's own way. A job that waits in the engine waits there no more."""
    if options.get("unique"):
        return original(job, when, pipeline=pipeline, **options)  # which a job that exists is refused by
    saving = queue.connection.pipeline() if pipeline is None else pipeline
    saving.hdel(key_of(job), RQ_FIELD)
    original(job, when, pipeline=saving, **options)
    if pipeline is None:
        saving.execute()
    return job


def _give_back(connection: redis.Redis, payload: Any, due: dt.datetime) -> bool:
    """Puts a job in RQ's registry if it still waits for this ticket."""
    ticket = msgspec.json.decode(payload if isinstance(payload, bytes) else msgspec.json.encode(payload), type=Ticket)
    with connection.pipeline() as moving:
        while True:
            try:
                moving.watch(ticket.job, ticket.scheduled)  # type: ignore[no-untyped-call]
                waits = connection.hmget(ticket.job, RQ_FIELD, "status") == [ticket.ticket.encode(), b"scheduled"]
                at = connection.zscore(ticket.scheduled, ticket.id)
                if not waits or (at is not None and at % 1 == 0):  # RQ has scheduled it itself
                    return False
                moving.multi()
                moving.hdel(ticket.job, RQ_FIELD)
                moving.zadd(ticket.scheduled, {ticket.id: int(due.timestamp())})
                moving.execute()
            except redis.WatchError:
                continue
            return True


def key_of(job: Job) -> str:
    """The key of a job's hash."""
    return job.key.decode() if isinstance(job.key, bytes) else job.key
