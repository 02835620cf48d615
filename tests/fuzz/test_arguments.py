"""Arguments: each call does what it says, or raises an error of shardq that shows the value, and nothing is written."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.server import Server
from shardq import AsyncEngine, BadInput, Engine, ShardqError, Task
from shardq.core.drivers.settings import Settings
from tests.fuzz.nasty import OBEYED, few, numbers, objects, texts, times
from tests.support.engines import Engines
from tests.support.servers import Servers

LONGEST_S = 20.0
"""No call takes half of it, on a machine that is busy."""

LONGEST_MESSAGE = 1000

ID = st.one_of(st.sampled_from(["a", "order-1", "ü", "mail/a"]), objects)
TOPIC = st.one_of(st.sampled_from(["", "mail"]), objects)
SECONDS = st.one_of(st.sampled_from([0, 0.5, 60, dt.timedelta(hours=1)]), numbers, times, objects)
INSTANT = st.one_of(st.just(4e9), numbers, times, objects)
HEADERS = st.one_of(st.just({"a": "b"}), st.dictionaries(texts, st.one_of(texts, objects), max_size=3), objects)
TAGS = st.one_of(st.just(["red"]), st.lists(st.one_of(texts, objects), max_size=3), objects)
COUNT = st.one_of(st.sampled_from([1, 3]), numbers, objects)
NAME = st.one_of(st.just("nightly"), objects)
FLAG = st.one_of(st.booleans(), objects)
URL = st.one_of(
    texts,
    objects,
    st.builds(
        "{}://{}{}{}{}".format,
        st.sampled_from(
            [
                "redis",
                "rediss",
                "unix",
                "redis+cluster",
                "redis+sentinel",
                "rediss+sentinel",
                "embedded",
                "http",
                "nats",
                "amqp",
            ]
        ),
        st.one_of(st.just(""), st.builds("{}:{}@".format, texts, texts)),
        st.one_of(st.sampled_from(["127.0.0.1:1", "[::1]:1", "[::1", "h:99999", "h,h:2", "/run/x.sock"]), texts),
        st.one_of(st.sampled_from(["", "/0", "/x", "/mymaster", "#mail", "/#a.b"]), texts),
        st.one_of(st.sampled_from(["", "?db=1", "?timeout=5", "?ca=/x&key=y"]), texts.map("?{}".format)),
    ),
)

PUSH: dict[str, st.SearchStrategy[Any]] = {
    "delay": SECONDS,
    "at": INSTANT,
    "topic": TOPIC,
    "id": ID,
    "on_conflict": st.one_of(st.sampled_from(["keep", "replace", "reject"]), objects),
    "dedup": SECONDS,
    "headers": HEADERS,
    "max_attempts": COUNT,
    "expires": st.one_of(SECONDS, INSTANT),
    "window": SECONDS,
    "throttle": SECONDS,
    "tags": TAGS,
}

FILTER: dict[str, st.SearchStrategy[Any]] = {
    "topic": TOPIC,
    "state": st.one_of(st.sampled_from(["scheduled", "dead"]), objects),
    "due": st.one_of(st.tuples(INSTANT, INSTANT), objects),
    "tag": st.one_of(st.just("red"), objects),
    "everything": FLAG,
}

EVERY: dict[str, st.SearchStrategy[Any]] = {
    "cron": st.one_of(
        st.sampled_from(
            ["0 3 * * *", "* * * * * *", "0 0 30 2 *", "*/7 1-5 L * MON#1", "61 * * * *", "@daily", "0 0 * * 8"]
        ),
        st.text("0123456789*/,-LW#? ", max_size=20),
        objects,
    ),
    "interval": SECONDS,
    "tz": st.one_of(st.sampled_from(["Europe/Berlin", "../etc/passwd", "/etc/passwd", "Europe", "utc"]), objects),
    "topic": TOPIC,
    "payload": objects,
    "jitter": SECONDS,
    "catch_up": st.one_of(st.just("all"), objects),
    "start": INSTANT,
    "end": INSTANT,
    "overlap": st.one_of(st.just("skip"), objects),
    "headers": HEADERS,
    "max_attempts": COUNT,
    "expires": SECONDS,
    "tags": TAGS,
    "owner": NAME,
}

CALLS: dict[str, tuple[list[st.SearchStrategy[Any]], dict[str, st.SearchStrategy[Any]]]] = {
    "push": ([objects], PUSH | {"durability": st.one_of(st.just("replicated"), objects)}),
    "push_many": ([st.one_of(st.lists(objects, max_size=2), objects)], {"batch": COUNT}),
    "cancel": ([ID], {}),
    "get": ([ID], {"decode": FLAG, "ended": FLAG}),
    "reschedule": ([ID], {"delay": SECONDS, "at": INSTANT}),
    "requeue": ([ID], {"delay": SECONDS, "at": INSTANT}),
    "tasks": ([], FILTER | {"limit": COUNT, "cursor": texts, "holder": NAME, "newest": FLAG}),
    "dead": ([], FILTER),
    "cancel_all": ([], FILTER),
    "reschedule_all": ([], FILTER | {"delay": SECONDS, "at": INSTANT}),
    "requeue_all": ([], FILTER | {"reason": texts}),
    "purge": ([], {"topic": TOPIC, "everything": FLAG}),
    "forecast": ([st.one_of(st.just("hour"), objects)], {}),
    "history": ([st.one_of(st.just("hour"), objects)], {}),
    "forward": ([TOPIC], {"to": URL, "side": objects, "maxlen": COUNT, "keep": FLAG}),
    "pause": ([TOPIC], {}),
    "resume": ([TOPIC], {}),
    "limit": ([TOPIC], {"rate": SECONDS, "concurrency": COUNT}),
    "configure": ([], {"max_attempts": COUNT, "dead_age": SECONDS, "dead_count": COUNT, "done_age": SECONDS}),
    "resize": ([COUNT], {"rate": SECONDS, "dry_run": st.one_of(st.just(True), objects)}),
    "health": ([], {"max_late": SECONDS, "max_ready_age": SECONDS, "max_dead": COUNT}),
    "every": ([NAME], EVERY),
    "schedule": ([], {"name": NAME, "owner": NAME}),
    "consumer": (
        [
            st.one_of(
                st.lists(TOPIC, max_size=3),
                TOPIC,
                st.dictionaries(TOPIC.filter(lambda each: isinstance(each, str)), COUNT, max_size=2),
            )
        ],
        {"lease": SECONDS, "name": NAME},
    ),
    "worker": (
        [],
        {
            "concurrency": COUNT,
            "lease": SECONDS,
            "max_attempts": COUNT,
            "backoff": objects,
            "grace": SECONDS,
            "timeout": SECONDS,
        },
    ),
}
"""Call of an engine → the strategies of its arguments, and of its options."""


def calm(exc: BaseException) -> None:
    """The error is one that a user was told of, and its message can be shown anywhere."""
    assert isinstance(exc, ShardqError), repr(exc)
    said = str(exc)
    assert len(said) <= LONGEST_MESSAGE, said
    assert not OBEYED.search(said.replace("\n", "")), ascii(said)
    said.encode()


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    name = draw(st.sampled_from(sorted(CALLS)))
    arguments, options = CALLS[name]
    chosen = draw(st.sets(st.sampled_from(sorted(options)), max_size=3)) if options else set[str]()
    return name, tuple(map(draw, arguments)), {option: draw(options[option]) for option in sorted(chosen)}


def called(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Its result, or the error of shardq that it raises, in a bounded time."""
    began = time.monotonic()
    try:
        result = function(*arguments, **options)
        return list(result) if hasattr(result, "__next__") else result
    except ShardqError as exc:
        calm(exc)
        return exc
    except TypeError as exc:
        if not re.search("positional argument|keyword", str(exc)):  # Python's own: there is no such option
            raise
        return exc
    finally:
        assert time.monotonic() - began < LONGEST_S


