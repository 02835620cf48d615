"""An operator's commands are carried out by a server that has no memory left: they are what makes room."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.errors import OutOfMemory
from tests.support.engines import SHARDS, Engines
from tests.support.states import FAR_S, STATES, put, ready_of, state_of
from tests.support.waiting import wait_until

Command = Callable[[Engine], object]


@pytest.fixture
def full(engines: Engines, own_server: Server, name: str) -> Iterator[Engine]:
    """A topic, and a task, in each state that a command may end; then the server's memory ends."""
    engine = engines.opened(own_server.url, name=name, shards=SHARDS, timeout=10.0)
    engine.start()
    for state in STATES:
        put(engine, state, topic=state, id="one", tags=["tag"])
    engine.pause("paused")
    engine.limit("limited", concurrency=1)
    engine.forward("forwarded", to="list")
    engine.every("hourly", interval=3600, payload="x")
    engine.every("halted", interval=3600, payload="x")
    engine.schedule("halted").pause()
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    yield engine
    own_server.ask("CONFIG", "SET", "maxmemory", "0")


def gone(*ids: str) -> Command:
    return lambda engine: all(state_of(engine, id) == "gone" for id in ids)


def states_of_schedules(engine: Engine) -> dict[str, bool]:
    return {schedule.name: schedule.paused for schedule in engine.schedules()}


COMMANDS: dict[str, tuple[Command, Command]] = {
    "pause": (lambda engine: engine.pause("mail"), lambda engine: "mail" in engine.topology.paused),
    "resume": (lambda engine: engine.resume("paused"), lambda engine: not engine.topology.paused),
    "limit": (lambda engine: engine.limit("mail", rate=5), lambda engine: "mail" in engine.topology.limits),
    "lift": (lambda engine: engine.limit("limited", None), lambda engine: not engine.topology.limits),
    "configure": (
        lambda engine: engine.configure(dead_count=10),
        lambda engine: engine.topology.settings.dead_count == 10,
    ),
    "forward": (lambda engine: engine.forward("mail", to="there"), lambda engine: "mail" in engine.topology.routes),
    "end of forwarding": (
        lambda engine: engine.forward("forwarded", to=None),
        lambda engine: not engine.topology.routes,
    ),
    "resize to more": (lambda engine: engine.resize(2 * SHARDS), lambda engine: engine.topology.shards == 2 * SHARDS),
    "resize to fewer": (lambda engine: engine.resize(2), lambda engine: engine.topology.shards == 2),
    "cancel": (lambda engine: engine.cancel("ready/one"), gone("ready/one")),
    "cancel_tag": (lambda engine: engine.cancel_all(tag="tag"), gone("scheduled/one", "ready/one", "dead/one")),
    "cancel_all": (lambda engine: engine.cancel_all(topic="scheduled"), gone("scheduled/one")),
    "purge a topic": (lambda engine: engine.purge("ready"), gone("ready/one")),
    "purge everything": (
        lambda engine: engine.purge(everything=True),
        gone("scheduled/one", "ready/one", "dead/one"),
    ),
    "requeue": (lambda engine: engine.requeue("dead/one"), lambda engine: ready_of(engine, "dead") == 1),
    "requeue_all": (lambda engine: engine.requeue_all("dead"), lambda engine: ready_of(engine, "dead") == 1),
    "every": (
        lambda engine: engine.every("daily", interval=86_400, payload="x"),
        lambda engine: "daily" in states_of_schedules(engine),
    ),
    "pause_schedule": (
        lambda engine: engine.schedule("hourly").pause(),
        lambda engine: states_of_schedules(engine)["hourly"],
    ),
    "resume_schedule": (
        lambda engine: engine.schedule("halted").resume(),
        lambda engine: not states_of_schedules(engine)["halted"],
    ),
    "remove_schedule": (
        lambda engine: engine.schedule("halted").remove(),
        lambda engine: "halted" not in states_of_schedules(engine),
    ),
}


@pytest.mark.parametrize("engines", ["sync"], indirect=True)  # what a full server refuses are scripts
@pytest.mark.parametrize(("command", "done"), COMMANDS.values(), ids=COMMANDS)
def test_a_full_server_carries_out(full: Engine, command: Command, done: Command) -> None:
    with pytest.raises(OutOfMemory):
        full.push("x")
    command(full)
    wait_until(lambda: bool(done(full)), "what was commanded is so")


def test_what_was_paused_is_drained(full: Engine, own_server: Server) -> None:
    """As the error of a refused push advises."""
    own_server.ask("CONFIG", "SET", "maxmemory", "0")
    full.push("x", topic="paused")
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    wait_until(lambda: ready_of(full, "paused") == 1, "it is ready")
    full.resume("paused")
    consumer = full.consumer("paused")
    consumer.ack(wait_until(lambda: consumer.claim(1), "it is given out"))
    assert ready_of(full, "paused") == 0


def test_a_full_server_is_resized_to_the_end(full: Engine, own_server: Server) -> None:
    """The number is in force at once. Nothing is moved into the server until it has room."""
    own_server.ask("CONFIG", "SET", "maxmemory", "0")
    ids = [full.push(n, delay=FAR_S) for n in range(50)]
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    full.resize(2 * SHARDS)
    own_server.ask("CONFIG", "SET", "maxmemory", "0")
    wait_until(lambda: not full.topology.priors, "all are where they belong", timeout=60)
    assert all(state_of(full, id) == "scheduled" for id in ids)
