"""Redis elsewhere: a list or a stream of another server, cluster, or service of Sentinels; and the job queues that are
kept on Redis, where jobs whose time has come are put on their queue as the queue's own scheduler does it.

    redis://HOST:PORT/DB#LIST
    redis+cluster://HOST:PORT,HOST:PORT#stream:NAME
    rq+redis://HOST:PORT/DB
    dramatiq+redis://HOST:PORT/DB#NAMESPACE:QUEUE
    sidekiq+redis://HOST:PORT/DB#QUEUE

The URL is one of an engine, with ``timeout=`` among its options, and the key follows the ``#``. No package of the other
side is needed here. A job that is sent twice is enqueued once: each queue's script says by what it tells. These scripts
are not in ``lua/``, which is the contract of our own keys.
"""

from __future__ import annotations

import datetime as dt
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from shardq.core.calls.dispatch import Entry, Way, append
from shardq.core.calls.request import Call, Command, Word
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout import destinations
from shardq.core.layout.words import UNDECODABLE
from shardq.core.scripts import Script
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SENT, Message, Refused, Result, Sink
from shardq.features.sinks.urls import TIMEOUT, split_name, timeout

T = TypeVar("T")

CONNECTIONS = 4
TIMEOUT_S = 3.0
"""Longer than a connection takes, shorter than a failover: those are for the circuit."""

REMEMBERED_S = 300
"""The time for which Dramatiq's and Sidekiq's sinks remember, beside the queue, what they have enqueued: longer than
what a process that was killed had leased waits for another.
"""


class OnRedis(Sink):
    """Connects by the URL of an engine, which may also have ``timeout=``; sinks that derive from it have ``send``."""

    def __init__(self, url: str) -> None:
        timeout_s = timeout(url.partition("://")[0], dict(parse_qsl(url.partition("?")[2])), TIMEOUT_S)
        self._settings = Settings.from_url(
            url, timeout=timeout_s, connect_timeout=timeout_s, connections=CONNECTIONS, also=(TIMEOUT,)
        )
        self.addresses: Sequence[str] = self._settings.addresses
        self._driver: Driver | None = None

    def open(self) -> None:
        self._driver = Driver(replace(self._settings, check_ip=self.check_ip))
        self._driver.open()

    def _call(self, command: Command[T]) -> T:
        assert self._driver is not None, "it is open"
        return self._driver.call(command)

    def interrupt(self) -> None:
        if (driver := self._driver) is not None:
            driver.close()

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()


class RedisSink(OnRedis):
    """Appends to a key. What the server refuses, such as a key of another type, holds the topic back: it says nothing
    of one task.
    """

    def __init__(self, url: str) -> None:
        where, name = split_name(url)
        to = unquote(name)
        scheme = where.partition("://")[0]
        if not destinations.key_of(to):
            raise InvalidUrl(f"a {scheme}:// URL to forward to ends with the key: {scheme}://…#LIST or #stream:NAME")
        if destinations.key_of(to).startswith("shardq:{"):
            raise InvalidUrl(f"{to!r} is a key of shardq's own; give the name of another list or stream")
        super().__init__(where)
        self._key = destinations.key_of(to)
        self._way: Way = "stream" if destinations.is_stream(to) else "right"
        self._maxlen: int | None = None

    def put_left(self) -> None:
        if self._way == "stream":
            super().put_left()
        self._way = "left"

    def trim(self, maxlen: int) -> None:
        if self._way != "stream":
            super().trim(maxlen)
        self._maxlen = maxlen

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        entries = [Entry(message.id, message.payload, message.headers) for message in batch]
        self._call(append(self._key, self._way, entries, self._maxlen))
        return [SENT] * len(batch)


# ---- job queues


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
        """Returns the keys and arguments of one job. Raises ValueError or DecodeError if the message is not a job."""

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        keys, words = self._of_all()
        results: list[Result] = []
        for message in batch:
            try:
                its_keys, its_words = self._of_one(message)
            except UNDECODABLE as exc:
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

    script: ClassVar[Script] = Script.of("enqueue-rq", _RQ)
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

    script: ClassVar[Script] = Script.of("enqueue-dramatiq", _DRAMATIQ)
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

    script: ClassVar[Script] = Script.of("enqueue-sidekiq", _SIDEKIQ)
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
