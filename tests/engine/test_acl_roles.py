"""Users with the ACL that `shardq acl` prints do the whole work of their role, and nothing else; users with less, and
servers with commands switched off, are told what is missing.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import shardq
from cluster.sentinels import Sentinels
from cluster.server import Server
from shardq import Conflict, Engine, Outcome, Task
from shardq.cli.acl import ALL, rules
from shardq.core.dispatcher import retiring
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.slots import slot_of
from shardq.core.operation import run
from shardq.core.roles import FSYNCED, ROLES
from shardq.engine.access import EngineAccess
from shardq.errors import AccessDenied, DurabilityUnavailable
from shardq.features.history.recorder import counted
from shardq.http import app
from tests.dashboard.browsing import browsing
from tests.dashboard.test_bounds import PAGES
from tests.lua.contract import NAMES
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.states import FAR_S, STATES, claim, put, state_of
from tests.support.waiting import wait_until

SHARDS = 4

MakeUser = Callable[..., str]
"""The rules of a user → the URL with which it connects."""


@pytest.fixture
def user(url: str, servers: Servers) -> Iterator[MakeUser]:
    made: list[str] = []

    def make(*words: str) -> str:
        name, password = f"u{uuid.uuid4().hex[:12]}", secrets.token_hex(8)
        made.append(name)
        servers.ask_all("ACL", "SETUSER", name, f">{password}", *words)
        return url.replace("://", f"://{name}:{password}@")

    yield make
    for name in made:
        servers.ask_all("ACL", "DELUSER", name)


@pytest.fixture
def admin(url: str, name: str) -> Iterator[Engine]:
    """The rest of the fleet, on the same name, by a user that may do everything; opened by its first use."""
    engine = Engine(url, name=name, shards=SHARDS)
    yield engine
    engine.close()


# ---- what a role may


@pytest.mark.parametrize("role", ["producer", ALL])
def test_a_producer_does_its_work(user: MakeUser, engines: Engines, admin: Engine, name: str, role: str) -> None:
    admin.open()
    engine = engines.opened(user(*rules([role], name=name)), name=name)
    produces(engine)
    admin.resize(2 * SHARDS)
    produces(engine)
    produces(engines.opened(user(*rules([role], name=name)), name=name))


def produces(engine: Engine) -> None:
    id = f"mine-{secrets.token_hex(4)}"
    assert engine.push("x", delay=FAR_S, id=id, dedup=60).outcome == "pushed"
    assert engine.push("x", delay=FAR_S, id=id).outcome == "kept"
    assert engine.push("y", delay=FAR_S, id=id, on_conflict="replace").outcome == "replaced"
    with pytest.raises(Conflict):
        engine.push("x", delay=FAR_S, id=id, on_conflict="reject")
    others = engine.push_many([Task(n, delay=FAR_S, headers={"k": "v"}) for n in range(100)])
    assert engine.reschedule(id, delay=2 * FAR_S) == Outcome.MOVED
    assert engine.reschedule(others[0], delay=0) == Outcome.MOVED
    assert state_of(engine, id) == "scheduled"
    assert engine.cancel(id) == Outcome.CANCELLED
    assert state_of(engine, id) == "gone"
    tagged = engine.push("x", delay=FAR_S, tags=["mine"])
    assert engine.cancel_all(tag="mine").done == 1
    assert state_of(engine, tagged) == "gone"
    with contextlib.suppress(DurabilityUnavailable):  # there is no replica
        engine.push("x", delay=FAR_S, durability="replicated")
    engine.cancel(others[1])


def schedules(engine: Engine) -> None:
    engine.every("far", interval=FAR_S, payload="x")
    engine.every("far", interval=FAR_S, payload="y")
    assert engine.schedule("far").run().outcome == "pushed"
    engine.schedule("far").pause()
    engine.schedule("far").resume()
    assert [each.name for each in engine.schedules()] == ["far"]
    engine.schedule("far").remove()


def test_a_producer_that_waits_for_the_disk(engines: Engines, server_binary: Path, name: str) -> None:
    with Server(server_binary, options={"appendonly": "yes", "appendfsync": "always"}) as server:
        server.ask("ACL", "SETUSER", "me", "nopass", *rules(["producer"], name=name))
        engines.opened(server.url, name=name, shards=1)
        engine = engines.opened(f"redis://me:x@{server.address}", name=name)
        if server.ask("INFO", "server")["redis_version"].startswith("7.0."):
            with pytest.raises(DurabilityUnavailable, match="does not know WAITAOF"):
                engine.push("x", durability="fsynced")
        else:
            with pytest.raises(AccessDenied, match=r"allow its user \+waitaof"):
                engine.push("x", durability="fsynced")
            server.ask("ACL", "SETUSER", "me", *rules(["producer"], name=name, fsynced=True))
            assert engine.push("x", durability="fsynced")
        engine.close()


@pytest.mark.slow
@pytest.mark.timeout(240)  # a sentinel that stood still does nothing for 30 s
def test_a_producer_behind_sentinels(engines: Engines, server_binary: Path, name: str) -> None:
    with Sentinels(server_binary, password="pw9") as service:
        for server in (service.master, service.replica):
            server.ask("ACL", "SETUSER", "me", ">secret9", *rules(["producer"], name=name))
        engines.opened(service.url, name=name, shards=1)
        engine = engines.opened(service.url.replace(":pw9@", "me:secret9@"), name=name)
        produces(engine)
        engine.close()


@pytest.mark.parametrize("role", ["worker", ALL])
def test_a_worker_does_its_work(user: MakeUser, engines: Engines, admin: Engine, name: str, role: str) -> None:
    admin.start()
    engine = engines.opened(user(*rules([role], name=name)), name=name)
    consumer = engine.consumer("mail", lease=60)
    assert consumer.claim(1) == []
    admin.push_many([Task(n, topic="mail", delay=0.2) for n in range(3)])
    first, second, third = claim(consumer, 3)
    consumer.extend([first, second], 60)
    consumer.ack(first)
    consumer.retry(second, delay=FAR_S)
    consumer.bury(third, "of no use")
    states = [state_of(admin, delivery.id) for delivery in (first, second, third)]
    assert states == ["gone", "scheduled", "dead"]
    schedules(engine)
    works(engines, engine, admin)


def works(engines: Engines, engine: Engine, admin: Engine) -> None:
    """By a worker, within limits."""
    admin.limit("mail", rate=1000, concurrency=2)
    seen: list[int] = []
    worker = engine.worker(concurrency=4, lease=10)

    @worker.on("mail", max_attempts=3)
    def note(delivery: shardq.Delivery) -> None:
        if delivery.attempt == 1 and delivery.payload % 10 == 0:
            raise ValueError("once more")
        seen.append(delivery.payload)

    with engines.working(worker):
        admin.push_many([Task(n, topic="mail") for n in range(50)])
        wait_until(lambda: len(seen) >= 45, "those that succeed at once are done")
        wait_until(lambda: admin.stats().leased == 0, "all are settled")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["dispatcher", ALL])
def test_a_dispatcher_does_its_work(
    user: MakeUser,
    engines: Engines,
    admin: Engine,
    servers: Servers,
    url: str,
    name: str,
    role: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists, stream, there = [f"li*st of:{name}", f"mine:{name}"], f"events:{name}", f"there:{name}"
    acl = rules([role], name=name, lists=[*lists, f"stream:{stream}"])
    address = user(*acl)
    engine = engines.opened(address, name=name, shards=SHARDS)
    engine.start()
    admin.limit("c", rate=1000, concurrency=5)
    for topic, to, key in (("c", f"{url}#stream:{there}", there), ("d", f"stream:{stream}", stream)):
        admin.forward(topic, to=to)
        admin.push_many([Task(n, topic=topic) for n in range(20)])
        wait_until(lambda key=key: servers.ask(slot_of(key), "XLEN", key) >= 20, f"{key!r} has all")  # type: ignore[misc]
    for topic, to in zip(("a", "b"), lists, strict=True):
        admin.forward(topic, to=to, side="left" if topic == "a" else "right")
        admin.push_many([Task(n, topic=topic, delay=0.1) for n in range(20)])
        wait_until(lambda to=to: servers.ask(slot_of(to), "LLEN", to) == 20, f"{to!r} has all")  # type: ignore[misc]
        servers.ask(slot_of(to), "DEL", to)
    far = admin.push_many([Task(n, delay=FAR_S) for n in range(200)])
    admin.push("x", delay=FAR_S, id="mine", dedup=FAR_S)
    admin.cancel("mine")
    lapses = admin.push("x", topic="lapses", max_attempts=1)
    consumer = admin.consumer("lapses", lease=1.0)
    assert claim(consumer, 1)[0].id == lapses
    wait_until(lambda: state_of(admin, lapses) == "dead", "its lease has run out")
    left = shard_keys(name, 0)
    servers.ask(left.slot, "HSET", left.staged, "gone|of a process that died:1", "")
    for count in (2 * SHARDS, SHARDS - 1):
        admin.resize(count)
        wait_until(lambda: admin.resize(dry_run=True).progress().done, "all tasks are moved", timeout=60)
    wait_until(lambda: not servers.ask(left.slot, "EXISTS", left.staged), "marks are removed at the end of a change")
    assert engine.stats().scheduled == len(far)
    admin.every("tick", interval=0.5, topic="ticks")
    wait_until(lambda: "ticks" in engine.stats().topics, "its scheduler pushes")
    admin.schedule("tick").remove()
    monkeypatch.setattr(retiring, "IDLE_MS", 0)
    admin.purge(topic="lapses")
    with Engine(address, name=name) as another:
        driver, cache = EngineAccess(another).open_driver(), EngineAccess(another).cache
        assert None not in run(driver, counted(cache)).values()
        for _ in range(4):  # the consumer may be noted as one that waits
            run(driver, retiring.retire(cache))
    assert "lapses" not in admin.stats().topics
    engine.stop()


@pytest.mark.parametrize("role", ["operator", ALL])
def test_an_operator_does_its_work(user: MakeUser, engines: Engines, admin: Engine, name: str, role: str) -> None:
    admin.start()
    engine = engines.opened(user(*rules([role], name=name)), name=name)
    ids = admin.push_many([Task(n, topic="mail") for n in range(10)])
    consumer = admin.consumer("mail", lease=60)
    consumer.bury(claim(consumer, 10), "of no use")
    assert {task.id for task in engine.tasks(topic="mail", state="dead")} == set(ids)
    for state in STATES:
        engine.tasks(state=state)
    engine.tasks(holder="nobody")
    assert engine.forecast("hour").total == 0
    assert engine.requeue(ids[0]) == Outcome.REQUEUED
    assert engine.requeue_all("mail").done == 9
    engine.pause("mail")
    engine.limit("other", rate=5, concurrency=5)
    engine.limit("mail", rate=5)
    engine.configure(dead_count=10**6)
    engine.forward("mail", to=f"list of:{name}")
    engine.forward("mail", to=None)
    engine.limit("mail", None)
    wait_until(lambda: engine.stats().ready == 10, "they are ready again")
    assert engine.cancel(ids[0]) == Outcome.CANCELLED
    assert engine.reschedule_all(state="ready", delay=FAR_S).done == 9
    assert engine.reschedule_all(topic="mail", delay=0).done == 9
    assert engine.cancel_all(topic="other").done == 0
    engine.resize(2 * SHARDS, dry_run=True)
    engine.resize(2 * SHARDS)
    engine.resize(dry_run=True)
    engine.every("far", interval=FAR_S)
    engine.schedule("far").remove()
    assert engine.purge(everything=True) == 9
    engine.resume("mail")


@pytest.mark.slow
def test_a_viewer_sees_the_dashboard_and_changes_nothing(user: MakeUser, admin: Engine, name: str) -> None:
    admin.start()
    for state in STATES:
        put(admin, state, topic=state)
    admin.every("far", interval=FAR_S)
    id = admin.push("x", delay=FAR_S, id="mine", tags=["tag"])
    admin.push_many([Task(n, topic="keyed", key="customer-7") for n in range(3)])
    wait_until(lambda: admin.stats().held == 2, "two wait for the first")
    admin.push("x", topic="failing", key="customer-7")
    consumer = admin.consumer("failing")
    (failing,) = claim(consumer, 1)
    consumer.retry(failing, delay=FAR_S, reason="HTTP 500")
    with Engine(user(*rules(["viewer"], name=name)), name=name) as engine:
        assert [(each.key, each.held, each.ready) for each in engine.keys("keyed")] == [("customer-7", 2, 1)]
        assert [(each.failures, each.reason) for each in engine.keys("failing")] == [(1, "HTTP 500")]
        (dead,) = engine.tasks(newest=True)
        for shards in (SHARDS, 2 * SHARDS):
            admin.resize(shards)
            with browsing(app(engine, read_only=True)) as client:
                one = "/topics/one?topic=keyed"
                for path in (*PAGES, "/", one, "/shards", "/schedules", "/future?horizon=day", f"/tasks/one?id={id}"):
                    answer = client.get(path)
                    assert answer.status_code == 200, (path, answer.text)
                    assert "ermission" not in answer.text, path
            seen = engine.health()
            assert not [text for text in seen.warnings if "allow its user" in text], seen.warnings
            assert len(engine.schedules()) == 1
        for change in (
            lambda: engine.push("y"),
            lambda: engine.cancel(id),
            lambda: engine.reschedule(id, delay=5),
            lambda: engine.requeue(dead.id),
            lambda: engine.purge(everything=True),
            lambda: engine.pause("mail"),
            lambda: engine.configure(dead_count=9),
            lambda: engine.schedule("far").remove(),
            lambda: engine.consumer("ready").claim(1),
        ):
            with pytest.raises(AccessDenied):
                change()
        assert state_of(admin, id) == "scheduled"


# ---- keys


def test_a_producer_may_not_begin_with_keys(user: MakeUser, engines: Engines, admin: Engine, name: str) -> None:
    admin.open()
    engine = engines.opened(user(*rules(["producer"], name=name)), name=name)
    for push in (
        lambda: engine.push("x", topic="t", key="k"),
        lambda: engine.push_many([Task("x", topic="t", key="k")]),
        lambda: list(engine.push_iter([Task("x", topic="t", key="k")])),
    ):
        with pytest.raises(AccessDenied, match=r"has no keys yet, .* call engine\.limit\(topic, per_key=1\) once"):
            push()
    assert state_of(engine, engine.push("x", topic="t", delay=FAR_S)) == "scheduled"
    admin.limit("t", per_key=1)
    id = engine.push("x", topic="t", key="k", delay=FAR_S)
    assert engine.reschedule(id, delay=2 * FAR_S) == Outcome.MOVED
    assert engine.cancel(id) == Outcome.CANCELLED
    assert engine.push("x", topic="t", key="k", id="mine", delay=FAR_S, tags=["a"]).outcome == "pushed"
    assert engine.push("y", topic="t", key="k", id="mine", delay=FAR_S, on_conflict="replace").outcome == "replaced"
    assert engine.cancel("t/k/mine") == Outcome.CANCELLED


def test_each_role_does_its_work_on_tasks_with_keys(user: MakeUser, engines: Engines, admin: Engine, name: str) -> None:
    admin.open()
    of = {role: engines.opened(user(*rules([role], name=name)), name=name) for role in ROLES}
    of["operator"].limit("t", per_key=1, per_key_rate=1000)
    of["dispatcher"].start()
    consumer, push = of["worker"].consumer("t"), of["producer"].push

    def buried(delivery: shardq.Delivery) -> None:
        consumer.bury(delivery, "broken")
        of["operator"].requeue(delivery.id)

    again: list[Callable[[shardq.Delivery], object]] = [
        lambda each: consumer.retry(each, delay=0),
        lambda each: consumer.snooze(each, 0),
        buried,
    ]
    for step in range(2):
        ids = [push(n, topic="t", key="k") for n in range(3)]
        for id in ids:
            (delivery,) = claim(consumer, 1)
            assert delivery.id == id
            consumer.extend(delivery, 30)
            consumer.ack(delivery)
        for settle in again:
            id = push("x", topic="t", key="k")
            settle(claim(consumer, 1)[0])
            (delivery,) = claim(consumer, 1)
            assert delivery.id == id
            consumer.ack(delivery)
        of["operator"].hold("t", key="k", until=time.time() + 60)
        held = push("held", topic="t", key="k")
        wait_until(lambda: state_of(of["viewer"], held) == "held", "it is held")  # noqa: B023  called at once
        of["operator"].hold("t", key="k", until=None)
        consumer.ack(claim(consumer, 1))
        far = [push(n, topic="t", key=f"k{n}", delay=FAR_S) for n in range(20)]
        if not step:
            of["operator"].resize(2 * SHARDS)
            wait_until(lambda: admin.resize(dry_run=True).progress().done, "all tasks are moved", timeout=60)
        assert {state_of(of["viewer"], id) for id in far} == {"scheduled"}
        assert of["operator"].cancel_all(topic="t", key="k3").done == 1
        assert of["operator"].purge("t") >= 19


# ---- what it may not


@pytest.mark.parametrize("role", [*ROLES, ALL])
def test_a_role_may_do_nothing_else(
    user: MakeUser, engines: Engines, admin: Engine, servers: Servers, name: str, role: str
) -> None:
    admin.open()
    url = user(*rules([role], name=name))
    login, _, _ = url.partition("://")[2].partition("@")
    username, _, password = login.partition(":")
    with Engine(EngineAccess(admin).options.url, name=f"{name}-other", shards=1) as other:
        forbidden = [
            *(
                ("FLUSHALL",),
                ("FLUSHDB",),
                ("CONFIG", "GET", "*"),
                ("KEYS", "*"),
                ("SCAN", "0"),
                ("DEBUG", "SLEEP", "0"),
            ),
            *(
                ("SCRIPT", "FLUSH"),
                ("ACL", "LIST"),
                ("MONITOR",),
                ("SHUTDOWN",),
                ("SUBSCRIBE", "x"),
                ("PSUBSCRIBE", "*"),
            ),
            *(("CLIENT", "KILL", "TYPE", "normal"), ("REPLICAOF", "NO", "ONE"), ("FUNCTION", "LIST")),
            *(("HGETALL", control_keys(other.name).topology), ("GET", "x"), ("SET", "x", "y"), ("DEL", "x")),
            ("SPUBLISH", control_keys(other.name).news, "x"),
            ("EVAL", "return redis.call('HGETALL', KEYS[1])", "1", control_keys(other.name).topology),
            ("EVAL", "return redis.call('FLUSHALL')", "0"),
        ]
        where = servers.master(control_keys(other.name).slot).connection_pool.connection_kwargs
        client = redis.Redis(host=where["host"], port=where["port"], username=username, password=password)
        try:
            for words in forbidden:
                with pytest.raises(redis.ResponseError, match=r"(?i)permission|ACL failure|can't run|can't access"):
                    client.execute_command(*words)  # type: ignore[no-untyped-call]
        finally:
            client.close()
    with pytest.raises(AccessDenied):
        engines.opened(url, name=f"{name}-other")


def test_the_table_has_every_script_and_every_command() -> None:
    every = [*ROLES.values(), FSYNCED]
    assert sorted({name for role in every for name in role.scripts}) == NAMES
    sent: set[str] = set()
    for path in Path(shardq.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for words in re.findall(
            r"(?:words=|pack\(|_packed|Ask\(address, |Ask\(master, )\(((?:\"[A-Za-z-]+\"(?:, )?)+)", text
        ):
            sent.add("|".join(re.findall(r"\"([A-Z]{2,}|USAGE)\"", words)).lower())
    # settings are read where that is allowed, HELLO and AUTH always are, and sentinels have users of their own
    beyond = {"config|get", "hello", "auth", "sentinel", "sentinel|get-master-addr-by-name", ""}
    known = {command for role in every for command in role.commands}
    assert {command for command in sent if command not in known and command.partition("|")[0] not in known} <= beyond


# ---- less than that


WITHOUT = {
    "-info": "settings that lose tasks, and what replicas have, can't be told",
    "-wait": "pushes with durability= are refused",
    "-client": "connections have no name in CLIENT LIST",
}


def test_what_is_not_needed_is_done_without_and_told(
    user: MakeUser, engines: Engines, admin: Engine, servers: Servers, name: str
) -> None:
    whole = engines.opened(user(*rules([ALL], name=name)), name=name, shards=SHARDS)
    denied = user(*rules([ALL], name=name), *WITHOUT)
    engine = engines.opened(denied, name=name)
    engine.start()
    id = engine.push("x")
    (delivery,) = claim(engine.consumer(), 1)
    assert delivery.id == id
    health = engine.health()
    stats = health.stats
    assert stats.server == whole.stats().server
    assert health.reasons == []
    assert stats.replication == {}
    for rule, so in WITHOUT.items():
        found = [text for text in health.warnings if text.startswith(so)]
        assert len(found) == len({shard.node for shard in stats.shards})
        command = "client|setname" if rule == "-client" else rule[1:]
        assert all(f"allow its user +{command}; `shardq acl`" in text for text in found)


def test_channels_that_are_missing_are_told(user: MakeUser, engines: Engines, name: str) -> None:
    engine = engines.opened(user("on", "~*", "+@all", "resetchannels"), name=name, shards=1)
    engine.push("x", delay=FAR_S)
    (text,) = [text for text in engine.health().warnings if "lets this process publish nothing" in text]
    assert "allow its user the channels &shardq:{NAME:* and &shardq:{NAME}:*; `shardq acl`" in text


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("~*", "&*", "+@all", "-evalsha"), "evalsha"),
        (("~*", "&*", "+@all", "-eval", "-hset"), "hset|every command that the script runs|eval"),
        (("~other:*", "&*", "+@all"), "the keys ~shardq:"),
    ],
    ids=["evalsha", "hset", "keys"],
)
def test_what_is_needed_is_told_at_open(
    user: MakeUser, engines: Engines, name: str, words: tuple[str, ...], missing: str
) -> None:
    with pytest.raises(AccessDenied) as caught:
        engines.opened(user("on", *words), name=name, shards=1)
    told = str(caught.value)
    assert re.search(rf"allow its user \+?({missing})", told), told
    assert told.endswith("`shardq acl` prints the line with all that it needs")


# ---- servers with commands switched off

OPTIONAL = ("CONFIG", "FLUSHALL", "FLUSHDB", "KEYS", "DEBUG", "INFO", "SCRIPT", "CLIENT", "WAIT", "SHUTDOWN")


def without(*commands: str) -> dict[str, str]:
    return {f"rename-command {command}": '""' for command in commands}


def test_a_server_without_what_is_not_needed(engines: Engines, server_binary: Path, name: str) -> None:
    with Server(server_binary, options=without(*OPTIONAL)) as server:
        engine = engines.opened(server.url, name=name, shards=SHARDS)
        engine.start()
        id = engine.push("x")
        (delivery,) = claim(engine.consumer(), 1)
        assert delivery.id == id
        health = engine.health()
        assert health.stats.server.split()[0] in ("redis", "valkey")
        told = [text for text in health.warnings if "rename-command" in text]
        assert [text.partition(": ")[0] for text in told] == [
            "settings that lose tasks, and what replicas have, can't be told",
            "pushes with durability= are refused, and beside replicas no task is moved to another shard",
            "connections have no name in CLIENT LIST",
        ]
        with pytest.raises(AccessDenied, match=r"INFO was not done: unknown command 'INFO'; .* rename-command"):
            engine.push("x", durability="replicated")
        engine.close()


@pytest.mark.parametrize("command", ["EVALSHA", "EVAL", "HGETALL"])
def test_a_server_without_what_is_needed(engines: Engines, server_binary: Path, name: str, command: str) -> None:
    with Server(server_binary, options=without(command)) as server:
        engine = engines.make(server.url, name=name, shards=SHARDS)
        with pytest.raises(AccessDenied) as caught:
            engine.open()
        told = str(caught.value)
        assert "rename-command lines" in told
        assert command in told or "nknown" in told
        assert len(told) < 400, "no script is quoted"
        engine.close()


def test_a_viewer_waits_for_a_shard_that_is_not_told_yet(
    user: MakeUser, engines: Engines, admin: Engine, name: str, servers: Servers
) -> None:
    """Of a change of the topology some shards hear a moment after others, and a viewer may not tell them."""
    id = admin.push("x", delay=FAR_S)
    viewer = engines.opened(user(*rules(["viewer"], name=name)), name=name)
    keys = shard_keys(name, admin.topology.shard_of(id))
    before = servers.ask(keys.slot, "HGET", keys.meta, "epoch")
    admin.configure(max_attempts=7)
    assert state_of(viewer, id) == "scheduled"  # it knows the newer one
    servers.ask(keys.slot, "HSET", keys.meta, "epoch", before)
    told = threading.Timer(0.2, lambda: admin.get(id))
    told.start()
    assert state_of(viewer, id) == "scheduled"
    told.join()
