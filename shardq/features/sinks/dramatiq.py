"""Dramatiq on Redis: messages whose time has come are enqueued, as Dramatiq's own broker does it.

    dramatiq+redis://HOST:PORT/DB#NAMESPACE:QUEUE       dramatiq+rediss://… dramatiq+unix://… dramatiq+redis+sentinel://…

What stands between ``dramatiq+`` and ``#`` is the URL of the broker's Redis; the namespace is ``dramatiq``, unless the
broker has another. The payload is the encoded message, and the header ``redis_message_id`` the id by which Dramatiq
keeps it there. The package dramatiq is not needed here.

A message that is sent twice within ``REMEMBERED_S`` is enqueued once: its id is remembered beside the queue, in the
same script.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from shardq.core.calls.request import Call, Word
from shardq.core.scripts import Script
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SENT, Message, Refused, Result
from shardq.features.sinks.redis import REMEMBERED_S, OnRedis
from shardq.features.sinks.urls import split_name

HEADER = "redis_message_id"

_TEXT = """\
for i = 2, #ARGV, 2 do
  local id, message = ARGV[i], ARGV[i + 1]
  if redis.call('SET', KEYS[2 + i / 2], '1', 'NX', 'EX', ARGV[1]) then
    redis.call('HSET', KEYS[2], id, message)
    redis.call('RPUSH', KEYS[1], id)
  end
end
return 0
"""
_ENQUEUE = Script.of("enqueue-dramatiq", _TEXT)
"""Not in ``lua/``, which is the contract of our own keys. It writes what the command ``enqueue`` of Dramatiq's
``dispatch.lua`` writes.
"""


class DramatiqSink(OnRedis):
    """Enqueues messages of one queue."""

    batch = 128

    def __init__(self, url: str) -> None:
        where, name = split_name(url)
        where, self._queue = where.removeprefix("dramatiq+"), unquote(name)
        namespace, colon, name = self._queue.rpartition(":")
        if not (namespace and colon and name):
            raise InvalidUrl(
                "a dramatiq+redis:// URL ends with the namespace and the queue: dramatiq+redis://HOST:PORT/DB#dramatiq:QUEUE"
            )
        super().__init__(where)

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        results: list[Result] = []
        keys = [self._queue, f"{self._queue}.msgs"]
        words: list[Word] = [REMEMBERED_S]
        for message in batch:
            id = message.headers.get(HEADER)
            if id is None:
                results.append(Refused(f"no message of shardq.integrations.dramatiq: it has no header {HEADER}"))
                continue
            keys.append(f"{self._queue}.shardq.{id}")
            words += id, message.payload
            results.append(SENT)
        if len(words) > 1:
            self._call(Call(slot=0, words=words, decode=int, script=_ENQUEUE, keys=keys))
        return results
