"""What goes on in a run, as a value: servers, programs, and faults, all drawn from its seed. A run that shows a fault
is cut down by leaving parts of its plan out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from tests.sim.world.disk import Policy, ServerKind

FaultKind = Literal[
    "cut", "lose", "part", "slow", "hold", "kill node", "lose power", "promote", "split", "lag", "freeze", "kill",
    "full", "deny", "flush", "set clock", "move slot", "exhaust", "meddle",
    "tail", "snapshot", "wipe",
    "deploy", "scale", "crash", "elsewhere",
]  # fmt: skip
"""What happens:

cut: connections end, at any point
lose: requests, or their answers, of a process or a node are lost with their connections, one in four
part: nothing arrives between a process and a node, for a while
slow: all that a node says or hears comes late
hold: a node stands still, and goes on
kill node: it dies, and starts again with all it had
lose power: likewise, without its last second
promote: its replica takes its place
split: likewise, and it goes on for a while all the same
lag: its replica lags behind
freeze: a process stands still
kill: a process dies, and another one of its kind starts
full: a node has no memory left
deny: it refuses a command
flush: it forgets all scripts
set clock: its clock jumps
move slot: a slot goes to another node
exhaust: a process has no file descriptors left
meddle: another program writes a key of ours

Of servers that forget, all processes being alive:
tail: a node, or all of them, lose their power, and some of what was not synced, see ``world/disk.py``
snapshot: they start again from a snapshot of before
wipe: all their keys are gone (FLUSHALL); now and then a dispatcher begins that was told another number of shards

Of fleets of workers, which end by SIGTERM or by SIGKILL:
deploy: each is replaced, one after the other
scale: there are more of them, or fewer
crash: one dies just after each start

