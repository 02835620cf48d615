"""What holds in every shard after every script, whoever ran it: each record has exactly one place, and whatever is in a
place has a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from shardq.core.layout.keys import ShardKeys
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.values import Hash, List, SortedSet

FAR = 4e15
OVER_MS = 1000
"""A hold that is over for so long is gone."""

LATE_MS = 50
"""So long a time of a rate may be ready, and not taken."""


def _topic(id: bytes) -> bytes:
    return id.partition(b"/")[0] if b"/" in id else b""


def _lane(id: bytes) -> bytes | None:
    """The lane of an id with a key."""
    return id[: id.rindex(b"/") + 1] if id.count(b"/") == 2 else None


class Violation(Exception):
    """Something that must never happen."""


@dataclass(frozen=True)
class Shard:
    """One shard, as it is stored."""

    keys: ShardKeys
    space: Keyspace

    def fields(self, key: str) -> Mapping[bytes, bytes]:
        value = self.space.keys.get(key.encode())
        return value if isinstance(value, Hash) else {}

    def scores(self, key: str) -> Mapping[bytes, float]:
        value = self.space.keys.get(key.encode())
        return value.scores if isinstance(value, SortedSet) else {}

    def entries(self, topic: str) -> list[bytes]:
        value = self.space.keys.get(self.keys.ready(topic).encode())
        return value if isinstance(value, List) else []

    @property
    def name(self) -> str:
        return f"shard {self.keys.shard}"

    @property
    def revoked(self) -> Set[bytes]:
        """Ids whose lease a replacing push has revoked, and whose place is kept."""
        return {each for each in self.scores(self.keys.alarms) if each.count(b"/") == 2 and not each.endswith(b"/")}

    def check(self, topics: Iterable[str], *, is_rung: bool, now_ms: float) -> None:
        """Raises Violation. ``is_rung``: the poller was told to look, and has not looked yet."""
        keys = self.keys
        task, lease, why, ghost = (self.fields(key) for key in (keys.task, keys.lease, keys.why, keys.ghost))
        due, leased, dead = (self.scores(key) for key in (keys.due, keys.leased, keys.dead))
        ready: Counter[bytes] = Counter()
        for topic in topics:
            for id in (entries := self.entries(topic)):
                if _topic(id) != topic.encode():
                    raise Violation(f"{id!r} stands in the ready list of topic {topic!r} of {self.name}")
            ready.update(entries)
        for id in ready.keys() | ghost.keys():
            ready[id] -= int(ghost.get(id, 0))
        for id in task.keys() | due.keys() | leased.keys() | dead.keys() | ready.keys():
            places = (id in due) + (id in leased) + (id in dead) + ready[id]
            if places != (id in task):
                raise Violation(
                    f"{id.decode()} in {self.name}: record {id in task}, due {id in due}, leased {id in leased}, "
                    f"dead {id in dead}, entries that are no ghosts {ready[id]}"
                )
        # a revoked lease that has a place keeps its mark, also when its new task is gone
        if left := {id for id in lease.keys() - task.keys() if b":~" not in lease[id] or id not in self.revoked}:
            raise Violation(f"{self.name} has lease entries without a task: {left}")
        held = {id for id, entry in lease.items() if (token := entry.split(b":", 3)[3]) and token[:1] != b"~"}
        if held != leased.keys():
            raise Violation(f"{self.name} has tokens of {held}, and leases of {set(leased)}")
        if why.keys() != dead.keys():
            raise Violation(f"{self.name} has reasons of {set(why)}, and deaths of {set(dead)}")
        if any(int(count) <= 0 for count in ghost.values()):
            raise Violation(f"{self.name} counts ghosts below one: {dict(ghost)}")
        self._check_ghosts(ghost)
        if not is_rung:
            self._check_sleep(due, now_ms)
        if keys.keyed:
            self._check_lanes(ready)

    def _check_ghosts(self, ghost: Mapping[bytes, bytes]) -> None:
        """The ghosts of a topic are those of its ids."""
        of_ids: Counter[bytes] = Counter()
        for id, count in ghost.items():
            of_ids[_topic(id)] += int(count)
        meta = self.fields(self.keys.meta)
        told = {field[7:]: int(count) for field, count in meta.items() if field.startswith(b"ghosts/")}
        if told != of_ids:
            raise Violation(f"{self.name} counts {told} ghosts by topic, and {dict(of_ids)} by id")

    def _check_sleep(self, due: Mapping[bytes, float], now_ms: float) -> None:
        """A poller that was not rung sleeps no longer than until the next due task."""
        wake_at = self.fields(self.keys.meta).get(b"wake_at")
        due = {id: at for id, at in due.items() if at < FAR} | dict(self.scores(self.keys.alarms))
        if due and wake_at is not None and (not wake_at or float(wake_at) > max(min(due.values()), now_ms + 1)):
            raise Violation(
                f"{self.name} sleeps until {wake_at!r}, and has a task due at {min(due.values()):.0f}, at {now_ms:.0f}"
            )

    def _check_lanes(self, ready: Counter[bytes]) -> None:
        """What of a lane is out has a place, no lane has more than its number, and each that can give, or is on
        hold, has an alarm."""
        keys = self.keys
        due, leased, alarms, rests = (self.scores(key) for key in (keys.due, keys.leased, keys.alarms, keys.rests))
        placed, waiting, holds = self.scores(keys.placed), self.scores(keys.keys), self.fields(keys.holds)
        revoked = self.revoked
        out = {id for id, count in ready.items() if count and _lane(id)} | {id for id in leased if _lane(id)}
        marked = {each[1:] for each in placed if each.startswith(b"!")}
        if marked - out | marked & leased.keys():
            raise Violation(f"{self.name} has marks of {marked}, and out are {out}, leased {set(leased)}")
        placed = {id: score for id, score in placed.items() if not id.startswith(b"!")}
        if set(placed) != out | revoked or out & revoked:
            raise Violation(f"{self.name} has places of {set(placed)}, and out are {out}, revoked {revoked}")
        numbered = {each for each in rests if not each.endswith(b"/")}
        if numbered - placed.keys():
            raise Violation(f"{self.name} has numbers of {numbered}, and places of {set(placed)}")
        entries: dict[bytes, list[tuple[bytes, bytes, float]]] = {}
        fronts: dict[bytes, list[bytes]] = {}
        for entry in waiting:
            stands, _, unique = entry.rpartition(b"/")
            if stands[-15:-14] == b"-":
                fronts.setdefault(stands[:-15] + unique, []).append(entry)
        for id, score in due.items():
            lane = _lane(id)
            if (lane is not None) != (score >= FAR):
                raise Violation(f"{id!r} is due at {score:.0f} in {self.name}")
            if lane is not None:
                at = score - FAR
                unique, there = id[len(lane) - 1 :], fronts.get(id, [])
                found = [lane + b"%015.0f" % at + unique] if lane + b"%015.0f" % at + unique in waiting else []
                if len(found) + len(there) != 1:
                    raise Violation(f"{id!r} waits at {found} and {there} in {self.name}")
                entries.setdefault(lane, []).append(((found + there)[0], id, at))
        if len(waiting) != sum(map(len, entries.values())):
            raise Violation(f"{self.name} has {set(waiting)} in its lanes, and waiting are {entries}")
        meta = self.fields(keys.meta)
        gates = {lane: gate.partition(b":") for lane, gate in self.fields(keys.gates).items()}
        moving = {
            lane: said
            for lane, (said, _, since) in gates.items()
            if b"," in meta.get(b"numbers", b"") and since == meta.get(b"since") and said in (b"shut", b"closed")
        }
        # said in a change that a failover took back: no alarm until the change that goes on comes to the lane, or ends
        stranded = {
            lane
            for lane, (said, _, since) in gates.items()
            if b"," in meta.get(b"numbers", b"") and since != meta.get(b"since") and said in (b"shut", b"closed")
        }
        for lane, hold in holds.items():
            if lane not in moving.keys() | stranded and alarms.get(lane, float("inf")) > float(hold.partition(b":")[0]):
                raise Violation(
                    f"{lane!r} in {self.name} is on hold until {hold!r}, and its alarm is {alarms.get(lane)}"
                )
        for lane in entries.keys() | {_lane(id) for id in placed}:
            assert lane is not None
            window = meta.get(b"keys/" + lane.split(b"/")[0], b"1:0:front").split(b":")
            most, interval = int(window[0]), float(window[1])
            taken = sum(id.startswith(lane) for id in placed)
            # where the limit was lowered, what is over it may still be out from this lane on
            lowered = meta.get(b"lowered/" + lane.split(b"/")[0])
            if taken > most and (lowered is None or lane < lowered):
                raise Violation(f"{taken} of {lane!r} are out in {self.name}, of {most}")
            untaken = sum(id.startswith(lane) for id in marked)
            most_ready = max(1, LATE_MS // interval) if interval else 1000
            if untaken > most_ready and lowered is None:
                raise Violation(f"{untaken} of {lane!r} are ready in {self.name}, and not taken")
            first = min((entry for entry in entries.get(lane, []) if entry[1] not in placed), default=None)
            if lane in moving:
                if lane in alarms:
                    raise Violation(f"{lane!r} is {moving[lane].decode()} in {self.name}, and has an alarm")
            elif lane in stranded or self._is_looked_over(lane):
                continue
            elif first and taken < most and (not interval or untaken < most_ready):
                held = float(holds.get(lane, b"0").partition(b":")[0])
                turn = rests.get(lane, 0.0) + (untaken + 1) * interval if interval else 0.0
                at = max(first[2], turn, held)
                if alarms.get(lane, float("inf")) > at + 0.01:
                    raise Violation(f"{lane!r} in {self.name} can give at {at}, and its alarm is {alarms.get(lane)}")

    def _is_looked_over(self, lane: bytes) -> bool:
        """True for a lane that dispatch will look at, as the window of its topic has changed: it may lack an alarm."""
        topic = _topic(lane)
        cursor = self.fields(self.keys.meta).get(b"cursor/" + topic)
        if (cursor is None) != (topic + b"/" not in self.scores(self.keys.alarms)):
            raise Violation(f"{self.name} has a cursor of {topic!r}, {cursor!r}, and no alarm, or that alone")
        return cursor is not None and lane >= cursor

    def check_at_rest(self, *, is_used: bool, now_ms: float, twice: Set[str] = frozenset()) -> None:
        """What holds when nothing moves any more. ``twice``: the ids that may be left where they were moved from."""
        # A shard that fell out of use keeps its ghosts, and their entries, until it is used again.
        if is_used:
            self._check_empty("moved", "ghost")
            for lane, hold in self.fields(self.keys.holds).items():
                if float(hold.partition(b":")[0]) < now_ms - OVER_MS:
                    raise Violation(f"{lane!r} of {self.name} is on hold until {hold!r} at rest, {now_ms}")
            return
        for key, what in (self.keys.task, "tasks"), (self.keys.moved, "moving tasks"):
            if left := {id.decode() for id in self.fields(key)} - twice:
                raise Violation(f"{self.name} is not used any more, and has {what}: {left}")

    def check_marks(self) -> None:
        """No mark that nobody used is left when nothing moves any more. Unless the process that was about to remove
        them ended there, or its server forgot that it had: then the next change removes them.
        """
        self._check_empty("staged")

    def _check_empty(self, *names: str) -> None:
        for what in names:
            if left := self.fields(getattr(self.keys, what)):
                raise Violation(f"{what} of {self.name} has {dict(left)} at rest")


def check_lanes(shards: Iterable[Shard]) -> None:
    """Nothing of a lane is out in two shards, where one of them may give more of it."""
    out: dict[bytes, str] = {}
    for shard in shards:
        for lane in {_lane(id) for id in shard.scores(shard.keys.placed)}:
            if lane is not None and lane in out:
                raise Violation(f"{lane!r} is out in {out[lane]} and in {shard.name}")
            if lane is not None:
                out[lane] = shard.name


def check_ends(shard: Shard, script: str, words: Sequence[bytes], answer: Sequence[Any], *, keeps: bool) -> None:
    """Where ends are kept, what was just acked or cancelled has one, and no two in one slot; elsewhere nothing has."""
    slots = [ends for slot in shard.keys.ends if (ends := shard.fields(slot))]
    if slots and not keeps:
        raise Violation(f"{shard.name} keeps no ends, and has {slots}")
    ended: dict[bytes, bytes] = {}
    if script == "settle" and keeps:
        count = int(words[3].partition(b":")[0])
        told = {position for position in answer[1:] if isinstance(position, int)}
        ended = {id: b"d" for position, id in enumerate(words[5 : 5 + count], start=1) if position not in told}
    elif script == "cancel" and keeps and answer[1] == b"cancelled":
        ended = {words[3]: b"c"}
    for id, kind in ended.items():
        found = [ends[id] for ends in slots if id in ends]
        latest = max(found, key=lambda end: int(end.partition(b":")[0]), default=b"")
        if latest.split(b":")[1:2] != [kind]:
            raise Violation(f"{id.decode()} has just ended in {shard.name} ({kind.decode()}), and its ends are {found}")


def check_once(shards: Iterable[Shard]) -> None:
    """No task is in two shards."""
    seen: dict[bytes, str] = {}
    for shard in shards:
        for id in shard.fields(shard.keys.task):
            if id in seen:
                raise Violation(f"{id.decode()} is in {seen[id]} and in {shard.name}")
            seen[id] = shard.name
