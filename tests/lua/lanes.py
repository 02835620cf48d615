"""The lanes of one topic in plain Python: what each call makes of them, by the words of the contract (*Keys*). It looks
at every task each time, where scripts look at as little as they can.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from shardq.core.calls.lane_control import FAR_MS
from tests.lua.shard import State, T

FAR = int(FAR_MS)
TOPIC = "w"
LATE_MS = 50


def lane_of(id: str) -> str:
    return id[: id.rindex("/") + 1]


@dataclass
class Lanes:
    most: int
    interval: float
    waits: bool
    """True if what failed goes to the front, and its lane waits for it."""
    gates: dict[str, str] = field(default_factory=dict)
    """Lanes that are closed or shut in the change that goes on."""
    now: int = T
    clock: int = T
    ahead: int = 0
    wake_at: float | None = None
    """None: the poller sleeps until it is rung."""
    waiting: dict[str, tuple[float, int | None]] = field(default_factory=dict)
    """Id → its due time, and its number at the front."""
    ready: list[str] = field(default_factory=list)
    """The ready list, the ghosts in it too."""
    ghosts: Counter[str] = field(default_factory=Counter)
    leased: dict[str, float] = field(default_factory=dict)
    lease: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """Id → failures, lapses and token of its entry."""
    dead: set[str] = field(default_factory=set)
    expires: dict[str, float] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    untaken: set[str] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)
    left: int = 0
    turns: dict[str, float] = field(default_factory=dict)
    holds: dict[str, tuple[int, int]] = field(default_factory=dict)
    alarms: dict[str, float] = field(default_factory=dict)
    """Of lanes; and of the ids whose leases were revoked."""
    is_route: bool = False
    """True in a forwarding. It is not given `due`, and lets dispatch look when what is at the front is due."""
    changed: dict[str, list[Any]] = field(default_factory=dict)
    """Lane → what this call has made of it: an instant, if that came in; "freed", if a place became free; else ""."""

    # ---- what a lane has

    @property
    def steady(self) -> int:
        return max(self.now + self.ahead, self.clock)

    @property
    def most_ready(self) -> int:
        return max(1, math.floor(LATE_MS / self.interval))

    def entry(self, id: str) -> str:
        (due, number), lane = self.waiting[id], lane_of(id)
        stands = f"{due:015.0f}" if number is None else f"-{number:014}"
        return f"{lane}{stands}/{id.removeprefix(lane)}"

    def due(self, id: str) -> float:
        at, number = self.waiting[id]
        return 0 if self.is_route and number is not None else at

    def of(self, lane: str) -> list[str]:
        """What waits, in its order."""
        return sorted((id for id in self.waiting if lane_of(id) == lane), key=self.entry)

    def next_of(self, lane: str) -> list[str]:
        """The same, without what has the place of a revoked lease."""
        return [id for id in self.of(lane) if id not in self.placed]

    def out(self, lane: str) -> int:
        return sum(lane_of(id) == lane for id in self.placed)

    def untaken_of(self, lane: str) -> int:
        return sum(lane_of(id) == lane for id in self.untaken)

    def held(self, lane: str) -> float:
        ends, asked = self.holds.get(lane, (0, 0))
        return min(ends, self.now + asked)

    def turn(self, lane: str) -> float:
        turn = self.turns.get(lane, 0.0)
        ahead = (max(self.most, self.most_ready) - 1) * self.interval
        return self.now - self.interval if turn > self.now + ahead else turn

    def rest(self, lane: str) -> float:
        if not self.interval:
            return self.held(lane)
        untaken = self.untaken_of(lane)
        if untaken >= self.most_ready:
            return math.inf
        return max(self.turn(lane) + (untaken + 1) * self.interval, self.held(lane))

    # ---- what becomes of it

    def note(self, lane: str, what: float | str = "") -> None:
        self.changed.setdefault(lane, []).append(what)

    def enter(self, id: str, at: float, number: int | None = None) -> None:
        self.waiting[id] = at, number
        self.note(lane_of(id), at if number is None else "")

    def back(self, id: str, at: float) -> None:
        self.enter(id, at, self.numbers.get(id, 0))

    def leave(self, id: str) -> None:
        del self.waiting[id]
        self.note(lane_of(id))

    def free(self, id: str) -> None:
        self.placed.discard(id)
        self.untaken.discard(id)
        self.numbers.pop(id, None)
        self.note(lane_of(id), "freed")

    def take_turns(self, ids: Iterable[str]) -> None:
        if not self.interval:
            return
        ids = list(ids)
        for lane, count in Counter(map(lane_of, ids)).items():
            turn = self.turn(lane) + count * self.interval
            if turn < self.now - LATE_MS:
                turn = self.now + (count - 1) * self.interval
            self.turns[lane] = round(turn, 3)
            self.note(lane)
        self.untaken -= set(ids)

    def forget(self, id: str) -> None:
        """Its lease entry, but for the mark of a revoked lease that has its place."""
        if id not in self.alarms:
            self.lease.pop(id, None)

    def revoked_ends(self, id: str) -> None:
        if self.alarms.pop(id, None) is None:
            return
        self.free(id)
        if id not in self.waiting and id not in self.dead:
            self.lease.pop(id, None)

    def exact(self, lane: str) -> float | None:
        if lane in self.gates:
            return None
        if lane in self.holds:
            return self.held(lane)
        rest = self.rest(lane)
        following = self.next_of(lane)
        if rest == math.inf or self.out(lane) >= self.most or not following:
            return None
        return max(self.due(following[0]), rest)

    def forward(self, lane: str, changes: Sequence[Any]) -> float | None:
        """What came in, or became free, can bring an alarm forward alone."""
        if lane in self.gates:
            return None
        if lane in self.holds:
            return self.held(lane)
        rest = self.rest(lane)
        if rest == math.inf:
            return None
        if "freed" in changes:
            waiting = self.of(lane)
            return max(self.due(waiting[0]), rest) if waiting else None
        at = min(changes)
        return max(at, rest) if at > self.now or self.out(lane) < self.most else None

    def ring(self) -> float:
        """Sets the alarms of the lanes that were changed. Returns the earliest."""
        first = math.inf
        for lane, changes in self.changed.items():
            if lane in self.holds and lane not in self.gates and self.held(lane) < self.holds[lane][0]:
                until = int(self.held(lane))
                self.holds[lane] = until, until - self.now
            if set(changes) == {"freed"} or not {"", "freed"}.intersection(changes):
                at = self.forward(lane, changes)
                if at is not None:
                    self.alarms[lane] = min(at, self.alarms.get(lane, math.inf))
            else:
                at = self.exact(lane)
                self.alarms.pop(lane, None)
                if at is not None:
                    self.alarms[lane] = at
            first = min(first, math.inf if at is None else at)
        self.changed.clear()
        return first

    def end(self, others: float = math.inf) -> None:
        """The end of a call: it rings the poller, if that sleeps for longer than to the earliest."""
        at = min(self.ring(), others)
        wake_at = math.inf if self.wake_at is None else self.wake_at
        overdue = self.now > wake_at + LATE_MS
        if at < math.inf and (max(at, self.now) < wake_at or overdue):
            self.wake_at = self.now if overdue else max(at, self.now)

    # ---- calls

    def pushed(self, tasks: Iterable[tuple[str, float]]) -> None:
        for id, at in tasks:
            self.enter(id, at)
        self.end()

    def replaced(self, id: str, at: float) -> None:
        """By a push that replaces what is there, if anything is."""
        token = self.lease.get(id, (0, 0, ""))[2]
        if id in self.leased:
            self.enter(id, at)
            self.alarms[id] = self.leased.pop(id) - self.ahead_now
            self.lease[id] = 0, 0, f"~{token}"
            self.end()
            return
        is_there = id in self.waiting or id in self.dead or id in self.placed
        if id in self.waiting:
            self.leave(id)
            self.enter(id, at)
        else:
            self.enter(id, at)
            if id in self.placed and id not in self.alarms:
                self.ghosts[id] += 1
                self.free(id)
        if is_there and token[:1] != "~":
            self.lease.pop(id, None)
        self.dead.discard(id)
        self.end()

    @property
    def ahead_now(self) -> int:
        return self.steady - self.now

    def dispatched(self, allowed: int) -> None:
        rung = [name for at, name in sorted((at, name) for name, at in self.alarms.items()) if at <= self.now]
        group: list[str] = []
        turns: dict[str, float] = {}
        numbered: list[tuple[str, int | None]] = []
        for name in rung:
            if not name.endswith("/"):
                self.revoked_ends(name)
            elif name in self.holds:
                if self.held(name) <= self.now:
                    del self.holds[name]
                self.note(name)
            else:
                self.gives(name, group, turns, numbered)
        for id in group:
            del self.waiting[id]
            self.placed.add(id)
        if self.interval:
            self.untaken.update(group)
            self.turns |= turns
        for id, number in numbered:
            if number is None:
                self.left += 1
            self.numbers[id] = self.left if number is None else number
        self.ready += group
        self.reap(allowed)
        self.ring()
        lapse = min(self.leased.values(), default=math.inf) - self.ahead_now
        following = min(max(self.now, min(self.alarms.values(), default=math.inf)), lapse)
        self.wake_at = math.ceil(following) if following < math.inf else None
        at, ahead = self.steady, self.ahead_now
        if ahead != self.ahead:
            self.clock, self.ahead = at, ahead
        elif at - self.clock >= 1000:
            self.clock = at

    def gives(
        self, lane: str, group: list[str], turns: dict[str, float], numbered: list[tuple[str, int | None]]
    ) -> None:
        out = self.out(lane)
        room = self.most - out
        if room > 0 and self.interval:
            self.note(lane)
            untaken, turn = self.untaken_of(lane), self.rest(lane)
            if turn < self.now - LATE_MS:
                turn = self.now
                turns[lane] = round(self.now - (untaken + 1) * self.interval, 3)
            since = (self.now - turn) / self.interval
            room = min(room, self.most_ready - untaken, math.floor(since) + 1) if turn <= self.now else 0
        following = self.next_of(lane)
        given = list(takewhile(lambda id: self.waiting[id][0] <= self.now, following[: max(0, room)]))
        for id in given:
            out += 1
            if out > 1 or self.waiting[id][1]:
                numbered.append((id, self.waiting[id][1]))
        if not given:
            turns.pop(lane, None)
        group += given
        if lane not in self.changed:
            self.alarms.pop(lane)
            if len(given) < room and following[len(given) :]:
                self.alarms[lane] = self.waiting[following[len(given)]][0]

    def reap(self, allowed: int) -> None:
        for _, id in sorted((at, id) for id, at in self.leased.items() if at <= self.steady):
            failures, lapses, _ = self.lease[id]
            del self.leased[id]
            self.lease[id] = failures, lapses + 1, ""
            if failures + lapses + 1 >= allowed:
                self.dead.add(id)
                self.free(id)
            elif self.interval:
                self.back(id, self.now)
                self.free(id)
            else:
                self.ready.insert(0, id)

    def taken(self, most: int) -> tuple[list[str], list[str], list[str]]:
        """Takes up to so many off the ready list that are worth something. Returns these, what has expired, and what is
        on hold.
        """
        given: list[str] = []
        expired: list[str] = []
        held: list[str] = []
        while self.ready and len(given) < most:
            id = self.ready.pop(0)
            if self.ghosts[id]:
                self.ghosts[id] -= 1
            elif self.expires[id] <= self.now:
                expired.append(id)
            elif self.held(lane_of(id)) > self.now:
                held.append(id)
            else:
                given.append(id)
        self.ghosts = +self.ghosts
        return given, expired, held

    def claimed(self, most: int, lease_ms: int, token: str) -> list[str]:
        given, expired, held = self.taken(most)
        self.dead.update(expired)
        for lane in dict.fromkeys(map(lane_of, expired)):
            self.note(lane)
            for id in self.of(lane):
                if self.waiting[id][0] > self.now or self.expires[id] > self.now:
                    break
                self.dead.add(id)
                self.leave(id)
        for id in held:
            self.back(id, self.now)
        for id in expired + held:
            self.free(id)
        for id in given:
            self.leased[id] = self.steady + lease_ms
            self.lease[id] = *self.lease.get(id, (0, 0, ""))[:2], token
        self.take_turns(given)
        self.end(self.now + lease_ms if given and lease_ms <= 20_000 else math.inf)
        return given

    def forwarded(self, most: int) -> None:
        """A route does not look at holds."""
        holds, self.holds = self.holds, {}
        sent, expired, _ = self.taken(most)
        self.holds = holds
        self.dead.update(expired)
        for id in expired:
            self.free(id)
        self.take_turns(sent)
        for id in sent:
            self.free(id)
            self.lease.pop(id, None)
        self.is_route = True
        self.end()
        self.is_route = False

    def settled(self, how: Sequence[tuple[str, str, str, int]], allowed: int, *, handing: bool) -> None:
        """``how``: verb, id, token and delay of each, acks first."""
        told = []
        for verb, id, token, delay in how:
            failures, lapses, present = self.lease.get(id, (0, 0, ""))
            if present == f"~{token}":
                told.append(id)
            if present != token:
                continue
            del self.leased[id]
            if verb == "ack":
                del self.lease[id]
                self.free(id)
                continue
            failures += verb in ("retry", "bury")
            lane, at = lane_of(id), self.now + delay
            if verb == "bury" or (verb == "retry" and failures + lapses >= allowed):
                self.dead.add(id)
                if verb == "bury" and delay and at > self.held(lane):
                    self.holds[lane] = at, delay
            else:
                if verb == "hold" or (verb == "back" and not delay) or (verb == "retry" and self.waits):
                    self.back(id, self.now if verb == "hold" else at)
                else:
                    self.enter(id, at)
                if verb == "hold" and at > self.held(lane):
                    self.holds[lane] = at, delay
            self.lease[id] = failures, lapses, ""
            self.free(id)
        for id in told:
            self.revoked_ends(id)
        if handing and self.most == 1 and not self.interval:
            self.hand_over()
        self.end()

    def hand_over(self) -> None:
        for lane, changes in list(self.changed.items()):
            first = self.of(lane)[:1]
            if set(changes) != {"freed"} or lane in self.gates or lane in self.holds or self.out(lane):
                continue
            if first and self.waiting[first[0]][0] <= self.now:
                _, number = self.waiting.pop(first[0])
                self.placed.add(first[0])
                self.ready.append(first[0])
                if number:
                    self.numbers[first[0]] = number
                del self.changed[lane]
            elif not first:
                del self.changed[lane]

    def cancelled(self, id: str) -> None:
        self.go(id)
        self.end()

    def go(self, id: str) -> None:
        if id in self.waiting:
            self.leave(id)
        elif id in self.dead:
            self.dead.discard(id)
        else:
            self.ghosts[id] += 1
            self.free(id)
        self.forget(id)

    def purged(self) -> None:
        for id in self.ready:
            if self.ghosts[id]:
                self.ghosts[id] -= 1
            else:
                self.free(id)
                self.forget(id)
        self.ready.clear()
        self.ghosts.clear()
        for id in [*self.waiting, *self.dead]:
            self.go(id)
        self.end()

    def rescheduled(self, id: str, at: float) -> None:
        if id in self.waiting:
            self.leave(id)
            self.enter(id, at)
        else:
            self.ghosts[id] += 1
            self.enter(id, at)
            self.free(id)
        self.end()

    def requeued(self, id: str, at: float) -> None:
        self.dead.discard(id)
        self.enter(id, at)
        self.forget(id)
        self.end()

    def held_until(self, lane: str, until: int | None) -> None:
        if until is None:
            self.holds.pop(lane, None)
        else:
            self.holds[lane] = until, max(0, until - self.now)
        self.note(lane)
        self.end()

    def looked_at(self) -> None:
        for lane in sorted({lane_of(id) for id in (*self.waiting, *self.placed)}):
            self.note(lane)
        self.turns = {lane: at for lane, at in self.turns.items() if at > self.now - self.interval - LATE_MS}
        self.end()

    # ----

    def state(self) -> State:
        """What of a shard is about lanes, as it is stored. What is empty is left out."""
        state: State = {
            "due": {id: FAR + at for id, (at, _) in self.waiting.items()},
            "keys": {self.entry(id): 0 for id in self.waiting},
            f"ready/{TOPIC}": self.ready,
            "leased": self.leased,
            "lease": {id: f"{failures}:{lapses}::{token}" for id, (failures, lapses, token) in self.lease.items()},
            "dead": self.dead,
            "placed": dict.fromkeys([*self.placed, *(f"!{id}" for id in self.untaken)], 0),
            "alarms": {name: round(at, 3) for name, at in self.alarms.items()},
            "rests": self.turns | {id: -number for id, number in self.numbers.items()},
            "holds": {lane: f"{ends}:{asked}" for lane, (ends, asked) in self.holds.items()},
            "ghost": {id: f"{count}" for id, count in self.ghosts.items() if count},
            "left": f"{self.left}" if self.left else None,
            "wake_at": None if self.wake_at is None else f"{self.wake_at:.0f}",
        }
        return {name: value for name, value in state.items() if value}


def of_lanes(state: State) -> State:
    """The same of a shard's state."""
    named = ("due", "keys", f"ready/{TOPIC}", "leased", "lease", "placed", "rests", "holds", "ghost")
    told: State = {name: state.get(name) for name in named}
    told["alarms"] = {name: round(at, 3) for name, at in state.get("alarms", {}).items()}
    told["dead"] = set(state.get("dead", ()))
    told["left"] = state["meta"].get("left")
    told["wake_at"] = state["meta"].get("wake_at")
    return {name: value for name, value in told.items() if value}
