"""One round: its servers and programs are started, its faults done, everything that is left is handled, and the judge
says what of it must not be.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import redis

from cluster.server import ServerFailed
from shardq import Engine
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.layout.slots import slot_of
from shardq.core.model.record import decode_record
from tests.chaos.account import accounted, percentiles
from tests.chaos.closing import PLANTED_REST_S, REST_S, Closing
from tests.chaos.flow import TOPIC as FLOW
from tests.chaos.forgotten import tell
from tests.chaos.grounds import GROUNDS
from tests.chaos.grounds.ground import KEPT, MOST_SHARDS, NAME, SYNCED, Ground
from tests.chaos.grounds.one import One
from tests.chaos.nemesis.nemesis import Happened, Nemesis
from tests.chaos.nemesis.ways import WAYS
from tests.chaos.plan import Plan, Program
from tests.chaos.processes import Processes
from tests.chaos.program import (
    HOME,
    LEASE_S,
    QUIET,
    SHARDS,
    STOOD_STILL,
    TICK,
    TICK_S,
    TICKED,
    TIMEOUT_S,
    Spec,
)
from tests.chaos.proxy import Proxies
from tests.chaos.sinks import LIST, Sinks
from tests.chaos.waiting import NONE_WAITED, Waited, waited
from tests.judge.history import Call, read
from tests.judge.model import Op, Rules
from tests.judge.verdict import Facts, Loss, Verdict, verdict_on
from tests.judge.witness import LATE_S, NOTHING, monotonic_us, number_of

STARTED_S = 90.0

SKEW_US = 20_000.0
"""How far the clocks by which servers count, and by which this is judged, may drift apart in a round."""

JUMPS_US = 7_300e6
"""Likewise where clocks jump an hour back and forth."""

CASE = "case"
"""The file of all that is judged, for ``python -m tests.chaos judge FOLDER``."""

CLOSING = 999
"""The number of the process that handles what is left: no other has it."""

FORWARDED = ("out/", "home/", "nats/")


@dataclass
class Told:
    """What a round came to."""

    plan: Plan
    folder: Path
    wrong: list[str] = field(default_factory=list)
    """What must not be, each in words."""
    broken: list[str] = field(default_factory=list)
    """What was wrong with the servers themselves: the round says less then."""
    happened: list[Happened] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    plain: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    late_s: Mapping[str, float] = field(default_factory=dict)
    waited: Waited = NONE_WAITED
    unjudged: int = 0
    """Forwarded tasks of which nothing is said, as a failover took the list that they were in."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each part took."""

    @property
    def faults(self) -> Counter[str]:
        return Counter(each.fault.kind for each in self.happened)


def carried_out(plan: Plan, *, planted: str = "") -> Told:
    """Carries a round out and judges it. ``planted``: a fault of the product, by name."""
    return judged(done(plan, planted=planted))


def done(plan: Plan, *, planted: str = "") -> Told:
    """Carries a round out. It is to be judged yet, in this process or another one; ``put_away`` removes its files."""
    told = Told(plan, folder=Path(tempfile.mkdtemp(prefix="shardq-chaos-")))
    try:
        Round(plan, told, planted).carry_out()
    except BaseException:
        put_away(told, keep=False)
        raise
    return told


def judged(told: Told) -> Told:
    """With the verdict on all that its programs heard."""
    case = told.folder / CASE
    if case.exists():
        since_s = time.monotonic()
        verdict = verdict_on(*pickle.loads(case.read_bytes()))
        verdict.outcomes.update(told.verdict.outcomes)
        told.verdict = verdict
        told.wrong += verdict.violations
        told.seconds["judged"] = round(time.monotonic() - since_s, 1)
    return told


