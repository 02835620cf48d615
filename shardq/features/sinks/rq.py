"""RQ: jobs whose time has come are put on their queues, as RQ's own scheduler does it.

    rq+redis://HOST:PORT/DB           rq+rediss://… rq+unix://… rq+redis+sentinel://…

What follows ``rq+`` is the URL of RQ's Redis. The payload is a ``Ticket``, which ``shardq.integrations.rq`` makes; the
job itself is where RQ keeps it. The package rq is not needed here.

The ticket is written in the job, too, and is taken off as the job is put on its queue, in the same script. So a task
that is sent twice enqueues its job once; and a job that was cancelled, deleted, enqueued or scheduled anew meanwhile,
by any process, is left alone. A job that RQ itself schedules, as for a retry or a repeat, keeps its ticket: it is in
RQ's registry of scheduled jobs, at a whole second.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec

from shardq.core.calls.request import Call, Word
from shardq.core.scripts import Script
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SENT, Message, Refused, Result
from shardq.features.sinks.redis import OnRedis

FIELD = "shardq"
"""The field of a job's hash that holds its ticket. RQ passes over fields that it does not know."""

NET_S = 600.5
"""While a ticket is pushed, its job is in RQ's registry as well, so much later than it is due. That is longer than the
engine is late, or a push takes. The half second tells this entry from those that RQ makes.
"""

_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"

_TEXT = """\
for i = 1, #KEYS, 4 do
  local job, queue, queues, scheduled = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3]
  local n = (i - 1) / 2 + 2
  local id, ticket = ARGV[n], ARGV[n + 1]
  local seen = redis.call('HMGET', job, 'shardq', 'status', 'ttl',
    'enqueue_at_front', 'enqueue_at_front_on_retry', 'ended_at')
  local rq_has = redis.call('ZSCORE', scheduled, id)
  if seen[1] == ticket and seen[2] == 'scheduled' and not (rq_has and tonumber(rq_has) % 1 == 0) then
    redis.call('HDEL', job, 'shardq')
    redis.call('HSET', job, 'status', 'queued', 'enqueued_at', ARGV[1])
    local ttl = tonumber(seen[3])
    if ttl and ttl > 0 then
      redis.call('EXPIRE', job, ttl)
    end
    redis.call('SADD', queues, queue)
    redis.call('ZREM', scheduled, id)
    if seen[4] == '1' or (seen[5] == '1' and seen[6] and seen[6] ~= '') then
      redis.call('LPUSH', queue, id)
    else
      redis.call('RPUSH', queue, id)
    end
  end
end
return 0
"""
_ENQUEUE = Script.of("enqueue-rq", _TEXT)
"""Not in ``lua/``, which is the contract of our own keys: it touches none of them. It writes what RQ's
``Queue._enqueue_job`` writes, with the status, origin and timeout that were saved with the job.
"""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits, and where RQ keeps it."""

    id: str
    ticket: str
    """Different each time that the job is scheduled."""
    job: str
    """The key of the job's hash."""
    queue: str
    queues: str
    scheduled: str
    """The key of RQ's own registry of scheduled jobs."""


class RqSink(OnRedis):
    """Enqueues jobs."""

    batch = 128

    def __init__(self, url: str) -> None:
        where = url.removeprefix("rq+")
        if "#" in where:
            raise InvalidUrl(
                "an rq+redis:// URL has no part after #: each job tells its queue; rq+redis://HOST:PORT/DB"
            )
        super().__init__(where)

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        results: list[Result] = []
        keys: list[str] = []
        words: list[Word] = [dt.datetime.now(dt.UTC).strftime(_TIME)]
        for message in batch:
            try:
                ticket = msgspec.json.decode(message.payload, type=Ticket)
            except msgspec.DecodeError as exc:
                results.append(Refused(f"no job of shardq.integrations.rq: {exc}"))
                continue
            keys += ticket.job, ticket.queue, ticket.queues, ticket.scheduled
            words += ticket.id, ticket.ticket
            results.append(SENT)
        if keys:
            self._call(Call(slot=0, words=words, decode=int, script=_ENQUEUE, keys=keys))
        return results
