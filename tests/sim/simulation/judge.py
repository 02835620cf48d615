"""The judge of a run: what holds after every script, and what became of every push.

Each push has a payload of its own, so what is claimed tells which push it is of.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardq.core.calls.request import Call, Command
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.record import decode_record
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.values import Hash, List, SortedSet

TOPICS = ("", "mail")


class Violation(Exception):
    """Something that must never happen."""


@dataclass
class Push:
    """One push of one task, by its number, which is its payload."""

    id: str
    number: int
    due_ms: int
    """Before it the task must not be claimed."""
    unique: bool
    dedup: bool
    outcome: str = "unknown"
    """pushed, replaced, kept…, seen, refused…; unknown until it is answered."""
    began_us: int = 0
    ended_us: int = 0
    resent: bool = False
    """An answer was lost: the task may be stored once more."""
    claims: list[int] = field(default_factory=list)
    """When it was claimed."""
    acked_us: int = 0
    may_be_gone: bool = False
    """It may have been cancelled or replaced."""


@dataclass
class Lease:
    token: str
    until_us: int


class Judge:
    def __init__(self, spaces: Mapping[ShardKeys, Keyspace]) -> None:
        self._spaces = spaces
        self._shard_of = {keys.meta: keys for keys in spaces}
        self.pushes: list[Push] = []
        self._leases: dict[str, Lease] = {}
        self._ending: Counter[str] = Counter()
        self._earlier: dict[str, list[int]] = {}
        self._rung: set[int] = set()
        """Shards whose bell rang after their last dispatch."""
        self.reached: Counter[str] = Counter()
        """What happened how often."""

    # ---- what actors tell

    def pushing(self, id: str, due_ms: int, now_us: int, *, unique: bool, dedup: bool) -> Push:
        due_ms = min([due_ms, *self._earlier.get(id, ())])
        push = Push(id, len(self.pushes), due_ms, unique, dedup, began_us=now_us, may_be_gone=self._ending[id] > 0)
        self.pushes.append(push)
        return push

    def pushed(self, push: Push, outcome: str, now_us: int) -> None:
        push.outcome, push.ended_us = outcome, now_us
        self.reached[f"push {outcome}"] += 1
        if outcome.startswith(("kept", "seen", "refused")) and push.claims:
            raise Violation(f"push {push.number} of {push.id} was answered {outcome}, and is claimed")

    @contextlib.contextmanager
    def ending(self, id: str, but: Push | None = None) -> Iterator[None]:
        """While a cancel or a replacing push of this id is under way: whatever is stored under it may go."""
        for push in self.pushes:
            if push.id == id and push is not but:
                push.may_be_gone = True
        self._ending[id] += 1
        try:
            yield
        finally:
            self._ending[id] -= 1

    @contextlib.contextmanager
    def earlier(self, id: str, due_ms: int) -> Iterator[None]:
        """While a reschedule or a requeue of this id is under way."""
        for push in self.pushes:
            if push.id == id:
                push.due_ms = min(push.due_ms, due_ms)
        dues = self._earlier.setdefault(id, [])
        dues.append(due_ms)
        try:
            yield
        finally:
            dues.remove(due_ms)

    # ---- what scripts do

    def lost(self, call: Command[Any]) -> None:
        """An answer, or a request, was lost."""
        if isinstance(call, Call) and call.script.name in ("push", "push_unique"):
            for word in call.words:
                if isinstance(word, bytes) and (push := self._push_of(word)) is not None:
                    push.resent = True

    def executed(self, who: str, call: Call[Any], answer: Any, now_us: int) -> None:
        name = call.script.name
        if isinstance(answer, list):
            self.reached[f"{name} {answer[0].decode()}"] += 1
            if answer[0] == b"ok":
                if name == "claim":
                    self._claimed(call, answer, now_us)
                elif name == "settle":
                    self._settled(call, answer, now_us)
                elif name == "extend":
                    self._extended(call, answer, now_us)
                elif name == "push_unique":
                    for id, said in zip(call.words[5::5], answer[1:], strict=True):
                        if said == b"replaced":
                            self._leases.pop(str(id), None)
        if keys := self._shard_of.get(call.keys[0]):
            messages = self._spaces[keys].messages
            if name == "dispatch":
                self._rung.discard(keys.shard)
            elif any(channel == keys.bell.encode() for channel, _ in messages):
                self._rung.add(keys.shard)
            messages.clear()
            self.check(keys, now_us // 1000)

    def _push_of(self, record: bytes) -> Push | None:
        if not record:
            return None
        payload = decode_record(record, own=None).payload
        return self.pushes[payload] if isinstance(payload, int) and payload < len(self.pushes) else None

    def _claimed(self, call: Call[Any], answer: list[Any], now_us: int) -> None:
        lease_ms, token = int(call.words[4]), str(call.words[5])
        ids = answer[4].decode().split("\n") if answer[5] else []
        for id, record in zip(ids, answer[5], strict=True):
            push = self._push_of(record)
            if push is None or push.id != id:
                raise Violation(f"{id} is claimed with a record that is not its own: {record!r}")
            if now_us < push.due_ms * 1000:
                raise Violation(f"push {push.number} of {id} is claimed {push.due_ms * 1000 - now_us} µs early")
            if push.outcome.startswith(("kept", "seen", "refused")):
                raise Violation(f"push {push.number} of {id} was answered {push.outcome}, and is claimed")
            if push.acked_us and not (push.resent and not (push.unique and push.dedup)):
                raise Violation(f"push {push.number} of {id} is claimed again, after it was acknowledged")
            lease = self._leases.get(id)
            if lease is not None and lease.until_us > now_us:
                raise Violation(f"{id} is claimed under {token}, while its lease under {lease.token} lasts")
            push.claims.append(now_us)
            self._leases[id] = Lease(token, now_us // 1000 * 1000 + lease_ms * 1000)

    def _settled(self, call: Call[Any], answer: list[Any], now_us: int) -> None:
        words = call.words
        acks, tokens = int(words[3]), int(words[4])
        ids = [str(id) for id in words[5 : 5 + acks]]
        pairs = words[5 + acks : 5 + acks + tokens * 2]
        held = [str(token) for token, count in zip(pairs[::2], pairs[1::2], strict=True) for _ in range(int(count))]
        rest = words[5 + acks + tokens * 2 :]
        ids += [str(id) for id in rest[1::6]]
        held += [str(token) for token in rest[2::6]]
        verdicts = dict(zip(answer[1::2], answer[2::2], strict=True))
        for position, (id, token) in enumerate(zip(ids, held, strict=True), 1):
            if verdicts.get(position) in (b"lost", b"replaced"):
                continue
            lease = self._leases.pop(id, None)
            if lease is None or lease.token != token:
                raise Violation(f"{id} is settled under {token}, which does not hold it")
            if position <= acks:
                held_push = max(
                    (push for push in self.pushes if push.id == id and push.claims), key=lambda p: p.claims[-1]
                )
                held_push.acked_us = now_us

    def _extended(self, call: Call[Any], answer: list[Any], now_us: int) -> None:
        refused = set(answer[1::2])
        for position, id in enumerate(call.words[4::2], 1):
            if position not in refused and str(id) in self._leases:
                self._leases[str(id)].until_us = now_us // 1000 * 1000 + int(call.words[3]) * 1000

    # ---- what holds after every script

    def check(self, keys: ShardKeys, now_ms: int) -> None:
        """Every record of the shard has exactly one place, and everything in a place has a record."""
        space = self._spaces[keys]
        task, lease, why, ghost = (_hash(space, key) for key in (keys.task, keys.lease, keys.why, keys.ghost))
        due, leased, dead = (_scores(space, key) for key in (keys.due, keys.leased, keys.dead))
        ready: Counter[bytes] = Counter()
        for topic in TOPICS:
            entries = space.keys.get(keys.ready(topic).encode())
            ready.update(entries if isinstance(entries, List) else ())
        for id in ready.keys() | ghost.keys():
            ready[id] -= int(ghost.get(id, 0))
        for id in task.keys() | due.keys() | leased.keys() | dead.keys() | ready.keys():
            places = (id in due) + (id in leased) + (id in dead) + ready[id]
            if places != (id in task):
                raise Violation(
                    f"{id.decode()} in shard {keys.shard}: record {id in task}, due {id in due}, "
                    f"leased {id in leased}, dead {id in dead}, entries that are no ghosts {ready[id]}"
                )
        if lease.keys() - task.keys():
            raise Violation(f"shard {keys.shard} has lease entries without a task: {lease.keys() - task.keys()}")
        held = {id for id, entry in lease.items() if (token := entry.split(b":", 3)[3]) and token[:1] != b"~"}
        if held != leased.keys():
            raise Violation(f"shard {keys.shard}: tokens of {held}, leases of {set(leased)}")
        if why.keys() != dead.keys():
            raise Violation(f"shard {keys.shard}: reasons of {set(why)}, deaths of {set(dead)}")
        meta = _hash(space, keys.meta)
        wake_at = meta.get(b"wake_at")
        # a poller that was rung looks, and writes it anew
        asleep = wake_at is not None and keys.shard not in self._rung
        if due and asleep and (not wake_at or float(wake_at) > max(min(due.values()), now_ms + 1)):
            raise Violation(
                f"shard {keys.shard} sleeps until {wake_at!r}, and has a task due at {min(due.values()):.0f}"
            )
        for other, its_space in self._spaces.items():
            if other is not keys and (twice := task.keys() & _hash(its_space, other.task).keys()):
                raise Violation(f"{twice} are in shard {keys.shard} and in {other.shard}")

    # ---- what became of every push

    def account(self, span: int, now_us: int) -> None:
        """At the end, when everything was claimed and acknowledged that could be."""
        dead: set[int] = set()
        for keys, space in self._spaces.items():
            self.check(keys, now_us // 1000)
            for what in ("moved", "staged"):
                if left := _hash(space, getattr(keys, what)):
                    raise Violation(f"{what} of shard {keys.shard} has {left} at rest")
            for id in _scores(space, keys.dead):
                push = self._push_of(_hash(space, keys.task)[id])
                assert push is not None
                dead.add(push.number)
            if keys.shard >= span and _hash(space, keys.task):
                raise Violation(f"shard {keys.shard} is not used any more, and has tasks")
        for push in self.pushes:
            stored = push.outcome in ("pushed", "replaced")
            gone = push.acked_us or push.may_be_gone or push.number in dead
            if stored and not gone:
                raise Violation(f"push {push.number} of {push.id} is lost: answered {push.outcome}, and not here")


def _hash(space: Keyspace, key: str) -> dict[bytes, bytes]:
    value = space.keys.get(key.encode())
    return value if isinstance(value, Hash) else {}


def _scores(space: Keyspace, key: str) -> dict[bytes, float]:
    value = space.keys.get(key.encode())
    return value.scores if isinstance(value, SortedSet) else {}
