"""The scripts of a handled task, the commands of an idle minute, the scripts of a row of history and the bytes of an
answer to a heartbeat, as fleet and engine grow: counts, and no times.

One size changes at a time, around ``BASE``, and a few do together. Consumers claim one task at a time, and handle it at
once. Tasks fall due one by one while consumers wait; those of a limited topic all at once, so that the limit holds them
back. The names of processes that are gone stand in ``waiting`` of each shard before those that live.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from bench.figures import Figure
from bench.stand import Stand, Suite
from bench.suites.idle import NOT_ITS
from shardq import Consumer, Engine, Task
from shardq.core.calls import control
from shardq.core.calls.request import Command, Word, pack
from shardq.core.dispatcher.poller import LONGEST_SLEEP_S
from shardq.core.layout.keys import shard_keys
from shardq.core.operation import run
from shardq.engine.access import EngineAccess
from shardq.features.history.recorder import counted

PER_ENGINE = 50
"""Consumers of a process. Each engine is one of the fleet, though all run here."""
CONCURRENCY = 1
RATE = 100
SPREAD_S = 2.0
MOST_S = 4.0
"""The time after which a limited topic is left, and what was handled counts."""
GONE_MS = 600_000
"""The time since which processes that are gone wait. Names of more than an hour are dropped."""
LEAD_S = 0.5
"""The least time from the push until the first task falls due: all are pushed by then."""
WAIT_S = 1.0
"""The wait of a claim. A consumer notices within this time that it has to stop."""
SETTLE_S = 1.0
SETTLING = 500
"""Tasks that are handled before an engine idles."""


Limit = Literal["no limit", "rate", "concurrency"]
LIMITS: tuple[Limit, ...] = ("rate", "concurrency")


@dataclass(frozen=True, slots=True)
class Sizes:
    consumers: int = 10
    shards: int = 16
    topics: int = 1
    dead: int = 0
    """The names of processes that are gone, in each shard."""
    limit: Limit = "no limit"

    def __str__(self) -> str:
        counts = {"consumer": self.consumers, "shard": self.shards, "topic": self.topics, "dead name": self.dead}
        told = (f"{count:,} {what}{'' if count == 1 else 's'}" for what, count in counts.items())
        return f"{', '.join(told)}, {self.limit}"


BASE = Sizes()
ROWS = (
    BASE,
    *(replace(BASE, consumers=consumers) for consumers in (1, 100)),
    *(replace(BASE, shards=shards) for shards in (1, 64)),
    *(replace(BASE, topics=topics) for topics in (100, 5_000)),
    *(replace(BASE, dead=dead) for dead in (10, 1_000)),
    replace(BASE, dead=1_000, shards=64),
    *(
        replace(BASE, limit=limit, consumers=consumers, shards=shards)
        for limit in LIMITS
        for consumers, shards in ((1, 16), (10, 16), (100, 16), (50, 64))
    ),
)
IDLE = (BASE, replace(BASE, consumers=100), replace(BASE, shards=64), replace(BASE, topics=5_000))
HISTORY = (1, 100, 5_000)
"""Topics."""
MEMBERS = (1, 10, 500)
ALIVE_MS = 60_000


def _measure(stand: Stand) -> Iterator[Figure]:
    for sizes in ROWS[: stand.pick(1, len(ROWS))]:
        stand.say(str(sizes))
        yield _figure("a task", sizes, of_a_task(stand, sizes, count=stand.pick(50, 500)), "scripts")
    for sizes in IDLE[: stand.pick(1, len(IDLE))]:
        stand.say(f"idle, {sizes}")
        yield _figure(
            "an idle minute", sizes, of_an_idle_minute(stand, sizes, stand.pick(1.0, LONGEST_SLEEP_S)), "commands"
        )

    for topics in HISTORY[: stand.pick(2, len(HISTORY))]:
        row = replace(BASE, topics=topics)
        yield _figure("a row of history", row, of_a_row(stand, row), "scripts")
    for members in MEMBERS[: stand.pick(2, len(MEMBERS))]:
        about = f"an answer to a heartbeat, {members:,} members"
        yield Figure(about, of_a_heartbeat(stand, members), "bytes", at={"curve": "scales: a heartbeat"})


SUITE = Suite("scales", "scripts of a task, commands of an idle minute, and the like, as everything grows", _measure)


def _figure(what: str, sizes: Sizes, count: float, unit: str) -> Figure:
    return Figure(f"{what}, {sizes}", count, unit, at={"curve": f"scales: {what}", **asdict(sizes)})


def of_a_task(stand: Stand, sizes: Sizes, *, count: int) -> float:
    """Counts the scripts of the servers while so many tasks are handled, ÷ those that were."""
    with _running(stand, sizes) as (engine, topics, handled):
        limited = sizes.limit != "no limit"
        engine.push_many(
            Task("x", topic=topics[number % len(topics)], delay=LEAD_S + (0 if limited else SPREAD_S * number / count))
            for number in range(count)
        )
        stand.reset_stats()
        end = time.monotonic() + MOST_S
        stand.until(
            lambda: len(handled) >= count or (limited and time.monotonic() > end), f"{count:,} tasks are handled"
        )
        scripts, done = _scripts(stand), len(handled)
        if not done:
            raise RuntimeError(f"{sizes}: no task was handled within {MOST_S:.0f} s")
        return scripts / done


def of_an_idle_minute(stand: Stand, sizes: Sizes, seconds: float) -> float:
    """Counts the commands of the servers in so many seconds, those inside scripts included. Idle pollers look without a
    script, and less than one of their sleeps sees too few.
    """
    with _running(stand, sizes) as (engine, topics, handled):
        # each shard has handled something: a poller that has just begun looks more often
        some = [topics[number % len(topics)] for number in range(SETTLING)]
        engine.push_many(Task("x", topic=topic) for topic in some)
        stand.until(lambda: len(handled) >= len(some), "some tasks are handled")
        time.sleep(SETTLE_S)
        stand.reset_stats()
        time.sleep(seconds)
        count = sum(calls for name, calls in stand.commands().items() if name not in NOT_ITS)
        return count * 60 / seconds


def of_a_row(stand: Stand, sizes: Sizes) -> float:
    """Counts the scripts that a dispatcher runs each minute to add up all shards."""
    with stand.engine(shards=sizes.shards) as engine:
        engine.push_many(Task("x", topic=f"topic-{number}") for number in range(sizes.topics))
        stand.reset_stats()
        run(stand.driver, counted(EngineAccess(engine).cache))
        return _scripts(stand)


def of_a_heartbeat(stand: Stand, members: int) -> float:
    """Measures what a member that knows all the others is answered."""
    with stand.engine(shards=1) as engine:
        keys, word = EngineAccess(engine).cache.control, ""
        beat = partial(control.heartbeat, keys, alive_ms=ALIVE_MS, others_ms=ALIVE_MS, epoch=engine.topology.stamp)
        for number in range(members):
            word = stand.driver.call(beat(f"a-host-of-some-length-{number}")).word
        answer = stand.driver.call(replace(beat("a-host-of-some-length-0", word=word), decode=lambda answer: answer))
        return len(pack(*_flat(answer)))


def _flat(answer: Any) -> list[Word]:
    return [word for each in answer for word in (_flat(each) if isinstance(each, list) else [each])]


@contextlib.contextmanager
def _running(stand: Stand, sizes: Sizes) -> Iterator[tuple[Engine, list[str], list[None]]]:
    """An engine with pollers and waiting consumers, its topics, and a list that has an entry for each handled task."""
    topics = [""] if sizes.topics == 1 else [f"topic-{number}" for number in range(sizes.topics)]
    handled: list[None] = []
    with stand.engine(shards=sizes.shards) as engine:
        _limit(engine, topics, sizes.limit)
        with _fleet(stand, engine, topics, sizes.consumers, handled):
            engine.start()
            time.sleep(SETTLE_S)
            _plant(stand, engine, topics, sizes.dead)
            yield engine, topics, handled
        engine.stop()


def _scripts(stand: Stand) -> int:
    return stand.commands().get("evalsha", 0)


def _limit(engine: Engine, topics: list[str], limit: Limit) -> None:
    for topic in topics:
        if limit == "rate":
            engine.limit(topic, rate=RATE)
        elif limit == "concurrency":
            engine.limit(topic, concurrency=CONCURRENCY)


def _plant(stand: Stand, engine: Engine, topics: list[str], dead: int) -> None:
    """Leaves names as processes do that died while they waited."""
    since_ms = int(time.time() * 1000) - GONE_MS
    names = [word for number in range(dead) for word in (str(since_ms + number), f"gone-{number}")]
    for shard in range(engine.topology.shards if dead else 0):
        keys = shard_keys(engine.name, shard)
        for topic in topics:
            stand.driver.call(Command(keys.slot, ("ZADD", keys.waiting(topic), *names), int))


@contextlib.contextmanager
def _fleet(stand: Stand, engine: Engine, topics: list[str], consumers: int, handled: list[None]) -> Iterator[None]:
    """Runs consumers in threads. Topics are divided over them; where there are few, all take all."""
    ending = threading.Event()

    def work(consumer: Consumer) -> None:
        while not ending.is_set():
            if deliveries := consumer.claim(1, wait=WAIT_S):
                consumer.ack(deliveries)
                handled.append(None)

    with contextlib.ExitStack() as stack:
        threads = []
        for number in range(consumers):
            if number % PER_ENGINE == 0:
                mine = stack.enter_context(Engine(stand.url, name=engine.name))
            consumer = mine.consumer(topics[number::consumers] or topics)
            threads.append(threading.Thread(target=work, args=(consumer,)))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ending.set()
            for thread in threads:
                thread.join()
