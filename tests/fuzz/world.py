"""A process of an engine with all that runs in one, on a real server: pollers, the heartbeat, forwarding, schedules,
the history, a consumer and a worker. What is stored in its keys by others must not keep it from its good tasks.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Self

import redis
from prometheus_client import CollectorRegistry, generate_latest

import shardq.metrics
from cluster.server import Server
from shardq import Delivery, Engine, ShardqError
from shardq.core.calls import listing
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.operation import run
from shardq.core.topology_recovery import call_every_shard
from shardq.engine.access import EngineAccess
from shardq.features.history.recorder import Recorder
from shardq.http import app
from tests.fuzz import asgi, command
from tests.fuzz.nasty import MARKUP, OBEYED
from tests.fuzz.planting import TOPICS, Place, Plant, now_ms
from tests.support.leaks import engine_threads
from tests.support.waiting import wait_until

SHARDS = 2

LONGEST_S = 15.0
"""For good tasks beside bad things: a lease that was never meant costs none of it."""

MOST_SCRIPTS = 150
"""Of a second in which nothing is done: an idle process needs some ten, one that turns in a circle thousands."""

_AGAIN = "which is a failed attempt"
"""Said for each attempt of a task whose payload its codec can't read."""

_FIELDS = re.compile(r"<input [^<>]*>")

COMMANDS = (
    *("stats", "stats --json", "health", "health --json", "list", "list --json", "list --state dead --newest"),
    *("list --next", "list --next --json", "list --state leased --json"),
    *("fleet", "fleet --json", "topics", "topics --json", "shards"),
    *(
        "shards --json",
        "every",
        "every --json",
        "forecast",
        "get bad",
        "get mail/bad --json",
        "doctor --json",
        "configure",
    ),
    *("doctor --all", "resize --dry-run 4", "stats --history hour"),
)
PAGES = (
    *("/", "/tasks", "/tasks?state=dead", "/tasks?state=leased", "/tasks?state=ready", "/tasks?due=..0", "/dead"),
    *("/future", "/schedules", "/shards", "/nodes", "/topics", "/topics/one?topic=mail", "/fleet", "/changes"),
    *("/tasks/one?id=bad", "/tasks/one?id=mail/bad", "/shards/number", "/livez"),
)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