def put_away(told: Told, *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(told.folder, ignore_errors=True)


def engine_of(ground: Ground, shards: int, **options: object) -> Engine:
    return Engine(ground.url, name=NAME, shards=shards, timeout=30.0, **options)  # type: ignore[arg-type]


def prepare(engine: Callable[[], Engine], folder: Path, programs: Iterable[Program], sinks: Sinks | None) -> None:
    """Routes, and the table of the outbox, where programs need them."""
    with engine() as opened:
        if sinks is not None:
            sinks.route(opened)
    if any(program.kind == "outbox" for program in programs):
        import sqlalchemy as sa

        from shardq import outbox

        outbox.create(sa.create_engine(f"sqlite:///{folder}/box.db"), engine=NAME)


def _kept(plan: Plan) -> Mapping[str, str]:
    if plan.forgets:
        return {**KEPT, **SYNCED}
    return {**KEPT, "appendfsync": "always"} if plan.durability == "fsynced" else KEPT


class Round:
    def __init__(self, plan: Plan, told: Told, planted: str) -> None:
        self._plan = plan
        self._folder = told.folder
        self._told = told
        self._planted = planted
        self._facts = Facts(shard_counts={plan.shards, *SHARDS})
        self._facts.rules = Rules(skew_us=JUMPS_US if plan.clocks else SKEW_US, lease_us=LEASE_S * 1e6)
        self._ahead_us = time.time() * 1e6 - monotonic_us()
        self._since_s = time.monotonic()

    def carry_out(self) -> None:
        with ExitStack() as stack:
            proxies = stack.enter_context(Proxies())
            self._ground = stack.enter_context(
                GROUNDS[self._plan.ground](proxies, self._folder, clocks=self._plan.clocks, kept=_kept(self._plan))
            )
            has_sinks = any(program.kind == "send" for program in self._plan.programs)
            self._sinks = stack.enter_context(Sinks()) if has_sinks else None
            prepare(self._engine, self._folder, self._plan.programs, self._sinks)
            self._processes = Processes(self._spec)
            stack.callback(self._processes.close)
            self._start()
            self._part("started")
            nemesis = Nemesis(self._plan, self._ground, self._processes, self._sinks, self._facts, WAYS)
            stack.callback(nemesis.stop)
            nemesis.run()
            self._part("faults")
            nemesis.heal()
            self._told.happened, self._told.left_out = nemesis.happened, nemesis.left_out
            self._told.broken += nemesis.failed
            self._told.wrong += nemesis.wrong
            self._part("healed")
            self._over_us = monotonic_us()
            self._processes.finish_all()
            self._told.wrong += self._processes.wrong
            self._close()
            self._part("handled")
            try:
                final = self._final()
            except (redis.RedisError, ServerFailed) as exc:
                self._told.wrong.append(f"the servers do not tell what is left: {type(exc).__name__}: {exc}")
                return
            at_us = monotonic_us()
            calls = list(self._calls(final))
            tell(self._facts, calls, nemesis.forgotten)
            ended_us = self._processes.ended_us
            self._told.waited = waited(calls, nemesis.happened, self._facts.losses, ended_us, self._over_us)
            self._told.wrong += self._told.waited.wrong
        self._leave(calls, final, at_us)
        self._part("read")

    def _part(self, name: str) -> None:
        now_s = time.monotonic()
        self._told.seconds[name] = round(now_s - self._since_s, 1)
        self._since_s = now_s

    # ---- the beginning

    def _engine(self, **options: object) -> Engine:
        return engine_of(self._ground, self._plan.shards, **options)

    def _spec(self, program: Program, life: int, index: int) -> Spec:
        return Spec(
            kind=program.kind,
            number=program.number,
            life=life,
            index=index,
            seed=self._plan.seed,
            url=self._ground.url,
            name=NAME,
            shards=self._plan.shards,
            folder=str(self._folder),
            durability="" if program.kind == "spool" else self._plan.durability,
            per_s=self._plan.per_s,
            pause=min(0.4, 4 * self._plan.pause) if program.kind == "operate" else self._plan.pause,
            planted=self._planted,
        )

    def _start(self) -> None:
        for program in self._plan.programs:
            self._processes.start(program)
        deadline = time.monotonic() + STARTED_S
        for process in list(self._processes.current.values()):
            while not process.spec.book.exists() and time.monotonic() < deadline and process.is_running:
                time.sleep(0.05)

    # ---- the end

    def _close(self) -> None:
        spec = Spec(
            kind="closing", number=1, life=1, index=CLOSING, seed=self._plan.seed, url=self._ground.url, name=NAME,
            shards=self._plan.shards, folder=str(self._folder),
        )  # fmt: skip
        rest_s = PLANTED_REST_S if self._planted else REST_S
        closing = Closing(spec, self._engine, rest_s, self._plan.clocks, (QUIET,))
        closing.run()
        self._closing, self._paused_us = spec, closing.paused_us
        self._told.wrong += closing.wrong
        self._facts.spool_drained_us = closing.carried_in_us or monotonic_us()

    def _final(self) -> dict[str, tuple[str, int]]:
        """All tasks that are left, as the servers have them."""
        final: dict[str, tuple[str, int]] = {}
        for keys in (shard_keys(NAME, shard) for shard in range(MOST_SHARDS)):
            with self._ground.server_of(keys.slot).client() as client:
                dead = {id for id, _ in client.zscan_iter(keys.dead, count=1000)}
                for id, record in client.hscan_iter(keys.task, count=1000):
                    number = number_of(decode_record(record, own=None).payload)
                    word = "dead" if id in dead else "scheduled"
                    if word == "scheduled":
                        self._told.wrong.append(f"{id.decode()} has a record in shard {keys.shard}, and is not dead")
                    if id.decode() in final:
                        self._told.wrong.append(f"{id.decode()} is in two shards")
                    final[id.decode()] = (word, number)
                self._check_rest(keys, client)
        return final

    def _check_rest(self, keys: ShardKeys, client: object) -> None:
        for what in ("due", "leased", "moved", "staged"):
            name = getattr(keys, what)
            kind = client.type(name)  # type: ignore[attr-defined]
            count = 0 if kind == b"none" else client.zcard(name) if kind == b"zset" else client.hlen(name)  # type: ignore[attr-defined]
            if count:
                self._told.wrong.append(f"{what} of shard {keys.shard} has {count} entries at rest")

    # ---- what the judge reads

    def _calls(self, final: Mapping[str, tuple[str, int]]) -> Iterator[Call]:
        specs = [*self._processes.specs, self._closing]
        numbers: dict[int, str] = {}
        ticks: set[str] = set()
        for spec in specs:
            for path in (spec.file("trouble"),):
                if path.exists():
                    self._told.wrong.append(path.read_text())
            for call in read(spec.book) if spec.book.exists() else ():
                if call.what == STOOD_STILL:
                    self._facts.frozen.append(Loss(call.begin_us, call.end_us, spec.who))
                    continue
                for id, op in call.ops:
                    if op.kind == "push" and id.startswith(FORWARDED):
                        numbers[op.number] = id
                    elif op.kind == "claim" and id.startswith(f"{TICK}/"):
                        ticks.add(id)
                self._told.tasks += sum(op.kind == "push" and op.outcome != NOTHING for _, op in call.ops)
                yield call
        left = [number for id, (_, number) in final.items() if id.startswith(f"{FLOW}/")]
        books = {spec.who: spec.flow_book for spec in specs if spec.flow_book.exists()}
        bulk = accounted(books, left, TIMEOUT_S, LATE_S)
        self._told.tasks += bulk.pushed
        self._told.plain = bulk.plain
        self._told.late_s = percentiles(bulk.late_s)
        self._told.verdict.outcomes.update(bulk.outcomes)
        yield from bulk.calls
        yield from self._occurrences(ticks)
        yield from self._arrivals(numbers)

    def _occurrences(self, seen: set[str]) -> Iterator[Call]:
        """Each occurrence of the schedule, between the first and the last that was seen, was pushed once."""
        if not seen:
            return
        words = {id: id.partition("@")[2].partition("~")[0] for id in seen}
        at_us = {id: datetime.fromisoformat(word).timestamp() * 1e6 for id, word in words.items()}
        prefix = f"{TICK}/every-{TICK}@"
        place, last_us = min(at_us.values()), max(at_us.values())
        while place <= last_us:
            instant = datetime.fromtimestamp(round(place / 1e6, 3), tz=UTC)
            precision = "milliseconds" if instant.microsecond else "seconds"
            id = f"{prefix}{instant.isoformat(timespec=precision).removesuffix('+00:00')}Z"
            begin_us = place - self._ahead_us - 60e6
            op = Op("push", begin_us, self._facts.spool_drained_us, "committed", TICKED, 60e6, "keep", who="schedule")
            self._told.tasks += 1
            taken_back = Op("cancel", self._paused_us, who="schedule")
            ops = [(id, op), (id, taken_back)]
            yield Call("schedule", "occurrence", begin_us, self._facts.spool_drained_us, ops=ops)
            place += TICK_S * 1e6

    def _arrivals(self, numbers: Mapping[int, str]) -> Iterator[Call]:
        if self._sinks is None:
            return
        is_here = isinstance(self._ground, One) or self._plan.ground == "sentinel"
        keep = is_here or not (self._facts.setbacks or self._facts.splits)
        for number, op in self._sinks.arrivals(self._home(), is_home_relayed=not is_here):
            id = numbers.get(number, f"#{number}")
            if not keep and id.startswith(f"{HOME}/"):
                self._told.unjudged += 1
                continue
            op.who = "sink"
            yield Call("sink", "arrive", op.begin_us, op.end_us, ops=[(id, op)])

    def _home(self) -> list[bytes]:
        """What is in the list of the engine's own server."""
        slot = slot_of(LIST)
        with self._ground.server_of(slot).client() as client:
            return client.lrange(LIST, 0, -1)  # type: ignore[no-any-return]

    def _leave(self, calls: list[Call], final: Mapping[str, tuple[str, int]], at_us: float) -> None:
        """Leaves all that is to be judged in a file."""
        if self._told.unjudged:
            for call in calls:
                call.ops = [(id, op) for id, op in call.ops if not id.startswith(f"{HOME}/")]
        (self._folder / CASE).write_bytes(pickle.dumps((calls, self._facts, final, at_us)))
