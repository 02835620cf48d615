"""Appending tasks to a list or a stream that is not ours. Used by the relay of other slots, and by the sink of other
servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from shardq.calls.request import Call, Command, Word
from shardq.layout.slots import slot_of
from shardq.scripts import Script

Way = Literal["right", "left", "stream"]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One task as others get it."""

    id: str
    payload: bytes
    headers: Mapping[str, str]


_TEXT = """\
for i = 2, #ARGV, 3 do
  local entry = {'*', 'id', ARGV[i], 'payload', ARGV[i + 1]}
  if ARGV[i + 2] ~= '' then
    entry[6], entry[7] = 'headers', ARGV[i + 2]
  end
  -- the last one trims, so that a stream that takes no more entries loses none
  if ARGV[1] ~= '' and i + 2 == #ARGV then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], unpack(entry))
  else
    redis.call('XADD', KEYS[1], unpack(entry))
  end
end
return (#ARGV - 1) / 3
"""
_ENTRIES = Script.of("append", _TEXT)
"""Not in ``lua/``, which is the contract of our own keys: it touches none of them."""


def append(key: str, way: Way, entries: Sequence[Entry], maxlen: int | None = None) -> Command[int]:
    """Appends entries to a key, all of them or none. After a lost answer it is sent again: at least once.

    An entry of a list is the payload. One of a stream has the fields ``id``, ``payload`` and, of a task with headers,
    ``headers``, a JSON object: as forward.lua writes them. ``maxlen``: about how many entries the stream keeps.
    """
    slot = slot_of(key)
    if way == "stream":
        words: list[Word] = ["" if maxlen is None else maxlen]
        words += [word for entry in entries for word in (entry.id, entry.payload, _headers(entry))]
        return Call(slot=slot, words=words, decode=int, script=_ENTRIES, keys=(key,))
    verb = "LPUSH" if way == "left" else "RPUSH"
    return Command(slot=slot, words=(verb, key, *(entry.payload for entry in entries)), decode=int)


def _headers(entry: Entry) -> bytes:
    return msgspec.json.encode(entry.headers) if entry.headers else b""
