"""Sidekiq: jobs whose time has come are put on their queue, as Sidekiq's own client does it.

    sidekiq+redis://HOST:PORT/DB#QUEUE           sidekiq+rediss://… sidekiq+unix://… sidekiq+redis+sentinel://…

What stands between ``sidekiq+`` and ``#`` is the URL of Sidekiq's Redis. The payload is the job, as JSON; the sink
writes ``enqueued_at`` into it, by which Sidekiq tells the latency of its queues.

A job that is sent twice within ``REMEMBERED_S`` is enqueued once: its jid and the time of its making are remembered
beside the queue, in the same script.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import unquote

import msgspec

from shardq.core.calls.request import Call, Word
from shardq.core.scripts import Script
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SENT, Message, Refused, Result
from shardq.features.sinks.redis import REMEMBERED_S, OnRedis
from shardq.features.sinks.urls import split_name

_TEXT = """\
redis.call('SADD', KEYS[1], ARGV[1])
for i = 3, #ARGV do
  if redis.call('SET', KEYS[i], '1', 'NX', 'EX', ARGV[2]) then
    redis.call('LPUSH', KEYS[2], ARGV[i])
  end
end
return 0
"""
_ENQUEUE = Script.of("enqueue-sidekiq", _TEXT)
"""Not in ``lua/``, which is the contract of our own keys. It writes what ``atomic_push`` of Sidekiq's client writes."""


class Job(msgspec.Struct):
    """The fields of a job that are read."""

    jid: str
    created_at: int | float
    args: msgspec.Raw


class SidekiqSink(OnRedis):
    """Enqueues jobs of one queue."""

    batch = 128

    def __init__(self, url: str) -> None:
        where, name = split_name(url)
        where, self._queue = where.removeprefix("sidekiq+"), unquote(name)
        if not self._queue:
            raise InvalidUrl("a sidekiq+redis:// URL ends with the queue: sidekiq+redis://HOST:PORT/DB#default")
        super().__init__(where)

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        results: list[Result] = []
        key = f"queue:{self._queue}"
        keys = ["queues", key]
        words: list[Word] = [self._queue, REMEMBERED_S]
        now_s = time.time()
        for message in batch:
            try:
                job = msgspec.json.decode(message.payload, type=Job)
            except msgspec.DecodeError as exc:
                results.append(Refused(f"no job of Sidekiq: {exc}"))
                continue
            keys.append(f"{key}:shardq:{job.jid}:{job.created_at}")
            words.append(enqueued(bytes(message.payload), job, now_s))
            results.append(SENT)
        if len(keys) > 2:
            self._call(Call(slot=0, words=words, decode=int, script=_ENQUEUE, keys=keys))
        return results


def enqueued(payload: bytes, job: Job, now_s: float) -> bytes:
    """The job with the time of its enqueuing, in the unit of ``created_at``: since Sidekiq 8 whole milliseconds, before
    seconds. The rest is left byte for byte as it is; of a name that occurs twice JSON counts the last.
    """
    at = b"%d" % (now_s * 1000) if isinstance(job.created_at, int) else b"%.6f" % now_s
    return payload.rstrip()[:-1] + b',"enqueued_at":' + at + b"}"
