"""Tasks as they are stored: read without claiming them, and shown as a table where an assertion fails."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardq.core.calls.request import Command
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.ids import topic_of
from shardq.core.model.record import Codec, decode_record
from shardq.core.model.task import State
from shardq.core.operation import Many, Operation, values
from shardq.core.topology_cache import TopologyCache
from shardq.errors import PayloadNotDecodable
from shardq.testing.virtual import EPOCH

MOST_SHOWN = 30
MOST_PAYLOAD = 60

_ORDER = {"ready": 0, "leased": 1, "scheduled": 2, "dead": 3}


@dataclass(frozen=True, slots=True)
class StoredTask:
    """One task of an engine, as ``tasks`` and the assertions return it.

    >>> task = shardq.testing.assert_pushed(engine, "mail")
    >>> task.state, task.due, task.payload
    """

    id: str
    topic: str
    state: State
    due: dt.datetime | None
    """None unless it is scheduled."""
    payload: Any
    """A PayloadNotDecodable where it can't be decoded."""
    headers: Mapping[str, str] = field(default_factory=dict)
    max_attempts: int | None = None
    reason: str | None = None
    """Why it is dead."""


def read(cache: TopologyCache, codec: Codec) -> Operation[list[StoredTask]]:
    """Reads all tasks: ready ones first, then leased, scheduled by due time, and dead ones."""
    found: list[StoredTask] = []
    for keys in cache.span():
        requests: dict[str, Command[Any]] = {
            # In this order, so that a task that is dispatched meanwhile is met in its earlier state. The records come
            # last: a task that is done by then is not met at all.
            "due": _scores(keys, keys.due),
            "leased": _scores(keys, keys.leased),
            "dead": _scores(keys, keys.dead),
            "why": _pairs(keys, keys.why),
            "task": _pairs(keys, keys.task),
        }
        found += _of_shard(values((yield Many(requests))), codec)
    return sorted(found, key=lambda task: (_ORDER[task.state], task.due or EPOCH, task.id))


def _of_shard(answers: Mapping[str, Any], codec: Codec) -> Iterable[StoredTask]:
    due, leased, dead, why = answers["due"], answers["leased"], answers["dead"], answers["why"]
    for id, record in answers["task"].items():
        state: State = "scheduled" if id in due else "leased" if id in leased else "dead" if id in dead else "ready"
        name = id.decode()
        at = EPOCH + dt.timedelta(milliseconds=due[id]) if id in due else None
        reason = why[id].decode(errors="replace") if id in why else None
        try:
            decoded = decode_record(record, own=codec)
        except PayloadNotDecodable as exc:
            yield StoredTask(name, topic_of(name), state, at, exc, reason=reason)
        else:
            yield StoredTask(
                name, topic_of(name), state, at, decoded.payload, decoded.headers, decoded.max_attempts, reason
            )


def _pairs(keys: ShardKeys, key: str) -> Command[dict[bytes, bytes]]:
    return Command(keys.slot, ("HGETALL", key), _as_dict)


def _scores(keys: ShardKeys, key: str) -> Command[dict[bytes, float]]:
    def decode(answer: Any) -> dict[bytes, float]:
        return {member: float(score) for member, score in _as_dict(answer).items()}

    return Command(keys.slot, ("ZRANGE", key, 0, -1, "WITHSCORES"), decode)


def _as_dict(answer: Any) -> dict[Any, Any]:
    """From either protocol: a map, a list of pairs, or all in one list."""
    if isinstance(answer, dict):
        return answer
    if answer and isinstance(answer[0], list):
        return dict(answer)
    items = iter(answer)
    return dict(zip(items, items, strict=True))


# ---- for people


def table(tasks: Sequence[StoredTask], now: dt.datetime) -> str:
    """The tasks as a table, with their due times from now."""
    if not tasks:
        return "no tasks"
    rows = [("state", "due", "topic", "payload", "id")]
    rows += [
        (task.state, _due(task, now), task.topic or '""', _short(task.payload), task.id) for task in tasks[:MOST_SHOWN]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join((*map(str.ljust, row[:4], widths), row[4])) for row in rows]
    if len(tasks) > MOST_SHOWN:
        lines.append(f"… and {len(tasks) - MOST_SHOWN:,} more")
    return "\n".join(lines)


def _due(task: StoredTask, now: dt.datetime) -> str:
    if task.state == "dead":
        return (task.reason or "").strip().splitlines()[-1][:MOST_PAYLOAD] if task.reason else ""
    if task.due is None:
        return ""
    return f"{shown(task.due)} ({in_words(task.due - now)})"


def shown(when: dt.datetime) -> str:
    return f"{when.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def in_words(delta: dt.timedelta) -> str:
    """Like ``in 1d 2:30:00`` and ``0:00:05 ago``."""
    ago, delta = delta < dt.timedelta(0), abs(delta)
    days, rest = delta.days, delta - dt.timedelta(days=delta.days)
    text = f"{days}d {rest}" if days else str(rest)
    if rest.microseconds:
        text = text[:-3]
    return f"{text} ago" if ago else f"in {text}"


def _short(payload: object) -> str:
    text = repr(payload)
    return text if len(text) <= MOST_PAYLOAD else f"{text[: MOST_PAYLOAD - 1]}…"
