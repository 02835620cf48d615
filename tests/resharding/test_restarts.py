"""A scan goes on by places that hold for one process of the server. One that is started again in the middle of a scan
has others, and what it would pass over is looked for once more.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.calls import node_info, resharding
from shardq.core.calls.request import Call
from shardq.core.drivers.sync import Driver
from shardq.core.operation import Confirm, Histories, run
from shardq.core.resharding import migration
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_upkeep import create_topology
from tests.resharding.migration import moving_ids
from tests.resharding.stepping import Stepped
from tests.support.states import FAR_S, claim

MANY = 300


@pytest.fixture
def url(own_server: Server) -> str:
    return own_server.url


@pytest.mark.promise
def test_windows_that_a_restart_hides_are_moved(
    own_server: Server, driver: Driver, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resharding, "SCAN", 20)
    ids = moving_ids(1, 2, MANY)
    with Engine(own_server.url, name=name, shards=1) as engine:
        engine.start()
        engine.push_many([Task("x", id=id, dedup=600) for id in ids])
        consumer = engine.consumer()
        left = MANY
        while left:
            deliveries = claim(consumer, min(100, left))
            consumer.ack(deliveries)
            left -= len(deliveries)
        engine.stop()
        engine.resize(2)
        cache = TopologyCache(name, run(driver, create_topology(name, 1)))
        source, target = cache.span()
        steps = Stepped("sweep", sweep(cache, source, MoveTokens("m"), MoveRate()))
        remembered = 0
        while remembered < 3:
            request = steps.request
            remembered += isinstance(request, Call) and request.script.name == "remember"
            steps.advance(driver.call)
        own_server.kill()
        own_server.restart()
        while not steps.done:
            steps.advance(driver.call)
        assert steps.result is False, "it does not know"
        while not run(driver, sweep(cache, source, MoveTokens("n"), MoveRate())):
            pass
        assert own_server.ask("ZCARD", target.seen) == MANY
        assert not own_server.ask("EXISTS", source.seen)


@pytest.mark.promise
def test_what_a_run_that_has_ended_confirmed_is_not_cleared_in_its_name(
    own_server: Server, driver: Driver, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes its time confirms a window of tasks, which are cleared over several trips. Between two of them
    the server comes back without the last ones that it had confirmed.
    """
    monkeypatch.setattr(migration, "GROUP", 2)
    monkeypatch.setattr(migration, "LONG_S", -1.0)
    ids = moving_ids(1, 2, 6)

    def confirm(step: Confirm) -> Histories:
        return {seal.slot: f"stream {driver.call(node_info.run_id(seal.slot))}" for seal in step.seals}

    with Engine(own_server.url, name=name, shards=1) as engine:
        engine.push_many([Task("x", id=id, delay=FAR_S) for id in ids])
        engine.resize(2)
        cache = TopologyCache(name, run(driver, create_topology(name, 1)))
        source, target = cache.span()
        steps = Stepped("sweep", sweep(cache, source, MoveTokens("m"), MoveRate()), confirm=confirm)
        (file,) = (own_server.folder / "appendonlydir").glob("*.incr.aof")
        earlier = Path(own_server.folder, "earlier")
        sent = list[str]()
        while sent.count("clear") < 2:
            if isinstance(steps.request, Call):
                sent.append(steps.request.script.name)
            if sent.count("put") == 3 and not earlier.exists():
                shutil.copy(file, earlier)
            if sent.count("clear") < 2:
                steps.advance(driver.call)
        own_server.kill()
        shutil.copy(earlier, file)
        own_server.start()
        while not steps.done:
            steps.advance(driver.call)
        while not run(driver, sweep(cache, source, MoveTokens("n"), MoveRate())):
            pass
        assert own_server.ask("ZCARD", target.due) == len(ids)
