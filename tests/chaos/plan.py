"""What goes on in a round, as a value: servers, programs and faults, all drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

GroundKind = Literal["aof", "sentinel", "cluster"]

GROUND_KINDS: tuple[GroundKind, ...] = ("aof", "sentinel", "cluster")

ProgramKind = Literal[
    "dispatch", "flow", "drain", "produce", "consume", "work", "operate", "administer", "watch", "spool", "outbox",
    "relay", "send", "tick", "quiet",
]  # fmt: skip
"""``flow`` and ``drain`` push and handle the bulk of the tasks. ``spool`` pushes with a spool, ``outbox`` into a
database, whose rows ``relay`` moves; ``send`` pushes what is forwarded, ``tick`` has a schedule, ``quiet`` has a worker
of a topic in which there is little to do. The rest are those of ``tests.judge.workload``, and ``dispatch`` only
dispatches."""

FaultKind = Literal[
    "kill program", "end program", "freeze program", "cut program", "set clock of program", "fill disk of spool",
    "kill server", "freeze server", "cut", "cut in a reply", "part", "slow", "fill disk", "fill memory",
    "flush scripts", "make read-only", "demand replicas", "set clock",
    "promote", "take over", "fail over", "freeze over", "split", "split off", "kill replica", "freeze replica",
    "hold replica", "kill sentinel", "freeze sentinel", "move slot", "migrate slot", "kill sink", "freeze sink",
    "deploy", "scale", "crash loop", "lead elsewhere", "lose tail", "restore older", "flush",
]  # fmt: skip

Needs = Literal["", "faketime", "prlimit"]
"""What a machine must have."""


class Kind(NamedTuple):
    what: str
    seconds: tuple[float, ...]
    """How long it may last; of a clock: how far it is off."""
    weight: int = 2
    grounds: tuple[GroundKind, ...] = GROUND_KINDS
    needs: Needs = ""


WITH_REPLICAS: tuple[GroundKind, ...] = ("sentinel", "cluster")

KINDS: dict[FaultKind, Kind] = {
    "kill program": Kind("SIGKILL, and another one of its kind starts", (0.1, 1.0, 4.0), 5),
    "end program": Kind("SIGTERM, as in a deployment, and another one starts", (0.1,), 2),
    "freeze program": Kind("SIGSTOP, SIGCONT", (0.3, 2.0, 6.0, 9.0), 3),
    "cut program": Kind("all its connections are reset", (0.0,), 3),
    "set clock of program": Kind("it is started again with a clock that is off", (-3600.0, 3600.0), 1),
    "fill disk of spool": Kind("no server is reached, and a spool can't grow", (9.0, 12.0), 1, needs="prlimit"),
    "kill server": Kind("SIGKILL of a master, which starts again with its file", (0.0, 0.0, 0.2, 2.0), 3),
    "freeze server": Kind("SIGSTOP, SIGCONT of a master, for less than a failover takes", (0.1, 0.3, 0.5), 3),
    "cut": Kind("all connections to a server are reset", (0.0,), 4),
    "cut in a reply": Kind("a connection ends in the middle of an answer", (0.0,), 4),
    "part": Kind("nothing passes between a server and all programs", (0.5, 3.0, 6.0, 10.0), 3),
    "slow": Kind("answers come later", (1.0, 3.0, 6.0), 3),
    "fill disk": Kind("the files of a server can't grow", (1.0, 4.0), 2, needs="prlimit"),
    "fill memory": Kind("maxmemory", (0.5, 3.0), 2),
    "flush scripts": Kind("SCRIPT FLUSH", (0.0,), 2),
    "make read-only": Kind("it becomes the replica of a server that is not there", (0.5, 3.0), 2, ("aof",)),
    "demand replicas": Kind("min-replicas-to-write is more than there are", (0.5, 3.0), 1, WITH_REPLICAS),
    "set clock": Kind("a server's clock jumps", (-3600.0, -5.0, 5.0, 3600.0, 0.0), 4, needs="faketime"),
    "promote": Kind("a promotion is asked for", (0.0,), 2, WITH_REPLICAS),
    "take over": Kind("a replica is made master by force, and the master goes on", (0.0,), 2, ("cluster",)),
    "fail over": Kind("SIGKILL of a master until its replica stands in", (0.0, 1.0), 2, WITH_REPLICAS),
    "freeze over": Kind("SIGSTOP of a master until its replica stands in, SIGCONT", (0.0, 1.0), 2, WITH_REPLICAS),
    "split": Kind("a master is cut off from all servers, and programs reach both", (0.0, 1.0), 2, WITH_REPLICAS),
    "split off": Kind("a master and one sentinel are cut off, and programs reach all", (2.0, 9.0), 2, ("sentinel",)),
    "kill replica": Kind("SIGKILL of a replica, which starts again", (0.2, 3.0), 2, WITH_REPLICAS),
    "freeze replica": Kind("SIGSTOP, SIGCONT of a replica", (0.5, 1.0), 1, WITH_REPLICAS),
    "hold replica": Kind("a replica gets nothing of its master", (0.5, 3.0), 2, WITH_REPLICAS),
    "kill sentinel": Kind("SIGKILL of a sentinel, which starts again", (0.2, 3.0), 1, ("sentinel",)),
    "freeze sentinel": Kind("SIGSTOP, SIGCONT of a sentinel", (1.0, 4.0), 1, ("sentinel",)),
    "move slot": Kind("the slot of a shard goes to another master, key by key", (0.0,), 2, ("cluster",)),
    "migrate slot": Kind("likewise, as Valkey 9 does it by itself", (0.0,), 2, ("cluster",)),
    "kill sink": Kind("SIGKILL of what tasks are forwarded to, which starts again", (0.2, 3.0), 2),
    "freeze sink": Kind("SIGSTOP, SIGCONT of it", (0.5, 4.0), 1),
    "deploy": Kind("SIGTERM of all workers and consumers, one after the other, and others start", (0.0, 0.5), 1),
    "scale": Kind("three more workers start, and end by SIGTERM after a while", (1.0, 6.0), 1),
    "crash loop": Kind("SIGKILL of a worker again and again, a moment after its start", (0.2, 1.0), 1),
    "lead elsewhere": Kind("the address leads to a server with another engine of this name", (1.0, 4.0), 1, ("aof",)),
    "lose tail": Kind("SIGKILL of a master, which loses its last writes", (0.01, 0.1, 0.5, 1.0, 2.0), 4),
    "restore older": Kind("a master, or all of them, go back to a snapshot of before", (1.0, 3.0, 10.0), 2),
    "flush": Kind("FLUSHALL of a master, or of all", (0.0,), 1),
}  # fmt: skip
"""What may happen. Programs and servers have what each of these needs, or it is left out, and told."""


FORGETTING: frozenset[FaultKind] = frozenset(("lose tail", "restore older", "flush"))
"""Servers forget what was acknowledged: only in rounds whose servers sync each second, and one kind a round. What one
fault owes, another one may have taken: after FLUSHALL nothing of before is owed.
"""

HELD_BACK: frozenset[FaultKind] = frozenset(("kill server", "set clock"))
"""Left out of such rounds: a killed server may lose what waits for the disk, and nobody knows how much."""


class Fault(msgspec.Struct, frozen=True):
    at_s: float
    kind: FaultKind
    target: int
    """Which program or server, counted round."""
    seconds: float


class Program(msgspec.Struct, frozen=True):
    kind: ProgramKind
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}{self.number}"


class Plan(msgspec.Struct, frozen=True):
    seed: int
    ground: GroundKind
    seconds: float
    shards: int
    clocks: bool
    """True where clocks of servers jump: then nothing is said of what is early."""
    forgets: bool
    """True where servers forget what was acknowledged."""
    durability: str
    """How some pushes are made durable."""
    per_s: float
    """Tasks that each ``flow`` pushes a second."""
    programs: tuple[Program, ...]
    faults: tuple[Fault, ...]
    pause: float
    """Seconds between two calls of a program, at most; those that give orders have four times as many, up to 0.4."""


USUAL: tuple[ProgramKind, ...] = (
    "dispatch", "dispatch", "flow", "drain", "drain", "produce", "consume", "work", "operate", "administer", "watch",
    "spool", "outbox", "relay", "send", "tick", "quiet", "quiet",
)  # fmt: skip

QUIET: tuple[ProgramKind, ...] = ("dispatch", "dispatch", "flow", "drain", "produce", "consume", "work", "operate")
"""Those of a short round."""


def drawn(
    seed: int,
    ground: GroundKind,
    *,
    seconds: float = 60.0,
    every_s: float = 1.5,
    per_s: float = 4000.0,
    kinds: Sequence[ProgramKind] = USUAL,
    only: Sequence[FaultKind] = (),
    without: Sequence[FaultKind] = (),
    shards: int = 0,
    pause: float = 0.1,
) -> Plan:
    """The plan of a seed. ``every_s``: the mean time between two faults; ``only``: the kinds of faults, if not all."""
    draw = random.Random(f"{seed}/{ground}/plan")
    clocks = draw.random() < 0.15 if not only else "set clock" in only
    forgets = not clocks and draw.random() < 0.3 if not only else not FORGETTING.isdisjoint(only)
    chosen = [kind for kind in only or KINDS if ground in KINDS[kind].grounds and kind not in without]
    if not clocks and not only:
        chosen = [kind for kind in chosen if kind != "set clock"]
    forgetting = [kind for kind in chosen if kind in FORGETTING]
    if forgets and forgetting:
        chosen = [kind for kind in chosen if kind not in HELD_BACK]
        forgetting.remove(draw.choice(forgetting))
    chosen = [kind for kind in chosen if kind not in forgetting]
    numbers: dict[ProgramKind, int] = {}
    programs = []
    for kind in kinds:
        if clocks and kind == "tick":
            continue  # a schedule goes by the clock of its server, and an hour has thousands of its occurrences
        if forgets and kind in ("tick", "send"):
            continue  # schedules and routes are forgotten, too, and nobody declares them anew
        numbers[kind] = numbers.get(kind, 0) + 1
        programs.append(Program(kind, numbers[kind]))
    faults, at_s = [], 1.0
    weights = [KINDS[kind].weight for kind in chosen]
    while chosen and (at_s := at_s + draw.expovariate(1 / every_s)) < seconds:
        (kind_,) = draw.choices(chosen, weights)
        faults.append(Fault(round(at_s, 3), kind_, draw.randrange(1000), draw.choice(KINDS[kind_].seconds)))
    durability = "replicated" if ground != "aof" else "fsynced" if forgets else draw.choice(("", "", "fsynced"))
    has_clock = any(fault.kind == "set clock" for fault in faults)
    return Plan(
        seed,
        ground,
        seconds,
        shards or draw.choice((2, 4, 6)),
        has_clock,
        forgets,
        durability,
        per_s,
        tuple(programs),
        tuple(faults),
        pause,
    )
