"""All shards of an engine at one instant, read by one script: where every id is, and what is stored of it.

A task on its way counts as held by its moving task as long as the mark is there that its ``put`` uses up; a moving task
without one has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import redis

from shardq.core.layout.keys import ShardKeys

LOOK = """
local shards = {}
for i, prefix in ipairs(ARGV) do
  local moving = {}
  local moved = redis.call('HGETALL', prefix .. 'moved')
  for j = 1, #moved, 2 do
    local number, target, kind, score, lease, why, rest =
      string.match(moved[j + 1], '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
    local record = lease + why + 1
    moving[#moving + 1] = {
      moved[j], number, tonumber(target), kind, score, string.sub(rest, record), string.sub(rest, 1, lease),
      string.sub(rest, lease + 1, lease + why),
    }
  end
  shards[i] = {
    redis.call('HGETALL', prefix .. 'task'), redis.call('ZRANGE', prefix .. 'due', 0, -1, 'WITHSCORES'),
    redis.call('ZRANGE', prefix .. 'leased', 0, -1, 'WITHSCORES'),
    redis.call('ZRANGE', prefix .. 'dead', 0, -1, 'WITHSCORES'), redis.call('HGETALL', prefix .. 'lease'),
    redis.call('HGETALL', prefix .. 'why'), redis.call('HGETALL', prefix .. 'ghost'),
    redis.call('LRANGE', prefix .. 'ready/', 0, -1), moving, redis.call('HKEYS', prefix .. 'staged'),
    redis.call('ZRANGE', prefix .. 'seen', 0, -1, 'WITHSCORES'),
  }
end
return shards
"""


@dataclass(frozen=True)
class Task:
    """All that is stored of one id, in whichever shard."""

    state: str
    instant_ms: int
    """Due time, deadline or death; 0 of a ready one."""
    record: bytes
    lease: bytes
    why: bytes


@dataclass
class Picture:
    tasks: dict[str, Task] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """``shard 1`` or ``on its way from 0 to 2``."""
    prefixes: dict[str, str] = field(default_factory=dict)
    """Of those in a shard: what its keys begin with."""
    windows: dict[str, float] = field(default_factory=dict)
    """Id → the latest end of a dedup window, with its mark, in any shard."""
    window_shards: dict[str, set[int]] = field(default_factory=dict)
    moving_tasks: int = 0
    wrong: list[str] = field(default_factory=list)
    """What must never be: an id in two places, or in a list and not in its state."""

    def _add(self, id: str, place: str, task: Task) -> None:
        if id in self.tasks:
            self.wrong.append(f"{id} is {self.tasks[id].state} in {self.places[id]} and {task.state} in {place}")
        self.tasks[id], self.places[id] = task, place


def picture(client: redis.Redis, shards: list[ShardKeys]) -> Picture:
    """Reads all shards of one server; not for clusters."""
    answer: Any = client.eval(LOOK, 0, *(keys.prefix for keys in shards))
    seen = Picture()
    marks = [{mark.decode() for mark in shard[9]} for shard in answer]
    for number, shard in enumerate(answer):
        _shard(seen, number, shard, marks, shards[number].prefix)
    return seen


def _shard(seen: Picture, number: int, shard: list[Any], marks: list[set[str]], prefix: str) -> None:
    records, due, leased, dead, leases, whys, ghosts = map(_pairs, shard[:7])
    ready = [id.decode() for id in shard[7]]
    states = {"scheduled": due, "leased": leased, "dead": dead}
    for id, record in records.items():
        found = {state: _ms(score[id]) for state, score in states.items() if id in score}
        if len(found) > 1:
            seen.wrong.append(f"{id} is {' and '.join(found)} in shard {number}")
        state, instant = next(iter(found.items())) if found else ("ready", 0)
        seen.prefixes[id] = prefix
        seen._add(id, f"shard {number}", Task(state, instant, record, leases.get(id, b""), whys.get(id, b"")))
    for state, scores in states.items():
        seen.wrong += [f"{id} is {state} in shard {number} and has no record" for id in scores.keys() - records.keys()]
    for id in {*ready, *ghosts, *records}:
        listed = seen.prefixes.get(id) == prefix and seen.tasks[id].state == "ready"
        if ready.count(id) != listed + int(ghosts.get(id, 0)):
            seen.wrong.append(
                f"{id} is {'' if listed else 'not '}ready in shard {number}, where it stands in the list "
                f"{ready.count(id)} times and has {ghosts.get(id, b'0').decode()} ghosts"
            )
    for raw, mark, target, kind, score, record, lease, why in shard[8]:
        seen.moving_tasks += 1
        id = raw.decode()
        if f"{id}|{mark.decode()}" in marks[target]:
            task = Task("scheduled" if kind == b"due" else "dead", _ms(score), record, lease, why)
            seen._add(id, f"on its way from {number} to {target}", task)
    for id, end in _pairs(shard[10]).items():
        seen.windows[id] = max(seen.windows.get(id, 0), float(end))
        seen.window_shards.setdefault(id, set()).add(number)


def _pairs(flat: list[bytes]) -> dict[str, bytes]:
    fields = iter(flat)
    return {name.decode(): value for name, value in zip(fields, fields, strict=True)}


def _ms(score: bytes) -> int:
    return int(float(score))
