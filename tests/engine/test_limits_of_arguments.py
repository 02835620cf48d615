"""Every limit of arguments has an error that says what was wrong, what is allowed and what to do, before any write.
``tests/model`` has the values of each check; here every call makes it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest

from shardq import BadInput, Engine, Task
from shardq.errors import (
    DedupWithoutId,
    DelayAndAt,
    InvalidDelay,
    InvalidId,
    InvalidKey,
    InvalidName,
    InvalidOption,
    InvalidShardCount,
    InvalidTopic,
    InvalidUrl,
    NaiveDatetime,
    PayloadNotEncodable,
    PayloadTooLarge,
)
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.states import FAR_S

NAIVE = dt.datetime(2100, 1, 1)
Case = tuple[dict[str, Any], type[BadInput], str]

SECONDS = r"from 0 to \d+ seconds .*use 0, or none, for a task that is due now"
INSTANT = r"before the end of the year 9999: an aware datetime, or seconds \(not milliseconds\)"
WORD = r"use 1 to 64 of the characters A-Z a-z 0-9 _ \. -"

DUE: list[Case] = [
    ({"delay": -1}, InvalidDelay, rf"a delay can't be -1; .*{SECONDS}"),
    ({"delay": 10**400}, InvalidDelay, rf"a delay can't be an int of 1329 bits; .*{SECONDS}"),
    ({"delay": dt.timedelta.max}, InvalidDelay, rf"a delay can't be .*; .*{SECONDS}"),
    ({"delay": "5"}, InvalidDelay, "a delay can't be '5'; give seconds as a number, or a timedelta"),
    ({"at": NAIVE}, NaiveDatetime, r"has no time zone, .*; give an aware datetime, such as .* or epoch seconds"),
    ({"at": 1_800_000_000_000}, InvalidDelay, f"at can't be 1800000000000; .*{INSTANT}"),
    ({"at": 4e9, "delay": 5}, DelayAndAt, r"both delay=5 and at=4000000000\.0 .*: give only one of them"),
]

OPTIONS: list[Case] = [
    ({"dedup": 60}, DedupWithoutId, "dedup=60 was given without id=; .*: give one"),
    ({"dedup": 0, "id": "a"}, InvalidOption, "dedup can't be 0; give more than 0 and at most"),
    (
        {"topic": "a b"},
        InvalidTopic,
        f"a topic can't be 'a b'; {WORD}; leave it out, or give '', for the default topic",
    ),
    ({"id": ""}, InvalidId, "an id can't be empty; leave id= out for a new one"),
    ({"id": "a/b"}, InvalidId, "the id 'a/b' has '/' at position 1; .*: replace them, and give the topic as topic="),
    ({"headers": {"a": 1}}, InvalidOption, r"headers can't have \('a', 1\); .*: convert them to text"),
    ({"max_attempts": 0}, InvalidOption, "max_attempts can't be 0; give an int from 1 to 1000000"),
    ({"window": 0}, InvalidOption, "window can't be 0; give more than 0"),
    ({"window": 60, "expires": 30}, InvalidOption, "expires=30 is not after the end of the task's window"),
    ({"throttle": 5}, InvalidOption, "throttle=5 was given without id=; .*: give one"),
    ({"throttle": 5, "id": "a", "dedup": 5}, InvalidOption, "both throttle=5 and dedup=5 .*: give only one of them"),
    ({"throttle": 5, "id": "a", "on_conflict": "replace"}, InvalidOption, 'throttle=5 and on_conflict="replace" excl'),
    ({"tags": "user-42"}, InvalidOption, "tags can't be 'user-42'; give a list of str"),
    ({"tags": ["a/b"]}, InvalidOption, "the tag 'a/b' has '/' at position 1; .*: replace them"),
    ({"tags": [f"{n}" for n in range(17)]}, InvalidOption, "a task can't have 17 tags; 16 are allowed"),
    ({"on_conflict": "skip"}, InvalidOption, "on_conflict can't be 'skip'; use one of 'keep', 'replace', 'reject'"),
]

PAYLOADS: list[Case] = [
    ({"payload": "x" * (1 << 20)}, PayloadTooLarge, r"has 1048578 bytes; 1048576 are allowed: keep large content else"),
    (
        {"payload": {1j}},
        PayloadNotEncodable,
        "the codec 'json' can't encode a payload of type set: .*; push what it can",
    ),
    ({"payload": float}, PayloadNotEncodable, "the codec 'json' can't encode a payload of type type: .*"),
]

TASKS: list[Case] = [({"payload": "x", **options}, error, text) for options, error, text in [*DUE, *OPTIONS]] + PAYLOADS


@pytest.fixture
def untouched(engine: Engine, servers: Servers, name: str) -> Callable[[], None]:
    """Says that no key of the engine is another than at the start."""
    engine.push("there before", delay=FAR_S, id="present")
    before = servers.held(name)
    assert len(before) > SHARDS

    def check() -> None:
        assert servers.held(name) == before

    return check


def said_by(error: type[BadInput], text: str, call: Callable[[], object]) -> None:
    """The call raises this very error, which says this."""
    with pytest.raises(BadInput) as caught:
        call()
    assert type(caught.value) is error
    assert isinstance(caught.value, ValueError)
    assert re.search(text, str(caught.value), re.DOTALL), str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_push(engine: Engine, untouched: Callable[[], None]) -> None:
    for options, error, text in TASKS:
        said_by(error, text, lambda: engine.push(**options))  # noqa: B023  called at once
    untouched()


def test_many_pushes_name_the_position(engine: Engine, untouched: Callable[[], None]) -> None:
    for options, error, text in TASKS:
        tasks = [Task("fine", delay=FAR_S), Task("fine", delay=FAR_S, id="mine"), Task(**options)]
        said_by(error, f"^task 2 of this call: .*{text}", lambda: engine.push_many(tasks))  # noqa: B023
        said_by(error, f"^task 2 of this call: .*{text}", lambda: list(engine.push_iter(tasks)))  # noqa: B023
    untouched()


def test_a_buffered_push(url: str, engine: Engine, untouched: Callable[[], None], name: str) -> None:
    with Engine(url, name=name, shards=SHARDS) as threaded, threaded.buffered() as buffer:
        for options, error, text in TASKS:
            said_by(error, text, lambda: buffer.push(**options))  # noqa: B023  called at once
    untouched()


def test_what_is_no_task(engine: Engine, untouched: Callable[[], None]) -> None:
    for nonsense in ({"n": 1}, "x", None):
        with pytest.raises(BadInput, match=r"a task can't be \w+: .*; wrap the payload: shardq\.Task\("):
            engine.push_many([nonsense])  # type: ignore[list-item]  # that is the point
    with pytest.raises(BadInput, match=r"a payload can't be a Task, .*; push it with push_many\(\[task\]\)"):
        engine.push(Task("x", delay=5))
    untouched()


def test_another_due_time(engine: Engine, untouched: Callable[[], None]) -> None:
    for options, error, text in DUE:
        said_by(error, text, lambda: engine.reschedule("present", **options))  # noqa: B023  called at once
        said_by(error, text, lambda: engine.requeue("present", **options))  # noqa: B023  called at once
    untouched()


@pytest.mark.parametrize(
    ("id", "error", "text"),
    [
        ("", InvalidId, "an id can't be empty"),
        ("/x", InvalidId, "the id '/x' begins with '/'; an id is TOPIC/UNIQUE, or just UNIQUE in the default topic"),
        ("a//c", InvalidId, "has '/' at position 0"),
        ("a/b/c/d", InvalidId, "has '/' at position 1"),
        ("a/" + "k" * 201 + "/c", InvalidKey, "has 201 bytes in UTF-8; 200 are allowed"),
        ("a/", InvalidId, "an id can't be empty"),
        ("a b/c", InvalidTopic, "a topic can't be 'a b'"),
        ("a\x00", InvalidId, "control characters"),
        ("x" * 201, InvalidId, "has 201 bytes in UTF-8; 200 are allowed"),
        (b"x", InvalidId, "an id can't be bytes; give the str that push returned"),
        (None, InvalidId, "an id can't be NoneType; give the str that push returned"),
    ],
)
def test_an_id(engine: Engine, untouched: Callable[[], None], id: Any, error: type[BadInput], text: str) -> None:
    for order in (engine.get, engine.cancel, engine.reschedule, engine.requeue):
        said_by(error, text, lambda: order(id))  # noqa: B023  called at once
    untouched()


@pytest.mark.parametrize(
    ("topic", "options", "error", "text"),
    [
        ("a b", {"to": "list"}, InvalidTopic, f"a topic can't be 'a b'; {WORD}"),
        ("a", {"to": ""}, InvalidOption, "to='' is not possible; give the name of a list, stream:NAME, a URL"),
        ("a", {"to": "stream:"}, InvalidOption, "to='stream:' is not possible; give the name of a list, stream:NAME"),
        ("a", {"to": "stream:shardq:{x}:due"}, InvalidOption, "is a key of shardq's own"),
        ("a", {"to": "stream:x", "side": "left"}, InvalidOption, "side='left' is for lists; leave it out"),
        ("a", {"to": 5}, InvalidOption, "to=5 is not possible; give the name of a list"),
        ("a", {"to": "shardq:{x}:due"}, InvalidOption, "is a key of shardq's own; give the name of another list"),
        ("a", {"to": "list", "side": "top"}, InvalidOption, "side='top' is not possible; use 'right' .* or 'left'"),
    ],
)
def test_a_route(
    engine: Engine, untouched: Callable[[], None], topic: str, options: Any, error: type[BadInput], text: str
) -> None:
    said_by(error, text, lambda: engine.forward(topic, **options))
    untouched()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"name": ""}, InvalidName, f"the name of an engine can't be ''; {WORD}"),
        ({"shards": 0}, InvalidShardCount, "there can't be 0 shards; use 1 to 1024: two to four for each master"),
        ({"codec": "pickle"}, InvalidOption, "codec can't be 'pickle'; use one of 'json', 'msgpack', 'raw', or an obj"),
        ({"codec": object()}, InvalidOption, "an object with a name and the methods encode and decode"),
        ({"max_payload": 0}, InvalidOption, "max_payload=0 is not possible; give bytes, from 1 to 512 MiB"),
        ({"max_attempts": 0}, InvalidOption, "max_attempts can't be 0; give an int from 1"),
        ({"timeout": 0}, InvalidOption, r"timeout=0 is not allowed; give a number from 0\.001 to 86400"),
        ({"connect_timeout": float("nan")}, InvalidOption, "connect_timeout=nan is not allowed; give a number from"),
        ({"protocol": 4}, InvalidOption, "protocol 4 is not known; allowed are 2 and 3"),
        ({"fsync": "never"}, InvalidOption, "fsync='never' is not possible; use 'everysec' or 'always'"),
    ],
)
def test_an_engine(
    engines: Engines, url: str, servers: Servers, name: str, options: Any, error: type[BadInput], text: str
) -> None:
    said_by(error, text, lambda: engines.make(url, **{"name": name, **options}))
    assert servers.held(name) == {}


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("http://127.0.0.1/", r"this scheme 'http' is not understood; allowed are redis://host:port/db, rediss://"),
        ("127.0.0.1:6379", r"this URL is not understood; allowed are redis://"),
        ("redis://127.0.0.1:99999", "is not host:port with a port from 1 to 65535"),
        ("redis://127.0.0.1:1,127.0.0.1:2", r"names one server; several are for redis\+cluster://"),
        ("embedded://host/path", r"is not understood; write embedded:// or embedded:///absolute/path"),
    ],
)
def test_a_url(engines: Engines, bad: str, text: str) -> None:
    said_by(InvalidUrl, text, lambda: engines.make(bad))


def test_a_password_is_never_shown(engines: Engines) -> None:
    for bad in ("http://me:sesame@h/", "redis://me:sesame@h:99999/0", "redis+cluster://:sesame@h:1/5?x=sesame"):
        with pytest.raises(InvalidUrl) as caught:
            engines.make(bad)
        assert "sesame" not in f"{caught.value} {caught.value!r}"
    assert "sesame" not in repr(engines.make("redis://me:sesame@127.0.0.1:1/0"))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"name": "a b"}, InvalidName, f"the name of a consumer can't be 'a b'; {WORD}"),
        ({"lease": 0}, InvalidOption, "lease can't be 0; give more than 0"),
        ({"lease": float("inf")}, InvalidOption, "lease can't be inf; give more than 0"),
    ],
)
def test_a_consumer(
    engine: Engine, untouched: Callable[[], None], options: Any, error: type[BadInput], text: str
) -> None:
    said_by(error, text, lambda: engine.consumer(**options))
    untouched()


def test_the_largest_of_everything_is_taken(engine: Engine) -> None:
    id = engine.push(
        "x" * ((1 << 20) - 2),
        id="i" * 200,
        topic="t" * 64,
        at=253_402_300_799.999,
        headers={"h": "x" * 8186},
        max_attempts=1_000_000,
        dedup=7_900 * 365 * 86_400,
    )
    task = engine.get(id)
    assert task is not None
    assert (len(task.payload), len(task.headers["h"]), task.max_attempts) == ((1 << 20) - 2, 8186, 1_000_000)
    assert task.due == dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)
