"""What one engine exports, another restores: each task in every state, settings, schedules and dedup windows."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from shardq import AsyncEngine, Engine, Task
from shardq.core.operation import run
from shardq.engine.access import EngineAccess
from shardq.errors import BadInput, InvalidOption
from shardq.features.transfer.importing import Run
from tests.support.listed import listed
from tests.support.states import FAR_S, claim, ready_of
from tests.support.waiting import wait_until

SINGLE = pytest.mark.parametrize("url", ["single"], indirect=True)
ON_BOTH = pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)


class Reversed:
    name = "reversed"

    def encode(self, payload: Any) -> bytes:
        return bytes(reversed(payload.encode())) + b"\xff"

    def decode(self, data: bytes) -> Any:
        return bytes(reversed(data[:-1])).decode()


@pytest.fixture
def source(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=3) as engine:
        yield engine


@pytest.fixture
def target(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=f"{name}.to", shards=5) as engine:
        yield engine


def filled(engine: Engine, url: str) -> None:
    """Tasks in every state, of every codec, with every option."""
    engine.start()
    engine.limit("calls", per_key=1)
    engine.limit("mail", rate=500, concurrency=7)
    engine.forward("letters", to="redis://:secret@127.0.0.1:7/0#letters")
    engine.pause("paused")
    engine.pause("until", until=dt.datetime(2090, 1, 1, tzinfo=dt.UTC))
    engine.configure(max_attempts=9, dead_age=7 * 86_400)
    engine.every("nightly", interval=86_400, payload={"n": 1}, topic="reports", tags=["night"])
    engine.push_many([Task({"n": n}, delay=FAR_S + n) for n in range(20)])
    engine.push("paid", topic="hooks", url="https://customer.example/in", delay=FAR_S)
    every_option: dict[str, Any] = {
        "headers": {"a": "ż"},
        "tags": ["red", "blue"],
        "max_attempts": 4,
        "expires": 9 * FAR_S,
    }
    engine.push("x", delay=FAR_S, topic="mail", id="own", dedup=900, **every_option)
    engine.push(msgspec.Raw(b'{\n  "pretty": 1.0\n}'), delay=FAR_S, id="pretty")
    engine.push(msgspec.Raw(b' {"blanks" : "\xc5\xbc"} '), delay=FAR_S, id="blanks")
    for codec, payload in (
        ("raw", b"text \xc5\xbc"),
        ("raw", b"\xff\x00"),
        ("msgpack", {1: b"\xff"}),
        (Reversed(), "secret"),
    ):
        with Engine(url, name=engine.name, codec=codec) as other:
            other.push(payload, delay=FAR_S)
    # ready, leased, dead, and one that waits for a retry, each with what has failed before
    engine.push_many([Task(n, topic="work") for n in range(5)])
    wait_until(lambda: ready_of(engine, "work") == 5, "they are ready")
    consumer = engine.consumer("work", lease=600)
    first, second, third, _ = claim(consumer, 4)
    consumer.retry(first, delay=FAR_S, reason="Traceback\n  File x\nKeyError: 'ż'")
    consumer.bury(second, "Traceback\n  File y\nValueError: no")
    consumer.retry(third, delay=0, reason="again")
    wait_until(lambda: ready_of(engine, "work") == 2, "it is ready again")
    # of a key one is out, one is held, and one is not due yet
    for n, delay in enumerate((0, 0, FAR_S)):
        engine.push(n, topic="calls", key="k", id=f"t{n}", delay=delay)
    wait_until(lambda: ready_of(engine, "calls") == 1, "the first is ready")
    # gone, with an open window
    engine.push("done", id="done", topic="gone", dedup=900)
    engine.cancel("gone/done")
    engine.stop()


def lines_of(engine: Engine, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in engine.export(**options)]


def tasks_in(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((line for line in lines if "state" in line), key=lambda line: line["id"])


def others_in(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**line, "at": None, "engine": None} for line in lines if "state" not in line and "seen" not in line]


@ON_BOTH
def test_everything_is_as_it_was(source: Engine, target: Engine, url: str) -> None:
    filled(source, url)
    lines = [*source.export(secrets=True)]
    told = [json.loads(line) for line in lines]
    restored = target.restore(lines)
    assert restored
    assert (restored.restored, restored.kept, restored.bad, restored.schedules) == (len(tasks_in(told)), 0, 0, 1)
    assert target.stats().settings == source.stats().settings
    target.start()
    wait_until(lambda: target.stats().ready == source.stats().ready + source.stats().leased, "what was ready is")
    target.stop()
    again = lines_of(target, secrets=True)
    assert tasks_in(again) == tasks_in(told)
    assert others_in(again) == others_in(told)
    windows = [{line["seen"]: line["until"] for line in each if "seen" in line} for each in (told, again)]
    assert windows[0] == windows[1]
    assert {*windows[0]} == {"mail/own", "gone/done"}
    assert target.push("done", id="done", topic="gone", dedup=900).outcome == "seen"
    # the key goes on with what was out
    (state, *_) = [(task.state, task.id) for task in target.tasks("calls", key="k")]
    assert state == ("ready", "calls/k/t0")
    # once more: all is there
    kept = target.restore(lines)
    assert (kept.restored, kept.kept, kept.topics, kept.schedules) == (0, restored.restored, 0, 0)


@SINGLE
def test_payloads_are_the_same_bytes(source: Engine, target: Engine, url: str) -> None:
    filled(source, url)
    target.restore(source.export())
    found = [{task.id: task.payload for task in listed(engine, decode=False)} for engine in (source, target)]
    assert found[0] == found[1]
    assert b'{\n  "pretty": 1.0\n}' in found[0].values()


@SINGLE
def test_what_has_failed_dies_after_as_many_attempts_as_before(source: Engine, target: Engine) -> None:
    source.start()
    id = source.push(1, topic="work", max_attempts=2)
    consumer = source.consumer("work")
    consumer.retry(claim(consumer, 1), delay=0, reason="first")
    wait_until(lambda: ready_of(source, "work") == 1, "it is ready again")
    source.stop()
    target.restore(source.export())
    target.start()
    consumer = target.consumer("work")
    (delivery,) = claim(consumer, 1)
    assert (delivery.attempt, delivery.failures) == (2, 1)
    consumer.retry(delivery, delay=0, reason="second")
    dead = target.get(id)
    assert dead is not None
    assert (dead.state, [attempt.reason for attempt in dead.attempts]) == ("dead", ["first", "second"])


@SINGLE
def test_secrets_of_routes_stay_at_home_unless_they_are_asked_for(source: Engine, target: Engine) -> None:
    source.forward("letters", to="redis://:secret@127.0.0.1:7/0#letters")
    source.forward("here", to="stream:events", maxlen=5)
    lines = [*source.export()]
    assert b"secret@" not in b"".join(lines)
    restored = target.restore(lines)
    assert (restored.topics, len(restored.notes)) == (1, 1)
    assert "redis://:***@127.0.0.1:7/0#letters" in restored.notes[0]
    assert {*target.topology.routes} == {"here"}
    assert target.restore(source.export(secrets=True)).topics == 1
    assert target.topology.routes == source.topology.routes


@SINGLE
def test_settings_that_are_there_stay(source: Engine, target: Engine) -> None:
    source.limit("mail", rate=5)
    source.configure(max_attempts=3, dead_count=7)
    source.every("nightly", interval=60, payload=1)
    target.limit("mail", rate=9)
    target.configure(max_attempts=8)
    target.every("nightly", interval=90, payload=2)
    target.restore(source.export())
    assert target.topology.limits["mail"].rate == 9
    settings = target.stats().settings
    assert (settings.max_attempts, settings.dead_count) == (8, 7)
    assert [schedule.interval for schedule in target.schedules()] == [90]


@SINGLE
def test_a_filter(source: Engine, url: str) -> None:
    filled(source, url)

    def ids(**options: Any) -> set[str]:
        return {line["id"] for line in tasks_in(lines_of(source, **options))}

    filters: list[Any] = [{"topic": ""}, {"topic": "work"}, {"state": "dead"}, {"tag": "red"}, {"failed": True}]
    for options in [*filters, {"state": "leased", "topic": "work"}]:
        found = {task.id for task in listed(source, **options)}
        assert found, options
        assert ids(**options) == found, options
    assert ids(key="k") == ids(topic="calls")
    far = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=FAR_S + 10)
    assert ids(due=(far, None)) == {task.id for task in listed(source, due=(far, None))} != set()
    lines = lines_of(source, topic="calls")
    assert {line["topic"] for line in lines if "settings" in line and "topic" in line} == {"calls"}
    assert not [line for line in lines if "schedule" in line or "seen" in line]
    with pytest.raises(InvalidOption):
        source.export(state="asleep")  # type: ignore[arg-type]


@SINGLE
def test_a_dry_run_changes_nothing(source: Engine, target: Engine, url: str) -> None:
    filled(source, url)
    target.push("mine", id="own", topic="mail", delay=FAR_S)
    lines = [*source.export(), b'{"payload": 1}\n', b'{"payload": 1, "id": "mail/own"}\n']
    before = lines_of(target)
    would = target.restore(lines, dry_run=True)
    assert lines_of(target)[1:] == before[1:]
    did = target.restore(lines)
    assert (would.restored, would.pushed, would.kept, would.schedules) == (
        did.restored,
        did.pushed,
        did.kept,
        did.schedules,
    )
    assert (did.pushed, did.kept) == (1, 2)


@SINGLE
def test_lines_that_are_wrong_and_lines_that_are_missing(source: Engine, target: Engine) -> None:
    source.push_many([Task(n, delay=FAR_S) for n in range(5)])
    lines = [*source.export()]
    bad = target.restore([*lines[:2], b"nope\n", *lines[2:]])
    assert (bad.restored, bad.bad, bad.is_cut, bool(bad)) == (5, 1, False, False)
    [(number, reason)] = bad.errors
    assert (number, reason[:14]) == (3, "it is not JSON")
    assert target.restore(lines[:-1]).is_cut
    assert target.restore(lines[:2] + lines[3:]).is_cut, "one is missing in the middle"
    assert not target.restore(lines[1:3]).is_cut, "no export"
    with pytest.raises(BadInput, match="give a file"):
        target.restore("tasks.jsonl")
    with pytest.raises(BadInput, match="a line can't be int"):
        target.restore([1])  # type: ignore[list-item]


@SINGLE
def test_what_is_done_is_not_made_again(source: Engine, target: Engine) -> None:
    """A window whose answer was lost is sent again, while workers run."""
    source.push_many([Task(n, delay=FAR_S) for n in range(50)])
    inside = EngineAccess(target)
    importer = inside.importer(run=Run.new())
    lines = [*source.export(), *(b'{"payload": 1, "delay": 3600}\n', b'{"payload": 1, "delay": 3600, "id": "own"}\n')]
    items = [importer.read(number, line) for number, line in enumerate(lines, 1)]

    said = run(inside.open_driver(), importer.send(inside.cache, items))  # type: ignore[arg-type]
    assert {each.answer for each in said} == {"restored", "pushed"}
    ids = [each.id for each in said]
    assert target.cancel_all(everything=True).done == 52
    target.resize(8)
    again = run(inside.open_driver(), importer.send(inside.cache, items, again=True))  # type: ignore[arg-type]
    assert [(each.id, each.answer) for each in again] == [(each.id, each.answer) for each in said]
    assert [target.get(id) for id in ids] == [None] * 52


@SINGLE
def test_on_asyncio(source: Engine, url: str, name: str) -> None:
    source.push_many([Task(n, delay=FAR_S) for n in range(50)])

    async def moved() -> None:
        async with AsyncEngine(url, name=name) as one, AsyncEngine(url, name=f"{name}.to", shards=2) as other:
            assert (await other.restore(one.export())).restored == 50
            lines = [line async for line in one.export()]
            assert (await other.restore(lines)).kept == 50
            assert (await other.restore(lines, dry_run=True)).kept == 50

    asyncio.run(moved())


@SINGLE
def test_an_export_while_the_number_of_shards_changes(source: Engine, target: Engine) -> None:
    ids = {*source.push_many([Task(n, delay=FAR_S) for n in range(2000)])}
    source.start()
    lines = source.export()
    seen = [next(lines) for _ in range(200)]
    resize = source.resize(7)
    seen += lines
    assert {json.loads(line)["id"] for line in seen if b'"state"' in line} == ids
    resize.wait(timeout=60)
    # and an import, while it goes back
    source.purge(everything=True)
    back = source.resize(2)
    assert source.restore(seen).restored == 2000
    back.wait(timeout=60)
    assert source.stats().scheduled == 2000
