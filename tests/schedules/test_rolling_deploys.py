"""A deploy declares old and new in turns, from many processes: no occurrence is lost, doubled or late by that."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shardq import Engine
from shardq.features.schedules.every import CatchUp
from tests.schedules.runs import Runs, server_ms
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S

DECLARERS = 4
INTERVAL_MS = 200


@pytest.fixture
def declarers(url: str, name: str) -> Iterator[list[Engine]]:
    engines = [Engine(url, name=name, shards=4, timeout=30.0) for _ in range(DECLARERS)]
    engines[0].start()
    yield engines
    for engine in engines:
        engine.close()


# with "none" an occurrence that is not pushed in time would be left out
@pytest.mark.slow
@pytest.mark.parametrize(("catch_up", "topics"), [("none", ("t0", "t0")), ("one", ("t0", "t1"))])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_old_and_new_declared_in_turns(
    declarers: list[Engine], servers: Servers, url: str, name: str, catch_up: CatchUp, topics: tuple[str, str]
) -> None:
    running = declarers[0]

    def declare(engine: Engine, turn: int) -> None:
        interval, topic = INTERVAL_MS / 1000, topics[turn % 2]
        engine.every("tick", interval=interval, topic=topic, payload=turn % 2, catch_up=catch_up)

    with Runs(url, name, ("t0", "t1")) as runs:
        declare(running, 0)
        wait_until(lambda: len(runs) > 2, "it runs", timeout=SOON_S)
        ended = threading.Event()

        def deploy(engine: Engine, first: int) -> None:
            turn = first
            while not ended.wait(0.05):
                declare(engine, turn)
                turn += 1

        threads = [threading.Thread(target=deploy, args=(engine, n)) for n, engine in enumerate(declarers)]
        for thread in threads:
            thread.start()
        began_ms = server_ms(servers, name)
        wait_until(lambda: runs.instants()[-1] > began_ms + 3000, "three seconds of occurrences", timeout=SOON_S)
        ended.set()
        for thread in threads:
            thread.join()
        declare(running, 2)
        told_ms = server_ms(servers, name)
        wait_until(lambda: runs.instants()[-1] > told_ms + 1500, "the last declaration is in force", timeout=SOON_S)
        running.schedule("tick").remove()
    runs.check(INTERVAL_MS)
    assert runs.seen[-1][1] == 0
    assert {payload for _, payload in runs.seen} == {0, 1}, "both were in force"
