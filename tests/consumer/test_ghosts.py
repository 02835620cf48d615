"""A claim and a forward pass over ghosts, the entries of tasks that were replaced or have expired, and find what is
behind.
"""

from __future__ import annotations

import time

import pytest

from shardq import Consumer, Engine, Task
from shardq.core.layout.slots import slot_of
from tests.support.servers import Servers
from tests.support.states import FAR_S
from tests.support.traffic import script_calls
from tests.support.waiting import wait_until

MANY = 8000
"""More in each shard than one script passes over."""


@pytest.fixture(params=["replaced", "expired"])
def with_ghosts(request: pytest.FixtureRequest, running: Engine) -> Engine:
    """So many of them, and behind them one task."""
    ready = 1
    """Those that were replaced are no tasks; that one has expired, only who takes it notices."""
    if request.param == "replaced":
        running.push_many([Task(n, id=f"i{n}") for n in range(MANY)])
        wait_until(lambda: running.stats().ready == MANY, "all are ready")
        running.push_many([Task(n, id=f"i{n}", on_conflict="replace", delay=FAR_S) for n in range(MANY)])
    else:
        running.push_many([Task(n, expires=0.05) for n in range(MANY)])
        wait_until(lambda: running.stats().ready == MANY, "all are ready")
        until = time.monotonic() + 0.1
        wait_until(lambda: time.monotonic() > until, "all have expired")
        ready += MANY
    running.push("last")
    wait_until(lambda: running.stats().ready == ready, "it is behind them")
    return running


@pytest.mark.parametrize("wait", [0.0, 30.0])
def test_a_claim_finds_what_is_behind_them(
    with_ghosts: Engine, servers: Servers, consumer: Consumer, wait: float
) -> None:
    with_ghosts.stop()
    before = script_calls(servers)
    (delivery,) = consumer.claim(1, wait=wait)
    assert delivery.payload == "last"
    # a thousand at once; and some looks at shards where nothing is left
    assert script_calls(servers) - before < MANY / 1000 + 40


def test_forwarding_finds_what_is_behind_them(with_ghosts: Engine, servers: Servers, name: str) -> None:
    theirs = f"{name}-theirs"
    with_ghosts.forward("", to=theirs)
    wait_until(lambda: servers.ask(slot_of(theirs), "LLEN", theirs) == 1, "it has arrived")
    servers.ask(slot_of(theirs), "DEL", theirs)
