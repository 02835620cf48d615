"""Job queues on Redis: jobs whose time has come are put on their queue, as the queue's own scheduler does it.

    rq+redis://HOST:PORT/DB
    dramatiq+redis://HOST:PORT/DB#NAMESPACE:QUEUE
    sidekiq+redis://HOST:PORT/DB#QUEUE

What stands between the ``+`` and the ``#`` is the URL of the queue's Redis, also ``rediss``, ``unix`` and
``redis+sentinel``. No package of the other side is needed here. A job that is sent twice is enqueued once: each sink's
script says by what it tells. The scripts are not in ``lua/``, which is the contract of our own keys.
"""

from __future__ import annotations

import datetime as dt
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import unquote

import msgspec

from shardq.core.calls.request import Call, Word
from shardq.core.scripts import Script
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SENT, Message, Refused, Result
from shardq.features.sinks.redis import OnRedis
from shardq.features.sinks.urls import split_name

REMEMBERED_S = 300
"""The time for which Dramatiq's and Sidekiq's sinks remember, beside the queue, what they have enqueued: longer than
what a process that was killed had leased waits for another.
"""


class QueueSink(OnRedis):
    """Enqueues a batch by one run of a script."""

    batch = 128
    script: ClassVar[Script]
    foreign: ClassVar[str]
    """The beginning of the reason of a message that is none of this queue's."""

    def __init__(self, url: str) -> None:
        where, name = split_name(url)
        self._queue = unquote(name)
        self._check_queue()
        super().__init__(where.partition("+")[2])

    @abstractmethod
    def _check_queue(self) -> None:
        """Raises InvalidUrl for a name after the # that is not possible."""

    @abstractmethod
    def _of_all(self) -> tuple[list[str], list[Word]]:
        """The keys and the arguments of the script that come first, whatever the batch."""

    @abstractmethod
    def _of_one(self, message: Message) -> tuple[list[str], list[Word]]:
        """Those of one job. Raises ValueError or DecodeError for a message that is none."""

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        keys, words = self._of_all()
        results: list[Result] = []
        for message in batch:
            try:
                its_keys, its_words = self._of_one(message)
            except (ValueError, msgspec.DecodeError) as exc:
                results.append(Refused(f"{self.foreign}: {exc}"))
            else:
                keys += its_keys
                words += its_words
                results.append(SENT)
        if SENT in results:
            self._call(Call(slot=0, words=words, decode=int, script=self.script, keys=keys))
        return results


# ---- RQ

RQ_FIELD = "shardq"
"""The field of a job's hash that holds its ticket. RQ passes over fields that it does not know."""

RQ_NET_S = 600.5
"""While a ticket is pushed, its job is in RQ's registry as well, so much later than it is due. That is longer than the
engine is late, or a push takes. The half second tells this entry from those that RQ makes.
"""

_RQ = """\
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


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits, and where RQ keeps it. ``shardq.integrations.rq`` makes it."""

    id: str
    ticket: str
    """Different each time that the job is scheduled."""
    job: str
    """The key of the job's hash."""
    queue: str
    queues: str
    scheduled: str
    """The key of RQ's own registry of scheduled jobs."""


