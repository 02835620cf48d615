"""Every operation on tasks with keys at once, also while the number of shards changes. Never more of a key is out than
its topic allows, each task ends as it was told to, and no place, entry or alarm is left behind.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from shardq import Engine
from shardq.core.model.task import Outcome
from tests.keys.account import TOPIC, Options
from tests.keys.running import account, drained, taking
from tests.support.listed import listed
from tests.support.servers import Servers, keys_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ledger, pytest.mark.timeout(200)]

SHARDS, KEYS = 4, 8

OPTIONS = Options(
    lease=1.0, most=10, work_s=0.02, verbs={"ack": 0.7, "retry": 0.1, "snooze": 0.1, "bury": 0.05, "lapse": 0.01}
)


class Operator:
    """Pushes, and gives random commands to what it pushed."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.pushed: list[str] = []
        self.cancelled: set[str] = set()
        self._engine = engine
        self._random = random.Random(seed)
        self._seed = seed

    def run(self, end: threading.Event) -> None:
        others = [self._replace, self._cancel, self._move, self._requeue, self._hold]
        commands = [*[self._push] * 3, *others]
        while not end.wait(0.002):
            self._random.choice(commands)()
        for number in range(KEYS):
            self._engine.hold(TOPIC, key=f"k{number}", until=None)

    def _push(self) -> None:
        n = len(self.pushed)
        key, delay = f"k{self._random.randrange(KEYS)}", self._random.choice([0, 0, 0, 0.1])
        self.pushed.append(self._engine.push(n, topic=TOPIC, key=key, id=f"{self._seed}-{n}", delay=delay))

    def _some(self) -> str | None:
        alive = [id for id in self.pushed[-60:] if id not in self.cancelled]
        return self._random.choice(alive) if alive else None

    def _replace(self) -> None:
        if (id := self._some()) is not None and self._engine.get(id) is not None:
            _, key, unique = id.split("/")
            n = int(unique.split("-")[1])
            self._engine.push(n, topic=TOPIC, key=key, id=unique, on_conflict="replace")

    def _cancel(self) -> None:
        if (id := self._some()) is not None and self._engine.cancel(id) == Outcome.CANCELLED:
            self.cancelled.add(id)

    def _move(self) -> None:
        if (id := self._some()) is not None:
            self._engine.reschedule(id, delay=self._random.choice([0, 0.1]))

    def _requeue(self) -> None:
        if (id := self._some()) is not None:
            self._engine.requeue(id)

    def _hold(self) -> None:
        until = self._random.choice([None, time.time() + 0.2])
        self._engine.hold(TOPIC, key=f"k{self._random.randrange(KEYS)}", until=until)


@contextmanager
def operating(operators: list[Operator]) -> Iterator[None]:
    end = threading.Event()
    with ThreadPoolExecutor(len(operators)) as threads:
        runs = [threads.submit(each.run, end) for each in operators]
        try:
            yield
        finally:
            end.set()
            for run in runs:
                run.result()


def left_behind(servers: Servers, name: str, shards: int) -> dict[str, object]:
    """What is left of lanes where there are no tasks any more."""
    found: dict[str, object] = {}
    for keys in keys_of(name, shards):
        for suffix in ("keys", "placed", "alarms"):
            if members := servers.ask(keys.slot, "ZRANGE", f"{keys.prefix}{suffix}", 0, -1):
                found[f"{keys.shard} {suffix}"] = members
    return found


WINDOWS: dict[int, list[dict[str, Any]]] = {
    1: [{"per_key_rate": 500}, {"on_failure": "skip"}, {}, {"on_failure": "skip"}, {}],
    3: [{"per_key": 1}, {"per_key": 2, "per_key_rate": 300}, {}, {"per_key": 1}, {}],
}
"""How many of a key at most → what the topic has in turn."""


@pytest.mark.parametrize(("most", "resizes"), [(3, False), (3, True), (1, True)])
def test_never_more_than_allowed_and_nothing_left(
    url: str, name: str, servers: Servers, most: int, resizes: bool
) -> None:
    with Engine(url, name=name, shards=SHARDS) as engine, Engine(url, name=name, shards=SHARDS) as other:
        engine.limit(TOPIC, per_key=most)
        engine.start()
        other.start()
        operators = [Operator(engine, 1), Operator(other, 2)]
        with taking(engine, url, OPTIONS) as books:
            with operating(operators):
                for number, settings in enumerate(WINDOWS[most]):
                    time.sleep(0.8)
                    engine.limit(TOPIC, **{"per_key": most, **settings})
                    if resizes and number == 1:
                        change = engine.resize(12)
                if resizes:
                    assert change.wait(30), change.progress()
                    assert engine.resize(6).wait(60)
            drained(url, name, shards=12)
            # the alarm of a revoked lease is there until its deadline
            wait_until(lambda: not left_behind(servers, name, 12), "nothing is left of keys", timeout=10)
        dead = {task.id for task in listed(engine, state="dead")}
    found = account(books)
    found.assert_never_more(most)
    pushed = {id for each in operators for id in each.pushed}
    cancelled = {id for each in operators for id in each.cancelled}
    ended = {lease.id for lease in found.leases if lease.verb == "ack"}
    assert pushed - cancelled - dead - ended == set()
    # that the run was worth its name
    assert len(pushed) > 200
    assert len(cancelled) > 10
