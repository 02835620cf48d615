"""Every view of an engine gives the same verdict, and the counts that a plain connection finds.

A row of ``SITUATIONS`` makes one situation on a real server; a column of ``COLUMNS`` is a view. The views are those of
engines and commands that look from outside, as an operator does.
"""

from __future__ import annotations

import asyncio
import html
import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import redis
from rich.console import Console

from cluster.ports import free_port
from shardq import AsyncEngine, Bury, Delivery, Engine, Health, Task, Worker
from shardq.cli.top import Screen
from shardq.cli.top_keys import State
from shardq.core.dispatcher import poller
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.core.layout.keys import shard_keys
from shardq.engine.health import KINDS
from shardq.engine.snapshot import SnapshotReader, Snapshots
from shardq.http import app
from shardq.worker import report as reporter
from tests.cli.shell import Shell
from tests.dashboard.browsing import browsing
from tests.metrics.scraping import registry_of, scraped, total
from tests.support.servers import Servers, aged
from tests.support.states import claim, put, ready_of
from tests.support.waiting import wait_until

SHARDS = 4

OLD_S = 100.0
"""Longer than a ready task may wait by default."""

SEEN_S = 60.0
"""The time for a situation to be seen: reports and heartbeats have their intervals."""


@dataclass
class World:
    """A new engine, and what makes situations of it."""

    engine: Engine
    url: str
    name: str
    servers: Servers
    shell: Shell
    monkeypatch: pytest.MonkeyPatch
    stack: ExitStack
    """What is closed at the end of the test."""

    def ready(self, topic: str, count: int = 1) -> None:
        """Dispatches some tasks of a topic."""
        self.engine.start()
        self.engine.push_many(Task(n, topic=topic) for n in range(count))
        wait_until(lambda: ready_of(self.engine, topic) == count, "they are ready")

    def age(self, topic: str) -> None:
        """Makes the ready tasks of a topic look as if they had been seen long ago."""
        aged(self.engine, topic, OLD_S, ask=self.servers.ask)

    def work(self, topic: str, handler: Callable[[Delivery], Any], **options: Any) -> None:
        """Runs a worker in this process, which reports often."""
        worker = self.engine.worker(**options)
        worker.on(topic)(handler)
        self.run(worker)

    def run(self, worker: Worker) -> None:
        """Runs it until the end of the test."""
        self.monkeypatch.setattr(reporter, "BEAT_S", 0.2)
        thread = threading.Thread(target=worker.run)
        thread.start()

        def stop() -> None:
            worker.stop()
            thread.join()

        self.stack.callback(stop)

    def hang(self, topic: str) -> None:
        """Runs a worker whose only handler hangs until the end of the test."""
        over = threading.Event()
        self.work(topic, lambda _: over.wait(), concurrency=1)
        self.stack.callback(over.set)

    def another(self) -> Engine:
        return self.stack.enter_context(Engine(self.url, name=self.name))


# ---- situations


def all_is_well(world: World) -> None:
    world.engine.start()
    world.engine.push_many(Task(n, topic="mail", delay=3600) for n in range(10))


def nobody_dispatches(world: World) -> None:
    world.engine.push("hello", topic="mail", at=time.time() - 100)


def nobody_works(world: World) -> None:
    world.ready("mail", 3)
    world.age("mail")


def workers_are_slow(world: World) -> None:
    world.engine.start()
    world.hang("mail")
    world.engine.push_many(Task(n, topic="mail") for n in range(200))
    wait_until(lambda: ready_of(world.engine, "mail") > 0 and world.engine.stats().leased > 0, "it took some")
    world.age("mail")


def a_limit_lets_no_more_through(world: World) -> None:
    world.engine.limit("mail", concurrency=1)
    world.ready("mail", 3)
    claim(world.another().consumer("mail", lease=600), 1)
    world.age("mail")


def a_shard_out_of_use_has_tasks(world: World) -> None:
    """As of a server that came back older; and one of which the meta is lost."""
    for shard, names in ((SHARDS + 1, ("meta", "task")), (SHARDS + 3, ("moved",))):
        keys = shard_keys(world.name, shard)
        for name in names:
            world.servers.ask(keys.slot, "HSET", getattr(keys, name), "n", "1")


def nobody_is_woken(world: World) -> None:
    """A process is registered, and listens; the tasks came as if another one had been woken."""
    world.ready("mail", 3)
    world.age("mail")
    client = world.stack.enter_context(redis.Redis.from_url(world.url))
    for keys in (shard_keys(world.name, shard) for shard in range(SHARDS)):
        pubsub = world.stack.enter_context(client.pubsub())
        pubsub.ssubscribe(keys.wake("host-1"))
        pubsub.get_sharded_message(timeout=SEEN_S)
        world.servers.ask(keys.slot, "ZADD", keys.waiting("mail"), 1, "host-1")