class RqSink(QueueSink):
    """Writes what RQ's ``Queue._enqueue_job`` writes, with the status, origin and timeout that were saved with the job.

    The payload is a ``Ticket``. It is written in the job, too, and is taken off as the job is put on its queue. So a
    job that was cancelled, deleted, enqueued or scheduled anew meanwhile, by any process, is left alone. A job that RQ
    itself schedules, as for a retry or a repeat, keeps its ticket: it is in RQ's registry of scheduled jobs, at a whole
    second.
    """

    script = Script.of("enqueue-rq", _RQ)
    foreign = "no job of shardq.integrations.rq"

    def _check_queue(self) -> None:
        if self._queue:
            raise InvalidUrl(
                "an rq+redis:// URL has no part after #: each job tells its queue; rq+redis://HOST:PORT/DB"
            )

    def _of_all(self) -> tuple[list[str], list[Word]]:
        return [], [dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")]

    def _of_one(self, message: Message) -> tuple[list[str], list[Word]]:
        ticket = msgspec.json.decode(message.payload, type=Ticket)
        return [ticket.job, ticket.queue, ticket.queues, ticket.scheduled], [ticket.id, ticket.ticket]


# ---- Dramatiq

DRAMATIQ_HEADER = "redis_message_id"

_DRAMATIQ = """\
for i = 2, #ARGV, 2 do
  local id, message = ARGV[i], ARGV[i + 1]
  if redis.call('SET', KEYS[2 + i / 2], '1', 'NX', 'EX', ARGV[1]) then
    redis.call('HSET', KEYS[2], id, message)
    redis.call('RPUSH', KEYS[1], id)
  end
end
return 0
"""


class DramatiqSink(QueueSink):
    """Writes what the command ``enqueue`` of Dramatiq's ``dispatch.lua`` writes. The payload is the encoded message,
    and the header ``redis_message_id`` the id by which Dramatiq keeps it. The namespace is ``dramatiq``, unless the
    broker has another.
    """

    script = Script.of("enqueue-dramatiq", _DRAMATIQ)
    foreign = "no message of shardq.integrations.dramatiq"

    def _check_queue(self) -> None:
        namespace, _, name = self._queue.rpartition(":")
        if not (namespace and name):
            raise InvalidUrl(
                "a dramatiq+redis:// URL ends with the namespace and the queue: dramatiq+redis://HOST:PORT/DB#dramatiq:QUEUE"
            )

    def _of_all(self) -> tuple[list[str], list[Word]]:
        return [self._queue, f"{self._queue}.msgs"], [REMEMBERED_S]

    def _of_one(self, message: Message) -> tuple[list[str], list[Word]]:
        id = message.headers.get(DRAMATIQ_HEADER)
        if id is None:
            raise ValueError(f"it has no header {DRAMATIQ_HEADER}")
        return [f"{self._queue}.shardq.{id}"], [id, message.payload]


# ---- Sidekiq

_SIDEKIQ = """\
redis.call('SADD', KEYS[1], ARGV[1])
for i = 3, #ARGV do
  if redis.call('SET', KEYS[i], '1', 'NX', 'EX', ARGV[2]) then
    redis.call('LPUSH', KEYS[2], ARGV[i])
  end
end
return 0
"""


class Job(msgspec.Struct):
    """The fields of a job of Sidekiq that are read."""

    jid: str
    created_at: int | float
    args: msgspec.Raw


class SidekiqSink(QueueSink):
    """Writes what ``atomic_push`` of Sidekiq's client writes. The payload is the job, as JSON; a job is known by its
    jid and the time of its making.
    """

    script = Script.of("enqueue-sidekiq", _SIDEKIQ)
    foreign = "no job of Sidekiq"

    def _check_queue(self) -> None:
        if not self._queue:
            raise InvalidUrl("a sidekiq+redis:// URL ends with the queue: sidekiq+redis://HOST:PORT/DB#default")

    def _of_all(self) -> tuple[list[str], list[Word]]:
        return ["queues", f"queue:{self._queue}"], [self._queue, REMEMBERED_S]

    def _of_one(self, message: Message) -> tuple[list[str], list[Word]]:
        job, now_s = msgspec.json.decode(message.payload, type=Job), time.time()
        # ``enqueued_at``, by which Sidekiq tells the latency of its queues, has the unit of ``created_at``: since
        # Sidekiq 8 whole milliseconds, before seconds. The rest is left byte for byte as it is.
        at = b"%d" % (now_s * 1000) if isinstance(job.created_at, int) else b"%.6f" % now_s
        enqueued = bytes(message.payload).rstrip()[:-1] + b',"enqueued_at":' + at + b"}"
        return [f"queue:{self._queue}:shardq:{job.jid}:{job.created_at}"], [enqueued]