@contextmanager
def quiet(server: Server) -> Iterator[tuple[Engine, Servers]]:
    """An engine without pollers on a server, whose keys go with it."""
    name = f"fuzz-{uuid.uuid4().hex[:12]}"
    with Engine(server.url, name=name, shards=2, timeout=5.0) as engine, Servers(server.url) as servers:
        yield engine, servers
        for key in servers.held(name):
            servers.ask(0, "DEL", key)


@contextmanager
def on_asyncio(engine: Engine, server: Server) -> Iterator[Callable[..., Any]]:
    """The function that calls a method of the other engine, by its name."""
    other = AsyncEngine(server.url, name=engine.name, timeout=5.0)

    async def ended(method: str, /, *arguments: Any, **options: Any) -> Any:
        result = getattr(other, method)(*arguments, **options)
        if hasattr(result, "__anext__"):
            return [each async for each in result]
        return await result if inspect.isawaitable(result) else result

    with asyncio.Runner() as runner:
        runner.run(ended("__aenter__"))
        try:
            yield lambda *words, **options: runner.run(ended(*words, **options))
        finally:
            runner.run(ended("close"))


@pytest.mark.slow
def test_calls(single: Server) -> None:
    with quiet(single) as (engine, servers), on_asyncio(engine, single) as on_loop:

        @few(200)
        @given(calls(), st.booleans())
        def is_done_or_refused(call: tuple[str, tuple[Any, ...], dict[str, Any]], is_async: bool) -> None:
            name, arguments, options = call
            before = servers.held(engine.name)
            function = partial(on_loop, name) if is_async else getattr(engine, name)
            result = called(function, *arguments, **options)
            if isinstance(result, BadInput | TypeError):
                assert servers.held(engine.name) == before

        is_done_or_refused()


NATIVE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"])),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)
"""Payloads that JSON and MessagePack can say."""


