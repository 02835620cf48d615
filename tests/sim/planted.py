"""Planted faults, in scripts and in code: each must be found, or the simulator sees nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shardq.core.calls.request import Call
from shardq.core.dispatcher.poller import Poller
from shardq.core.operation import Operation, Pause
from shardq.core.replicas import ReplicaBarrier
from shardq.core.scripts import Script, script
from tests.sim.runs.plan import FaultKind


class Unlucky(NamedTuple):
    """The faults under which it shows itself, see ``directed``; those of fleets: see ``fleets``."""

    kinds: tuple[FaultKind, ...] = ()
    after: tuple[str, ...] = ()


class Planted(NamedTuple):
    what: str
    name: str
    """Of the script."""
    ours: str
    theirs: str
    """What stands in its place."""
    when: Unlucky = Unlucky()

    def scripts(self) -> dict[str, Script]:
        """The script with the fault, by its name."""
        text = script(self.name).text
        assert self.ours in text, f"{self.name} has no {self.ours!r} any more; plant another fault for {self.what!r}"
        return {self.name: Script.of(self.name, text.replace(self.ours, self.theirs))}

    def instead(self) -> dict[str, Script]:
        """The same by the text of ours, as a run has it."""
        return {script(name).text: each for name, each in self.scripts().items()}


PLANTED = [
    Planted(
        "tasks are dispatched early",
        "dispatch",
        "string.format('%.0f', now_ms), 'LIMIT'",
        "string.format('%.0f', now_ms + 300), 'LIMIT'",
    ),
    Planted(
        "a lease that ran out stays in leased",
        "dispatch",
        "        redis.call('ZREM', KEYS[4], id)\n        -- on",
        "        -- on",
    ),
    Planted(
        "a claim leaves ids in the ready list", "claim", "if taken_of[list] > 0 then", "if taken_of[list] > 1 then"
    ),
    Planted(
        "any token settles",
        "settle",
        "present == token then return true",
        "present ~= '' then return true",
        Unlucky(("freeze", "slow")),
    ),
    Planted("an ack keeps its record", "settle", "redis.call('HDEL', KEYS[2], unpack(ids, 1, good))", ""),
    Planted("an ack leaves no end", "settle", "if #ends > 0 then keep_ends", "if #ends > 9 then keep_ends"),
    Planted("a push of a ready id counts no ghost", "push_unique", "if state == 'ready' then", "if false then"),
    Planted(
        "a task is taken and stays",
        "take",
        "redis.call('HDEL', KEYS[2], unpack(taken))",
        "",
        Unlucky(("flush",)),
    ),
    Planted(
        "a put needs no mark",
        "put",
        "if open[n] and redis.call('HEXISTS', KEYS[2], id) == 0 then",
        "do",
        Unlucky(("lose", "freeze", "kill"), ("take", "put", "reserve")),
    ),
    Planted(
        "an old topology is as good as any",
        "push_unique",
        "return {'stale', meta[1]}",
        "",
        Unlucky(("slow", "freeze")),
    ),
    Planted("an earlier due time rings no bell", "push", "rouse(first)", ""),
    Planted(
        "what is dispatched wakes nobody",
        "dispatch",
        "if waiting[topic] and draw(topic, waiting[topic], arrived[topic], ARGV[5]) then",
        "if false then",
    ),
    Planted(
        "names of processes that are gone use up wake-ups",
        "dispatch",
        "    if heard > 0 then most, wakings, woken = most - 1, wakings - 1, true end",
        "    wakings, woken = wakings - 1, true\n    if heard > 0 then most = most - 1 end",
        Unlucky(("deploy",)),
    ),
]


class PlantedCode(NamedTuple):
    what: str
    where: Any
    name: str
    instead: Callable[..., Any]
    when: Unlucky = Unlucky()


def _waits_for_nothing(self: ReplicaBarrier, ends: Any) -> Operation[set[int]]:
    for keys in ends:
        self._histories.setdefault(keys.shard, "")
    yield Pause(0)
    return set()


PLANTED_CODE = [
    PlantedCode(
        "a request is resent as if nothing had been lost",
        Call,
        "after_loss",
        lambda self: self,
        Unlucky(("lose", "cut")),
    ),
    PlantedCode("a bell wakes no poller", Poller, "rung", lambda self, _: None),
    PlantedCode(
        "a task is moved before replicas have it",
        ReplicaBarrier,
        "behind",
        _waits_for_nothing,
        Unlucky(("promote",), ("put", "take")),
    ),
]
