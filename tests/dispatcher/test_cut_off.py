"""A dispatcher that lives, and can't reach some of its shards: others serve them, until it can again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from shardq import Engine, Task
from shardq.core.dispatcher.membership import PERIOD_S
from shardq.core.fleet.member import servers as serving
from shardq.core.layout.keys import control_keys, shard_keys
from tests.dispatcher.shards import id_in, mine
from tests.support.findings import red
from tests.support.servers import Servers
from tests.support.states import state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SHARDS = 6
ALL = set(range(SHARDS))


@dataclass
class User:
    """A user of all servers, from whom shards can be taken away."""

    servers: Servers
    engine: str
    name: str

    def may_reach(self, shards: Collection[int]) -> None:
        prefixes = [control_keys(self.engine).prefix, *(shard_keys(self.engine, shard).prefix for shard in shards)]
        patterns = [f"~{prefix}*" for prefix in prefixes]
        rights = ["on", "nopass", "+@all", "allchannels", "resetkeys", *patterns]
        self.servers.ask_all("ACL", "SETUSER", self.name, *rights)


@pytest.fixture
def user(servers: Servers, name: str) -> Iterator[User]:
    made = User(servers, name, f"u{uuid.uuid4().hex}")
    made.may_reach(ALL)
    yield made
    servers.ask_all("ACL", "DELUSER", made.name)


@pytest.fixture
def cut(user: User, url: str, name: str) -> Iterator[Engine]:
    """A process that the user's rights bind."""
    with Engine(url.replace("://", f"://{user.name}:x@"), name=name, shards=SHARDS, timeout=10.0) as engine:
        engine.start()
        yield engine


@pytest.fixture
def engine(cut: Engine, url: str, name: str) -> Iterator[Engine]:
    """Another one, which they don't."""
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as engine:
        engine.start()
        wait_until(lambda: len(mine(engine)) == len(mine(cut)) == SHARDS // 2, "they share")
        yield engine


def served_by(engine: Engine) -> dict[int, str]:
    """Shard → the dispatcher that says it serves it."""
    return {shard: member.name for shard, member in serving(engine.fleet()).items()}


def lateness_in(engine: Engine, shards: Collection[int]) -> float:
    """How long tasks that are due now take to become ready in all of these shards. They wake the pollers, each of which
    may sleep for 20 s.
    """
    draw = uuid.uuid4().hex
    ids = [id_in(engine, shard, draw) for shard in shards]
    engine.push_many([Task("x", id=id) for id in ids])
    began = time.monotonic()
    wait_until(lambda: all(state_of(engine, id) == "ready" for id in ids), "all are ready", timeout=20)
    return time.monotonic() - began


def test_others_serve_what_a_dispatcher_can_not_reach(
    cut: Engine, engine: Engine, user: User, caplog: pytest.LogCaptureFixture
) -> None:
    own = mine(cut)
    away = set(sorted(own)[:2])
    user.may_reach(ALL - away)
    late = lateness_in(engine, away)
    assert PERIOD_S - 0.5 < late < PERIOD_S + 4  # as if its process were dead
    wait_until(lambda: mine(engine) == ALL - own | away, "another serves what is out of reach")
    assert mine(cut) == own - away  # and keeps what it can reach
    assert lateness_in(engine, ALL) < 1
    wait_until(lambda: set(served_by(engine)) == ALL, "all say what they serve")
    assert len({served_by(engine)[shard] for shard in away | (ALL - own)}) == 1
    assert any(f"that this process can't reach: {sorted(away)}" in each.getMessage() for each in caplog.records)
    assert "failing_poller" in red(cut.health())
    assert "failing_poller" not in red(engine.health())

    user.may_reach(ALL)
    wait_until(lambda: mine(cut) == own, "it reaches them again")
    wait_until(lambda: mine(engine) == ALL - own, "the other one leaves them to it")
    assert any("reaches its shards again" in each.getMessage() for each in caplog.records)


def test_most_of_the_fleet_is_cut_off(cut: Engine, engine: Engine, user: User, url: str, name: str) -> None:
    """One of four processes reaches all shards, and serves them all."""
    with ExitStack() as others:
        bound = [cut]
        for _ in range(2):
            bound.append(others.enter_context(Engine(url.replace("://", f"://{user.name}:x@"), name=name)))
            bound[-1].start()
        wait_until(lambda: _shared(engine, *bound), "each shard has one poller")
        user.may_reach(mine(engine))
        lateness_in(engine, ALL)
        assert mine(engine) == ALL
        user.may_reach(ALL)
        wait_until(lambda: _shared(engine, *bound), "each shard has one poller again")


def _shared(*engines: Engine) -> bool:
    """Each shard has one poller."""
    return sorted(shard for each in engines for shard in mine(each)) == sorted(ALL)