def all_handlers_hang(world: World) -> None:
    world.monkeypatch.setattr(reporter, "LONG_S", 0.1)
    world.monkeypatch.setattr("shardq.core.fleet.report.LEAST_GAP_S", 0.1)
    world.monkeypatch.setattr(reporter, "STUCK_S", 0.1)
    world.engine.start()
    world.hang("mail")
    world.engine.push("x", topic="mail", id="slow-one")


def a_call_that_no_worker_knows(world: World) -> None:
    world.engine.start()
    world.engine.push({"task": "shop.refund", "args": [], "kwargs": {}}, topic="mail")
    other = world.another()
    other.task(topic="mail", name="shop.send")(print)
    world.run(other.worker())


def a_call_that_some_worker_knows(world: World) -> None:
    """One by an earlier name of a function, and an old worker beside it."""
    a_call_that_no_worker_knows(world)
    wait_until(lambda: world.engine.health().kinds == ["unknown_task"], "the old one has met it", timeout=SEEN_S)
    newer = world.another()
    newer.task(topic="mail", name="shop.give_back", aliases=["shop.refund"])(print)
    world.run(newer.worker())


def a_sink_that_no_dispatcher_serves(world: World) -> None:
    world.engine.forward("mail", to=f"http://127.0.0.1:{free_port()}/")


def a_sink_that_is_down(world: World) -> None:
    world.engine.forward("mail", to=f"http://127.0.0.1:{free_port()}/")
    world.engine.start()
    world.engine.push("x", topic="mail")


def tasks_die(world: World) -> None:
    world.engine.start()

    def handle(delivery: Delivery) -> None:
        raise Bury(f"order {delivery.payload} is unknown" if delivery.payload % 10 else "no such address")

    world.work("mail", handle, concurrency=50)
    world.engine.push_many(Task(n, topic="mail") for n in range(1, 201))
    wait_until(lambda: world.engine.stats().dead == 200, "all are dead", timeout=SEEN_S)


def few_tasks_die(world: World) -> None:
    world.engine.start()
    put(world.engine, "dead", topic="mail")


def dead_tasks_are_removed(world: World) -> None:
    world.monkeypatch.setattr(poller, "TRIM_S", 0.1)
    world.engine.configure(dead_count=SHARDS)
    world.engine.start()
    for _ in range(3 * SHARDS):
        put(world.engine, "dead", topic="mail")


class Situation(NamedTuple):
    make: Callable[[World], None]
    kinds: set[str]
    words: tuple[str, ...] = ()
    """What the reasons say, each in one of them."""


SITUATIONS = (
    Situation(all_is_well, set()),
    Situation(nobody_dispatches, {"no_dispatcher", "overdue"}, (NO_DISPATCHER, "tasks are overdue, by up to ")),
    Situation(nobody_works, {"no_worker"}, ("topic 'mail': the oldest of 3 ready", "no worker that runs serves the")),
    Situation(workers_are_slow, {"backlog"}, ("the 1 workers that serve the topic can't keep up",)),
    Situation(a_limit_lets_no_more_through, {"limit"}, ("its limit of 1 at once lets no more through",)),
    Situation(a_shard_out_of_use_has_tasks, {"no_dispatcher", "strays"}, ("shards 5, 7", "out of use")),
    Situation(nobody_is_woken, {"deaf"}, ("topic 'mail': ready tasks of", "the process host-1 waits for one all the")),
    Situation(all_handlers_hang, {"stuck_worker"}, ("each of its 1 handlers", "task mail/slow-one for ")),
    Situation(
        a_call_that_no_worker_knows,
        {"unknown_task"},
        ("topic 'mail': no worker that runs knows calls of 'shop.refund'; workers have given them back 1 times in ",),
    ),
    Situation(a_call_that_some_worker_knows, set()),
    Situation(
        a_sink_that_no_dispatcher_serves,
        {"no_dispatcher", "unserved_route"},
        ("topic 'mail' is forwarded to http://127.0.0.1:", "but no running dispatcher serves it"),
    ),
    Situation(few_tasks_die, set()),
    Situation(
        tasks_die,
        {"deaths"},
        ("200 tasks have died in the last 10 minutes; ", " of topic 'mail', by order # is unknown: see "),
    ),
    Situation(
        dead_tasks_are_removed, {"trimmed"}, ("before their time and for good, as more than dead_count were dead",)
    ),
    Situation(a_sink_that_is_down, {"route"}, ("topic 'mail' can't be forwarded to http://127.0.0.1:",)),
)


# ---- views


def asked(world: World) -> str:
    health = world.another().health()
    return judged(health)


def asked_by_asyncio(world: World) -> str:
    async def ask() -> Health:
        async with AsyncEngine(world.url, name=world.name) as engine:
            return await engine.health()

    return judged(asyncio.run(ask()))


def judged(health: Health) -> str:
    assert bool(health) is health.ok is (not health.reasons)
    assert len(health.kinds) == len(health.reasons)
    return "\n".join(health.reasons)


def health_command(world: World) -> str:
    done = world.shell.run("health")
    assert done.code == (0 if done.out == "ok\n" else 1), done
    return "" if done.out == "ok\n" else done.out