class World:
    """Context manager. ``keys`` go with it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = f"t{uuid.uuid4().hex[:12]}"
        self.place = Place(shard_keys(self.name, 0), control_keys(self.name), now_ms())
        self.engine = Engine(server.url, name=self.name, shards=SHARDS, timeout=10.0)
        self._theirs = f"theirs-{self.name}"
        self._lines = _Lines()
        self._stack = ExitStack()
        self._threads: set[threading.Thread] = set()
        self._handled: set[str] = set()
        self._count = 0

    def __enter__(self) -> Self:
        stack = self._stack
        log = logging.getLogger("shardq")
        log.addHandler(self._lines)
        stack.callback(log.removeHandler, self._lines)
        self._client = self.server.client()
        stack.callback(self._client.close)
        stack.callback(self._remove_keys)
        stack.enter_context(self.engine)
        self.engine.forward("sms", to=self._theirs)
        self.engine.limit("slow", rate=1000.0, concurrency=50)
        self.engine.every("tick", interval=0.2, topic="tick")
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    def _remove_keys(self) -> None:
        if keys := [*self._client.scan_iter(match=f"shardq:{{{self.name}*", count=1000), self._theirs.encode()]:
            self._client.delete(*keys)

    def do(self, *words: Any) -> Any:
        """One plain command."""
        ask: Callable[..., Any] = self._client.execute_command
        return ask(*words)

    def plant(self, plants: list[Plant]) -> None:
        for each in plants:
            for words in each.commands:
                # what a limit of the server refuses is not there
                with suppress(redis.ResponseError):
                    self.do(*words)

    def start(self) -> None:
        engine = self.engine
        engine.start()
        worker = engine.worker(concurrency=2)

        @worker.on("work")
        def handle(delivery: Delivery) -> None:
            self._handled.add(delivery.id)

        threads = ThreadPoolExecutor(1, thread_name_prefix="worker")
        ran = threads.submit(worker.run)

        def end() -> None:
            worker.stop()
            ran.result(30.0)
            threads.shutdown()

        self._stack.callback(end)
        wait_until(lambda: worker.healthy and engine.stats().dispatchers, "the process runs")
        self._threads = engine_threads()

    def push_good(self) -> list[str]:
        """Pushes a task of each topic to the shard of the things. Returns the ids."""
        ids = []
        for topic in TOPICS:
            self._count += 1
            while self.engine.topology.shard_of(f"{topic}/good-{self._count}" if topic else f"good-{self._count}"):
                self._count += 1
            ids.append(str(self.engine.push(f"payload {self._count}", id=f"good-{self._count}", topic=topic)))
        return ids

    def handles(self, pushed: Iterable[str], *, is_ticking: bool = True) -> None:
        """Good tasks are dispatched, claimed, forwarded, handled and acked; and the schedule goes on."""
        ids = list(pushed)
        consumer = self.engine.consumer(["", "mail", "slow", "tick"])
        ticks = 0
        payloads = {f'"payload {id.rpartition("-")[2]}"'.encode() for id in ids if id.startswith("sms/")}

        def done() -> bool:
            nonlocal ticks
            deliveries = consumer.claim(100, wait=0.1)
            consumer.ack(deliveries)
            self._handled.update(delivery.id for delivery in deliveries)
            ticks += sum(delivery.id.startswith("tick/every-tick@") for delivery in deliveries)
            missing = {id for id in ids if not id.startswith("sms/")} - self._handled
            return not missing and ticks >= is_ticking and payloads <= set(self.do("LRANGE", self._theirs, 0, -1))

        wait_until(done, f"all of {ids} are handled", timeout=LONGEST_S)
        consumer.close()

    def looks(self) -> dict[str, Callable[[], object]]:
        """All that shows something of the engine, by name."""
        engine = self.engine
        states = ("scheduled", "ready", "leased", "dead")
        looks: dict[str, Callable[[], object]] = {
            "stats": engine.stats,
            "health": engine.health,
            "fleet": engine.fleet,
            "changes": engine.changes,
            "schedules": engine.schedules,
            "history": engine.history,
            "forecast": engine.forecast,
            "dead": lambda: list(engine.dead()),
            "get": lambda: [engine.get(id, decode=False) for id in ("bad", "mail/bad", "sms/bad")],
            "progress": lambda: engine.resize(dry_run=True).progress(),
            "estimate": lambda: engine.resize(4, dry_run=True),
            "metrics": self._metrics,
            "history is written": self._recorded,
            "dead tasks are trimmed": self._trimmed,
        }
        for state in states:
            looks[f"tasks {state}"] = partial(self._pages, state)
        for line in COMMANDS:
            looks[f"$ {line}"] = partial(self.command, line)
        for path in PAGES:
            looks[f"GET {path}"] = partial(self._page, path)
        return looks

    def _pages(self, state: Any) -> None:
        page = self.engine.tasks(state=state, limit=2)
        for _ in range(200):
            if page.cursor is None:
                return
            page = self.engine.tasks(state=state, limit=2, cursor=page.cursor)
        raise AssertionError(f"the pages of {state} tasks have no end")

    def command(self, line: str) -> str:
        """What a command prints."""
        done = command.run(*line.split(), environment={"SHARDQ_URL": self.server.url, "SHARDQ_NAME": self.name})
        assert done.code in command.CODES, done
        assert "Traceback (most" not in done.err, done.err
        assert not OBEYED.search(done.out + done.err), ascii(done.out + done.err)
        return done.out + done.err

    def health(self) -> list[str]:
        return self.engine.health().reasons

    def said(self, text: str) -> int:
        """How many lines of the log have this text."""
        return sum(text in line for line in self._lines.texts)

    def _page(self, path: str) -> None:
        assert self.page(path).status in (200, 404), path

    def page(self, path: str) -> asgi.Answer:
        with asyncio.Runner() as runner:
            answer = asgi.ask(runner, app(self.engine), asgi.Request("GET", path))
        page = _FIELDS.sub("", answer.text)
        assert MARKUP not in page
        assert not OBEYED.search(page), ascii(page)
        return answer

    def _metrics(self) -> None:
        registry = CollectorRegistry()
        registry.register(shardq.metrics.collector(self.engine))
        text = generate_latest(registry).decode()
        if f'shardq_up{{engine="{self.name}"}} 1.0' not in text:
            self.engine.resize(dry_run=True).progress()  # raises what the scrape met, if that is told
            raise AssertionError("a scrape says that the engine can't be read")

    def _recorded(self) -> None:
        dispatcher = EngineAccess(self.engine).running.dispatcher
        assert dispatcher is not None
        (recorder,) = [each for each in dispatcher.beside if isinstance(each, Recorder)]
        recorder.step()

    def _trimmed(self) -> None:
        dispatcher = EngineAccess(self.engine).running.dispatcher
        assert dispatcher is not None
        make = partial(listing.trim, age_ms=10**12, keep=10**9)
        for _, result in run(dispatcher.driver, call_every_shard(EngineAccess(self.engine).cache, make), 5.0):
            assert not isinstance(result, ShardqError), result

    def lives(self) -> None:
        """No thread has ended, none fails, and the log has no error that was not meant, nor one again and again."""
        # a poller may be another process's for a while; those that are ours report
        lasting = [thread for thread in self._threads if not thread.name.startswith("shardq-poller-")]
        ended = [thread.name for thread in lasting if not thread.is_alive()]
        assert not ended, ended
        dispatcher = EngineAccess(self.engine).running.dispatcher
        assert dispatcher is not None
        states = [report.state for report in dispatcher.reports().values()]
        states += [each.loop.state for each in dispatcher.beside]
        assert set(states) <= {"running", "starting"}, states
        traced = [record for record in self._lines.records if record.exc_info]
        assert not traced, [record.getMessage() for record in traced]
        said = Counter(text for text in self._lines.texts if _AGAIN not in text)
        assert not [text for text, count in said.items() if count > 1], said

    def is_calm(self) -> None:
        """In a second in which nothing is to be done little is asked of the server, and nothing is said."""
        scripts, lines, began = self._scripts(), len(self._lines.records), time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1.0, "a second has passed")
        assert self._scripts() - scripts <= MOST_SCRIPTS
        new = [text for text in self._lines.texts[lines:] if _AGAIN not in text]
        assert len(new) <= 1, new

    def _scripts(self) -> int:
        stats = self._client.info("commandstats")
        return sum(stats.get(f"cmdstat_{verb}", {}).get("calls", 0) for verb in ("evalsha", "eval"))