def test_what_is_pushed_comes_back(single: Server) -> None:
    with quiet(single) as (engine, _):

        @few(60)
        @given(st.one_of(NATIVE, objects), st.data())
        def comes_back(payload: Any, data: st.DataObject) -> None:
            chosen = data.draw(st.sets(st.sampled_from(["topic", "headers", "max_attempts", "tags"])))
            options = {name: data.draw(PUSH[name]) for name in sorted(chosen)}
            receipt = called(engine.push, payload, delay=3600, **options)
            if isinstance(receipt, Exception):
                assert isinstance(receipt, BadInput)
                return
            info = engine.get(receipt)
            assert info is not None
            # JSON has fewer types: a page has the table of what comes back as what
            nearest = msgspec.json.decode(msgspec.json.encode(payload))
            assert info.payload == nearest
            given = (options.get("topic", ""), dict(options.get("headers") or {}), options.get("max_attempts"))
            assert (info.topic, dict(info.headers), info.max_attempts) == given
            assert info.tags == tuple(dict.fromkeys(options.get("tags") or ()))

        @few(30)
        @given(NATIVE)
        def comes_back_as_it_is(payload: Any) -> None:
            info = engine.get(engine.push(payload, delay=3600))
            assert info is not None
            assert (info.payload, type(info.payload)) == (payload, type(payload))

        comes_back()
        comes_back_as_it_is()


ENGINE: dict[str, st.SearchStrategy[Any]] = {
    "name": NAME,
    "shards": COUNT,
    "codec": objects,
    "max_payload": COUNT,
    "max_attempts": COUNT,
    "dead_age": SECONDS,
    "dead_count": COUNT,
    "timeout": SECONDS,
    "connect_timeout": SECONDS,
    "protocol": COUNT,
    "fsync": objects,
    "spool": st.one_of(st.sampled_from(["", "/nowhere/at/all"]), numbers),
    "spool_bytes": COUNT,
    "replay": SECONDS,
    "replay_bytes": COUNT,
}


@few(150)
@given(URL, st.data())
def test_engines(url: Any, data: st.DataObject) -> None:
    """Nothing is opened before the first use."""
    chosen = data.draw(st.sets(st.sampled_from(sorted(ENGINE)), max_size=3))
    options = {name: data.draw(ENGINE[name]) for name in sorted(chosen)}
    made = called(Engine, url, **options)
    assert isinstance(made, Engine | BadInput | ShardqError), made
    OBEYED.search(repr(made))


@few(100)
@given(st.builds("redis://{}:hunter2{}@{}".format, texts, texts, texts))
def test_no_message_shows_a_password(url: str) -> None:
    said = called(Settings.from_url, url)
    text = str(said) if isinstance(said, Exception) else repr(said) + said.safe_url
    assert "hunter2" not in text


@few(60)
@given(st.data())
def test_both_engines_refuse_alike(data: st.DataObject) -> None:
    """Bad input is found before an engine is opened, so no server is needed."""
    name, arguments, options = data.draw(calls())
    said = []
    for engines in (Engines("sync"), Engines("asyncio")):
        engine = engines.make("redis://127.0.0.1:1", timeout=0.05, connect_timeout=0.05)
        try:
            result = called(getattr(engine, name), *arguments, **options)
        finally:
            engines.end()
        said.append((type(result), str(result)) if isinstance(result, BadInput) else None)
    assert said[0] == said[1]


@few(40)
@given(st.data())
def test_named_tasks_and_handlers(data: st.DataObject) -> None:
    engine = Engine("redis://127.0.0.1:1")
    options: Mapping[str, st.SearchStrategy[Any]] = {
        "name": NAME,
        "topic": TOPIC,
        "aliases": st.one_of(st.lists(texts, max_size=2), objects),
        "max_attempts": COUNT,
        "timeout": SECONDS,
        "backoff": objects,
        "every": st.one_of(EVERY["cron"], SECONDS, objects),
        "batch": COUNT,
        "linger": SECONDS,
        "concurrency": COUNT,
        "isolate": st.one_of(st.booleans(), objects),
    }
    chosen = {each: data.draw(options[each]) for each in sorted(data.draw(st.sets(st.sampled_from(sorted(options)))))}
    of_batches = ("batch", "linger", "concurrency", "isolate")
    of_tasks: Any = {name: value for name, value in chosen.items() if name not in of_batches}
    called(lambda: engine.task(**of_tasks)(lambda to: None))
    on: Any = engine.worker().on
    of_topics = {name: value for name, value in chosen.items() if name not in ("name", "aliases", "topic", "every")}
    handler = data.draw(st.one_of(st.just(lambda delivery: None), objects))
    called(lambda: on(data.draw(TOPIC), **of_topics)(handler))


@pytest.mark.slow
@few(60)
@given(objects, st.data())
def test_tasks_many_at_a_time(payload: Any, data: st.DataObject) -> None:
    """The same is refused of many tasks as of one."""
    chosen = data.draw(st.sets(st.sampled_from(sorted(PUSH)), max_size=2))
    options = {name: data.draw(PUSH[name]) for name in sorted(chosen)}
    one, many = (Engine("redis://127.0.0.1:1", timeout=0.05, connect_timeout=0.05) for _ in range(2))
    alone = called(one.push, payload, **options)
    together = called(lambda: many.push_many([Task("good"), Task(payload, **options)]))
    assert isinstance(alone, BadInput) == isinstance(together, BadInput), (alone, together)
    if isinstance(alone, BadInput):
        assert type(alone) is type(together)