def stats_command(world: World) -> str:
    done = world.shell.run("stats", "--totals")
    assert done.code == (0 if done.out.startswith("ok\n") else 1), done
    return done.out.split("\n\n")[0].removeprefix("ok")


def doctor(world: World) -> str:
    done = world.shell.run("doctor")
    wrong = [line for line in done.lines if "WRONG: " in line]
    assert done.code == (1 if wrong else 0), done
    return "\n".join(wrong)


def metrics(world: World) -> str:
    """The reasons are those of the look that is exported; the names are compared by ``test_metrics_tell_each_kind``."""
    samples = scraped(registry_of(world.another()))
    ill = [kind for kind in KINDS if total(samples, "shardq_unhealthy", reason=kind)]
    assert total(samples, "shardq_up") == 1
    assert total(samples, "shardq_healthy") == (not ill)
    return " ".join(ill)


def dashboard(world: World) -> str:
    with browsing(app(world.another())) as client:
        text = client.get("/").text
    if "not ok" not in text.lower() and 'class="bad"' not in text:
        return ""
    return html.unescape(re.sub(r"<[^>]*>", "", re.sub("</?code>", "`", text)))  # sentences have links in them


def top(world: World) -> str:
    snapshots, out = Snapshots(), io.StringIO()
    snapshots.add(SnapshotReader(world.another()).read())
    console = Console(file=out, width=500, height=60)
    console.print(Screen("title").draw(snapshots, State(), width=500, height=60))
    verdict = out.getvalue().splitlines()[1]
    return "" if verdict.strip() == "ok" else out.getvalue()


SENTENCES: tuple[Callable[[World], str], ...] = (
    asked,
    asked_by_asyncio,
    health_command,
    stats_command,
    doctor,
    dashboard,
    top,
)
"""The views that say the reasons in words."""


@pytest.fixture
def world(
    single: Any, name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    shell = Shell(tmp_path_factory.mktemp("home"), {"SHARDQ_URL": single.url, "SHARDQ_NAME": name})
    try:
        with (
            Servers(single.url) as servers,
            Engine(single.url, name=name, shards=SHARDS) as engine,
            ExitStack() as stack,
        ):
            yield World(engine, single.url, name, servers, shell, monkeypatch, stack)
    finally:
        shell.end()


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.make.__name__)
def test_every_view_gives_the_verdict(world: World, situation: Situation) -> None:
    situation.make(world)
    observer = world.another()
    wait_until(lambda: set(observer.health().kinds) == situation.kinds, f"{situation.kinds} are seen", timeout=SEEN_S)
    for view in SENTENCES:
        said = view(world)
        assert bool(said) is bool(situation.kinds), (view.__name__, said)
        for words in situation.words:
            assert words in said, (view.__name__, words, said)
    assert set(metrics(world).split()) == situation.kinds
    # two readings are two instants: a sink that is down is tried between them
    wait_until(lambda: of_stats(observer) == plain(world), "the stats are what a plain connection counts")


def of_stats(engine: Engine) -> dict[str, int]:
    stats = engine.stats()
    return {state: getattr(stats, state) for state in ("scheduled", "leased", "dead", "ready")}


def plain(world: World) -> dict[str, int]:
    keys = [shard_keys(world.name, shard) for shard in range(SHARDS)]
    counts = {
        state: sum(world.servers.ask(each.slot, "ZCARD", getattr(each, key)) for each in keys)
        for state, key in (("scheduled", "due"), ("leased", "leased"), ("dead", "dead"))
    }
    return counts | {"ready": sum(world.servers.ask(each.slot, "LLEN", each.ready("mail")) for each in keys)}


def test_a_kind_is_named_once() -> None:
    assert len(KINDS) == len(set(KINDS))


def test_the_topic_that_holds_the_places_is_named(world: World) -> None:
    world.monkeypatch.setattr(reporter, "LONG_S", 0.1)
    world.monkeypatch.setattr("shardq.core.fleet.report.LEAST_GAP_S", 0.1)
    world.engine.start()
    over = threading.Event()
    worker = world.engine.worker(concurrency=1)
    worker.on("mail")(lambda _: over.wait())
    worker.on("sms")(print)
    world.run(worker)
    world.stack.callback(over.set)
    world.engine.push("x", topic="mail", id="slow-one")
    wait_until(lambda: world.engine.stats().leased, "it hangs")
    world.engine.push_many(Task(n, topic="sms") for n in range(50))
    wait_until(lambda: ready_of(world.engine, "sms") > 40, "the others wait")
    wait_until(lambda: world.engine.fleet()[-1].longest, "the worker reports it")
    world.age("sms")
    (reason,) = world.engine.health().reasons
    assert reason.startswith("topic 'sms': the oldest of ")
    assert (
        "tasks of topic 'mail' hold the 1 places of the workers that serve it; the longest, mail/slow-one, has"
        in reason
    )