elsewhere: the address of the server leads to another engine of the same name, as when DNS is swapped
"""

ProgramKind = Literal["dispatch", "produce", "consume", "work", "operate", "administer", "watch", "declare", "leave"]

NAME = "x"
"""That of the engine."""

DENIED = ("EVALSHA", "SSUBSCRIBE", "SPUBLISH", "INFO", "HGETALL", "TIME", "WAIT")
"""Commands that a user may not run for a while. Those within scripts are refused one by one in ``tests/lua``."""


Forgetting = Literal["tail", "snapshot", "wipe"]
"""The faults of servers that forget."""

FORGETTING: tuple[Forgetting, ...] = get_args(Forgetting)

Chosen = Forgetting | Literal["fleets", "elsewhere"]
CHOSEN: tuple[Chosen, ...] = (*FORGETTING, "fleets", "elsewhere")
"""What a caller may have all runs be about."""


class Fault(msgspec.Struct, frozen=True):
    at_s: float
    kind: FaultKind
    target: int
    """Which node, or which process, counted round."""
    seconds: float
    """How long it lasts; of a clock: by how much it jumps."""
    word: str = ""
    after: str = ""
    """A script, upon whose next run from then on it happens, to its node and its caller; empty: it happens then."""

    def __str__(self) -> str:
        when = f", with the next {self.after}" if self.after else ""
        return " ".join(filter(None, (self.kind, self.word))) + f" at {self.at_s:.3f} s{when}"


class Program(msgspec.Struct, frozen=True):
    kind: ProgramKind
    calls: int
    """How many it makes, of those that make so many."""
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}{self.number}"


class Plan(msgspec.Struct, frozen=True):
    seed: int
    nodes: int
    is_cluster: bool
    replicated: bool
    shards: int
    seconds: float
    programs: tuple[Program, ...]
    faults: tuple[Fault, ...]
    timeout: float = 10.0
    """That of all engines."""
    server: ServerKind = "valkey9"
    clashing: bool = False
    """Processes make the same ids."""
    replay: float | None = None
    """Seconds that engines send again after a failover."""
    pause: float = 0.5
    """Seconds between two calls of a program, at most."""
    sizes: tuple[int, ...] = (1, 2, 3, 5)
    """The numbers of shards that administrators change to."""
    disk: Policy | None = None
    """What reaches the disks of the servers; None: all, at once."""
    keyed: bool = False
    """Some of the tasks have keys."""
    keeps_ends: bool = False
    """The engine keeps the ends of tasks."""

    def having(self, *, programs: Sequence[Program] | None = None, faults: Sequence[Fault] | None = None) -> Plan:
        """The same with other programs, or faults."""
        return msgspec.structs.replace(
            self,
            programs=self.programs if programs is None else tuple(programs),
            faults=self.faults if faults is None else tuple(faults),
        )


def drawn(seed: int) -> Plan:
    """The plan of a seed: most are of anything, the others have much of a few kinds of faults, or of what recovery is
    for. Half of each have tasks with keys.
    """
    return with_keys(_drawn(seed))


def with_keys(plan: Plan) -> Plan:
    """The same, with keys, and with ends, if its seed says so."""
    keyed, keeps_ends = (random.Random(f"{plan.seed}/{what}").random() < 0.5 for what in ("keys", "ends"))
    return msgspec.structs.replace(plan, keyed=keyed, keeps_ends=keeps_ends)


def _drawn(seed: int) -> Plan:
    draw = random.Random(f"{seed}/plan")
    if seed % 9 == 4:
        return forgetting(seed)
    if seed % 36 == 25:
        return elsewhere(seed)
    if seed % 18 == 7:
        return fleets(seed)
    if seed % 18 in (1, 10, 13, 16):
        return recovering(seed)
    if seed % 3 == 2:
        plan = directed(seed, draw.sample(sorted(WEIGHTS), draw.choice((0, 1, 1, 2, 3))), draw.choice(BEHIND))
        return msgspec.structs.replace(plan, replay=10.0 if draw.random() < 0.3 else None)
    is_cluster = draw.random() < 0.6
    replicated = draw.random() < 0.6
    seconds = draw.choice((8.0, 15.0, 25.0))
    kinds: list[ProgramKind] = ["dispatch", "produce", "consume", "operate"]
    for kind, share in MORE.items():
        kinds += [kind] * (draw.random() < share)
    if clashing := seed % 9 == 3 and draw.random() < 0.5:
        kinds = [*(kind for kind in kinds if kind != "administer"), "produce", "produce"]
    programs = tuple(
        Program(kind, draw.choice(CALLS.get(kind, (0,))), number) for number, kind in enumerate(sorted(kinds))
    )
    chosen = draw.sample(sorted(WEIGHTS), draw.choice((0, 1, 2, 3, 4, 6)))
    if clashing:
        chosen = []  # where an answer is lost, what has our id counts as ours
    scripts = draw.choice(BEHIND)
    if not replicated:
        chosen = [kind for kind in chosen if kind not in ("promote", "split", "lag")]
    if not is_cluster:
        chosen = [kind for kind in chosen if kind not in ("promote", "split", "move slot")]
    faults = []
    if chosen:
        for _ in range(draw.choice((1, 2, 5, 10, 20))):
            faults.append(_fault(draw, draw.choice(chosen), seconds, scripts))
    return Plan(
        seed,
        draw.choice((2, 3)) if is_cluster else 1,
        is_cluster,
        replicated,
        draw.choice((1, 2, 3, 4)),
        seconds,
        programs,
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
        timeout=draw.choice((10.0, 10.0, 10.0, 4.0, 1.5)),
        server="redis7" if draw.random() < 0.15 else "valkey9",
        clashing=clashing,
        replay=10.0 if draw.random() < 0.2 else None,
    )


def recovering(seed: int) -> Plan:
    """Many changes of the number of shards, by several at once, and faults behind their steps."""
    draw = random.Random(f"{seed}/recovering")
    kinds, after = draw.choice(RECOVERED)
    plan = directed(seed, kinds, after, seconds=draw.choice((15.0, 15.0, 15.0, 40.0)))
    more: list[tuple[ProgramKind, int]] = [("administer", 60), ("administer", 60), ("leave", 0), ("operate", 30)]
    first = len(plan.programs)
    return msgspec.structs.replace(
        plan,
        programs=(*plan.programs, *(Program(kind, calls, first + at) for at, (kind, calls) in enumerate(more))),
        timeout=draw.choice((30.0, 10.0, 4.0, 1.5)),
        replay=10.0 if draw.random() < 0.2 else None,
        pause=draw.choice((0.5, 0.15)),
        sizes=draw.choice(((1, 2), (1, 2), (1, 2, 3), (1, 2, 3, 5))),
    )


def forgetting(seed: int, kinds: Sequence[Forgetting] = FORGETTING) -> Plan:
    """Servers that forget, while the number of shards changes all the time: one of these kinds of faults, or two,
    at any time or behind a step of a change.
    """
    draw = random.Random(f"{seed}/forgetting")
    kind = draw.choice(sorted(kinds))
    is_cluster = draw.random() < 0.4
    changes = draw.choice((0, 60) if kind == "wipe" else (FEW, 60))  # few come to their ends
    names: list[tuple[ProgramKind, int]] = [
        *(("dispatch", 0), ("dispatch", 0), ("consume", 0), ("consume", 0), ("operate", 15)),
        *(("produce", 60), ("produce", 60), ("administer", changes)),
    ]
    seconds = draw.choice((12.0, 20.0, 30.0))
    disks: tuple[Policy, ...] = ("everysec", "everysec", "everysec", "always")
    faults = [
        Fault(
            (0.1 + 0.9 * draw.random()) * seconds,
            kind,
            draw.randrange(100),
            draw.choice(WEIGHTS_OF_FORGETTING[kind]),
            "all" if draw.random() < 0.5 else "",
            draw.choice(draw.choice(STEPS) if kind in ("tail", "snapshot") else ("",)),
        )
        for _ in range(draw.choice((1, 1, 2)))
    ]
    return Plan(
        seed,
        nodes=2 if is_cluster else 1,
        is_cluster=is_cluster,
        replicated=False,
        shards=draw.choice((1, 2, 4, 5)),
        seconds=seconds,
        programs=tuple(Program(each, calls, number) for number, (each, calls) in enumerate(names)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        timeout=draw.choice((10.0, 4.0)),
        sizes=draw.choice(((1, 2), (1, 4), (2, 5), (1, 2, 3, 5))),
        pause=2.0 if changes == FEW else 0.5,
        disk=draw.choice((*disks, "rdb", "none")) if kind != "tail" else draw.choice((*disks, "rdb")),
        server=draw.choice(("valkey9", "valkey9", "redis8", "redis7")),
    )


def fleets(seed: int) -> Plan:
    """A quiet day of a fleet of workers that come and go; in one of three, other faults now and then."""
    draw = random.Random(f"{seed}/fleets")
    seconds = draw.choice((300.0, 300.0, 900.0, 1800.0))
    is_cluster = draw.random() < 0.3
    kinds = draw.sample(FLEETS, draw.choice((1, 2, 3)))
    faults = [
        Fault(
            draw.random() * seconds,
            draw.choice(kinds),
            draw.randrange(100),
            draw.choice((0.5, 3.0)),
            draw.choice(("SIGTERM", "SIGKILL")),
        )
        for _ in range(int(seconds / draw.choice((20, 60))))
    ]
    if draw.random() < 0.3:
        others = draw.sample(BESIDE_FLEETS, 2)
        faults += [_fault(draw, draw.choice(others), seconds, ()) for _ in range(int(seconds / 200))]
    programs: list[ProgramKind] = ["dispatch", "dispatch", "produce"]
    programs.extend(["work"] * draw.choice((1, 2, 4)))
    programs.extend(["operate"] * (draw.random() < 0.3))
    return Plan(
        seed,
        nodes=2 if is_cluster else 1,
        is_cluster=is_cluster,
        replicated=False,
        shards=draw.choice((1, 2, 4, 8)),
        seconds=seconds,
        programs=tuple(Program(each, int(seconds), number) for number, each in enumerate(programs)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        pause=draw.choice((3.0, 10.0)),
    )


def elsewhere(seed: int) -> Plan:
    """The address of a server leads to another engine, once or twice, and home again in time."""
    draw = random.Random(f"{seed}/elsewhere")
    plan = forgetting(seed, ("snapshot",))
    first = len(plan.programs)
    programs = (*plan.programs, Program("work", 0, first), Program("declare", 60, first + 1))
    faults = [Fault(at_s, "elsewhere", 0, draw.choice((0.1, 3.0, 8.0))) for at_s in (6.0, 17.0)[: draw.randint(1, 2)]]
    return msgspec.structs.replace(
        plan, nodes=1, is_cluster=False, seconds=40.0, programs=programs, faults=tuple(faults), disk=None
    )


def chosen(seed: int, kinds: Sequence[Chosen]) -> Plan:
    """A plan about one of these kinds."""
    kind = kinds[seed % len(kinds)]
    if kind == "fleets":
        return with_keys(fleets(seed))
    return with_keys(elsewhere(seed) if kind == "elsewhere" else forgetting(seed, (kind,)))


def directed(seed: int, kinds: Sequence[FaultKind], after: Sequence[str] = (), *, seconds: float = 15.0) -> Plan:
    """A plan with much of everything, and of these faults alone, with the next of these scripts."""
    draw = random.Random(f"{seed}/directed")
    programs: list[tuple[ProgramKind, int]] = [
        *(("dispatch", 0), ("dispatch", 0), ("consume", 0), ("consume", 0)),
        *(("produce", 40), ("produce", 40), ("operate", 30)),
    ]
    if kinds:
        programs.append(("administer", 10))
    faults = [
        Fault(draw.random() * seconds, kind, draw.randrange(100), draw.choice(WEIGHTS[kind]), "", chosen)
        for kind in kinds
        for chosen in (after or ("",))
        for _ in range(6)
    ]
    return Plan(
        seed,
        nodes=2,
        is_cluster=True,
        replicated=True,
        shards=draw.choice((1, 2, 3)),
        seconds=seconds,
        programs=tuple(Program(kind, calls, number) for number, (kind, calls) in enumerate(programs)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


MORE: dict[ProgramKind, float] = {
    "dispatch": 0.4, "produce": 0.4, "consume": 0.4, "work": 0.3, "operate": 0.3, "administer": 0.5, "watch": 0.15,
    "declare": 0.25, "leave": 0.15,
}  # fmt: skip
"""How often there is another one."""

CALLS: dict[ProgramKind, tuple[int, ...]] = {
    "produce": (5, 15, 40), "operate": (0, 5, 15, 30), "administer": (1, 3, 8), "watch": (5, 10), "declare": (1, 4, 12),
}  # fmt: skip

WEIGHTS: dict[FaultKind, tuple[float, ...]] = {
    "cut": (0.0,),
    "lose": (0.3, 2.0, 6.0),
    "part": (0.5, 3.0, 7.0, 12.0),
    "slow": (0.5, 2.0, 6.0),
    "hold": (0.1, 1.0, 4.0, 7.0, 15.0),
    "kill node": (0.2, 2.0, 8.0),
    "lose power": (0.2, 2.0, 8.0),
    "promote": (0.1, 2.0),
    "split": (0.5, 3.0),
    "lag": (1.0, 5.0, 30.0),
    "freeze": (0.5, 3.0, 8.0, 14.0),
    "kill": (0.1, 1.0, 4.0),
    "full": (0.5, 4.0),
    "deny": (0.5, 4.0),
    "flush": (0.0,),
    "set clock": (-3600.0, -5.0, -1.0, 1.0, 5.0, 3600.0),
    "move slot": (0.01, 0.2),
    "exhaust": (0.5, 4.0, 12.0),
    "meddle": (0.5, 4.0),
}
"""What may happen, and how long it may last."""

WEIGHTS_OF_FORGETTING: dict[FaultKind, tuple[float, ...]] = {
    "tail": (0.01, 0.2, 2.0),
    "snapshot": (0.01, 0.2, 2.0),
    "wipe": (0.0,),
}

FLEETS: tuple[FaultKind, ...] = ("deploy", "scale", "crash")

BESIDE_FLEETS: tuple[FaultKind, ...] = ("cut", "lose", "part", "slow", "hold", "kill node", "freeze", "flush", "kill")
"""Faults after which fleets need a minute at most."""

FEW = 2
"""Changes that come to their ends, where programs take their time."""

STEPS: tuple[tuple[str, ...], ...] = (
    ("",),
    ("put", "put", "take", "clear"),
    ("unmark",),
    ("unmark", "declare", "swept"),
)
"""Scripts behind which servers forget, the last of a change being ``unmark``; empty: at any time."""


BEHIND: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("reserve", "take", "put", "clear"),
    ("declare", "open", "swept", "sweep", "stock"),
    ("push", "push_unique", "cancel", "reschedule", "requeue", "remember", "forget"),
    ("claim", "settle", "extend", "dispatch"),
)
"""What faults of a run happen behind, so that they meet what goes on seldom; nothing: they happen at any time."""

RECOVERED: tuple[tuple[tuple[FaultKind, ...], tuple[str, ...]], ...] = (
    (("kill",), ("open", "declare")),
    (("kill", "lag"), ("take", "reserve", "put")),
    (("lose power", "kill"), ("declare", "open")),
    (("promote",), ("declare", "open", "swept")),
    (("hold", "part"), ("open", "declare", "heartbeat")),
    (("freeze",), ("open", "declare", "take", "seal")),
    (("move slot", "lose"), ("push", "push_unique")),
    (("lag",), ("take", "put", "seal")),
    (("slow",), ("declare",)),
    (("slow", "hold"), ("declare", "swept")),
    (("promote",), ("clear", "unmark", "declare")),
    (("kill", "slow"), ("open",)),
)
"""Faults, and scripts behind which they happen, after which somebody has to recover from what is left half done."""


def _fault(draw: random.Random, kind: FaultKind, seconds: float, scripts: Sequence[str]) -> Fault:
    word = draw.choice(DENIED) if kind == "deny" else ""
    after = draw.choice(scripts) if scripts and draw.random() < 0.7 else ""
    return Fault(draw.random() * seconds, kind, draw.randrange(100), draw.choice(WEIGHTS[kind]), word, after)
