"""``python -m tests.chaos soak``: the programs of a round for hours, with few faults or none; what is sampled meanwhile
must be flat.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import redis

from bench.arguments import add_json, command_parser
from bench.chaos import Flat, Soak, write
from shardq import Engine, ShardqError
from tests.chaos.closing import Closing
from tests.chaos.flow import TOPIC as FLOW
from tests.chaos.grounds import GROUNDS
from tests.chaos.grounds.ground import NAME
from tests.chaos.nemesis.nemesis import Nemesis
from tests.chaos.nemesis.ways import WAYS
from tests.chaos.plan import GROUND_KINDS, FaultKind, Plan, Program, ProgramKind, drawn
from tests.chaos.processes import Processes
from tests.chaos.program import BOX, TICK, Spec
from tests.chaos.proxy import Proxies
from tests.chaos.record import machine
from tests.chaos.rounds import CLOSING, engine_of, prepare
from tests.chaos.sinks import Sinks
from tests.chaos.soaking.flat import BOUNDS, judged
from tests.chaos.soaking.probe import TOPIC as PROBE
from tests.chaos.soaking.probe import Probe
from tests.chaos.soaking.samples import Sample, Samples, of_processes, of_server
from tests.judge.verdict import Facts
from tests.judge.workload import TOPICS

PROGRAMS: tuple[ProgramKind, ...] = (
    "dispatch", "dispatch", "flow", "drain", "produce", "consume", "consume", "consume", "work", "operate", "watch",
    "spool", "outbox", "relay", "send", "tick",
)  # fmt: skip
"""Those of a round, but for the changes of shards and settings: the load is steady."""

FAULTS: tuple[FaultKind, ...] = ("cut program", "cut", "flush scripts")
"""Few, and none that ends a process: one that starts has another size."""

SAMPLE_S = 20.0
"""Seconds between two samples."""

WARM_UP_S = 900.0
"""Ids of what came from files and databases are remembered for ten minutes; Python has its size after a while."""

WARM_UP_SHARE = 0.3
"""Of a short run."""

TOLD_S = 60.0
"""The file has a point of each series in this time; the verdict is of all samples."""

SHARDS = 4

PAUSES: Mapping[str, float] = {"produce": 2.0, "spool": 2.0, "operate": 0.4}
"""Seconds between two calls of a program, at most, so that all that is pushed is handled; of the rest a tenth."""


class Soaking:
    def __init__(self, plan: Plan, folder: Path, file: Path | None) -> None:
        self._plan = plan
        self._folder = folder
        self._file = file
        self._samples = Samples()
        self.record = Soak(
            machine(plan.ground), plan.ground, 0.0, SAMPLE_S, min(WARM_UP_S, WARM_UP_SHARE * plan.seconds), plan.per_s,
            dict(BOUNDS),
        )  # fmt: skip

    def carry_out(self) -> None:
        plan = self._plan
        with ExitStack() as stack:
            self._proxies = stack.enter_context(Proxies())
            self._ground = stack.enter_context(GROUNDS[plan.ground](self._proxies, self._folder))
            self._sinks = stack.enter_context(Sinks(watched=False))
            engine = partial(engine_of, self._ground, plan.shards)
            prepare(engine, self._folder, plan.programs, self._sinks)
            self._processes = Processes(self._spec)
            stack.callback(self._processes.close)
            for program in plan.programs:
                self._processes.start(program)
            nemesis = Nemesis(plan, self._ground, self._processes, self._sinks, Facts(), WAYS)
            with engine() as mine, Probe(mine) as probe:
                self._go_on(mine, probe, nemesis)
                nemesis.heal()
                self._processes.finish_all()
            self.record.wrong += [*self._processes.wrong, *nemesis.failed]
            spec = self._spec(Program("operate", 0), 1, CLOSING)
            closing = Closing(spec, engine, topics=[PROBE])
            closing.run()
            self.record.wrong += closing.wrong
        self.record.wrong += [path.read_text() for path in self._folder.glob("*.trouble")]
        self._tell()

    def _spec(self, program: Program, life: int, index: int) -> Spec:
        return Spec(
            kind=program.kind, number=program.number, life=life, index=index, seed=self._plan.seed,
            url=self._ground.url, name=NAME, shards=self._plan.shards, folder=str(self._folder),
            per_s=self._plan.per_s, pause=PAUSES.get(program.kind, 0.1), writes=False,
        )  # fmt: skip

    def _go_on(self, engine: Engine, probe: Probe, nemesis: Nemesis) -> None:
        began_s = time.monotonic()
        nemesis.begin()
        while (at_s := time.monotonic() - began_s) < self._plan.seconds:
            self._samples.add(at_s, [*self._taken_now(), *probe.taken()])
            self.record.seconds = round(at_s, 1)
            with suppress(ShardqError):
                self.record.tasks = engine.stats().dispatched
            self._tell()
            self._clear(engine)
            now_s = time.monotonic() - began_s
            time.sleep(max(0.0, at_s + SAMPLE_S - now_s))

    def _taken_now(self) -> Iterator[Sample]:
        pids = {name: process.popen.pid for name, process in self._processes.current.items()}
        pids |= {f"server {number}": each.pid for number, each in enumerate(self._ground.servers, 1)}
        pids |= {f"sentinel {number}": each.pid for number, each in enumerate(self._ground.sentinels, 1)}
        pids |= {"proxies": self._proxies.pid}
        yield from of_processes(pids)
        counts: Counter[str] = Counter()
        entries: Counter[str] = Counter()
        masters = self._ground.masters()
        for number, server in enumerate(self._ground.servers, 1):
            if server in masters:
                with suppress(redis.RedisError):
                    yield from of_server(f"server {number}", server, counts, entries)
        for kind, count in counts.items():
            yield "keys", kind, float(count)
            yield "entries", kind, float(entries[kind])

    def _clear(self, engine: Engine) -> None:
        """Removes what others than the engine would: dead tasks, and what has arrived."""
        with suppress(ShardqError, redis.RedisError):
            for topic in (*TOPICS, FLOW, BOX, TICK, PROBE):
                engine.cancel_all(topic, state="dead")
            self._sinks.clear(self._ground)

    def _tell(self) -> None:
        self.record.flat = judged(self._samples.series, self.record.warm_up_s)
        self.record.series = [each.thinned(TOLD_S) for each in self._samples.series]
        if self._file is not None:
            write(self.record, self._file)


def main(arguments: Sequence[str]) -> int:
    about = "The programs of a round under a steady load. It exits with 1 if anything that was sampled grows."
    parser = command_parser("tests.chaos soak", about, f"bounds: {_bounds()}")
    parser.add_argument("--hours", type=float, default=2.0, help="default: %(default)g")
    parser.add_argument("--on", choices=GROUND_KINDS, default="aof", help="the servers (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1000.0, help="bulk tasks pushed a second (default: %(default)g)")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two light faults; default: no faults")
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser, "a point a minute and the verdict, written after each sample")
    options = parser.parse_args(arguments)
    plan = drawn(
        options.seed, options.on, seconds=options.hours * 3600, every_s=options.every or 1e9, per_s=options.rate,
        kinds=PROGRAMS, only=FAULTS, shards=SHARDS,
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="shardq-soak-"))
    soaking = Soaking(plan, folder, options.json)
    try:
        soaking.carry_out()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return told(soaking.record)


def _bounds() -> str:
    return "; ".join(
        f"{kind} by {bound.relative:.0%} or {bound.absolute:g} {bound.unit}" for kind, bound in BOUNDS.items()
    )


def told(record: Soak) -> int:
    """Prints the verdict, and returns the exit code."""
    print(f"{record.seconds / 60:.0f} minutes on {record.ground}, {record.tasks:,} tasks dispatched")
    print(f"growth after {record.warm_up_s:.0f} s, of each kind the worst:")
    for kind in BOUNDS:
        if some := [each for each in record.flat if each.kind == kind]:
            print(
                f"  {kind:14} {_told(max(some, key=lambda each: each.growth / (each.bound or 1)))} ({len(some)} series)"
            )
    growing = [each for each in record.flat if not each.is_flat]
    for each in growing:
        print(f"grows: {each.kind} of {_told(each)}")
    for text in record.wrong:
        print(f"wrong: {text[:2000]}")
    if not record.flat:
        print("there are too few samples after the warm-up")
    return 1 if growing or record.wrong or not record.flat else 0


def _told(each: Flat) -> str:
    return f"{each.name}: median {each.median:,.4g}, grew by {each.growth:,.4g}, may by {each.bound:,.4g}"
