"""Arguments of the wrong type raise an error of shardq that names the option, and nothing is sent."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from shardq import AsyncEngine, BadInput, Engine, ShardqError, Task
from tests.support.engines import SHARDS, Engines

Given = Callable[[Any], Any]
"""What is called, with the engine."""

HOUR = dt.timedelta(hours=1)

OPERATIONS: list[tuple[str, Given, str]] = [
    ("push: a list as topic", lambda e: e.push("x", topic=["a"]), "a topic can't be"),
    ("push: an id of bytes", lambda e: e.push("x", id=b"a"), "give a str"),
    ("push: reject without an id", lambda e: e.push("x", on_conflict="reject"), 'on_conflict="reject" .* id='),
    ("push: replace without an id", lambda e: e.push("x", on_conflict="replace"), 'on_conflict="replace" .* id='),
    ("push: a list as conflict rule", lambda e: e.push("x", id="a", on_conflict=["keep"]), "on_conflict can't be"),
    ("push: text as delay", lambda e: e.push("x", delay="5"), "a delay can't be '5'"),
    ("push: text as max_attempts", lambda e: e.push("x", max_attempts="3"), "max_attempts can't be '3'"),
    ("push: an unhashable durability", lambda e: e.push("x", durability=["replicated"]), "durability="),
    ("push_many: None", lambda e: e.push_many(None), "tasks can't be NoneType"),
    ("push_many: one task", lambda e: e.push_many(Task("x")), "tasks can't be Task"),
    ("push_many: payloads", lambda e: e.push_many(["x"]), "wrap the payload"),
    ("push_many: text", lambda e: e.push_many("xyz"), "tasks can't be str"),
    ("push_iter: None", lambda e: list(e.push_iter(None)), "tasks can't be NoneType"),
    ("cancel: None", lambda e: e.cancel(None), "an id can't be NoneType"),
    ("cancel_tag: a list", lambda e: e.cancel_all(tag=["a"]), r"a tag can't be \['a'\]; give a str"),
    ("cancel_tag: with a topic", lambda e: e.cancel_all(tag="mail/a"), "the tag 'mail/a' has '/'"),
    ("get: bytes", lambda e: e.get(b"a"), "an id can't be bytes"),
    ("reschedule: no time", lambda e: e.reschedule("a"), "reschedule needs a time.*delay=0"),
    ("reschedule: text", lambda e: e.reschedule("a", delay="1"), "a delay can't be"),
    ("requeue: text", lambda e: e.requeue("a", at="now"), "at can't be"),
    ("forward: a number", lambda e: e.forward("a", to=5), "to=5"),
    ("forward: a list as side", lambda e: e.forward("a", to="b", side=["left"]), "side="),
    ("resize: text", lambda e: e.resize("8"), "there can't be '8' shards"),
    ("resize: text as rate", lambda e: e.resize(8, rate="fast"), "rate='fast'"),
    ("resize: a bool as rate", lambda e: e.resize(8, rate=True), "rate=True"),
    ("pause: None", lambda e: e.pause(None), "a topic can't be None"),
    ("limit: text", lambda e: e.limit("a", rate="5"), "rate='5'"),
    ("limit: no rate", lambda e: e.limit("a", rate=0), "rate=0 is not possible; give tasks a second, more than 0"),
    ("limit: NaN", lambda e: e.limit("a", rate=math.nan), "rate=nan is not possible"),
    ("limit: none at once", lambda e: e.limit("a", concurrency=0), "concurrency=0 is not possible; give an int from 1"),
    ("limit: a bool at once", lambda e: e.limit("a", concurrency=True), "concurrency=True is not possible"),
    ("tasks: a number", lambda e: e.tasks(topic=5), "a topic can't be 5"),
    ("tasks: no state", lambda e: e.tasks(state="gone"), "state='gone' is not possible; use one of 'scheduled', "),
    ("tasks: a list as state", lambda e: e.tasks(state=["dead"]), "state="),
    ("tasks: an instant as due", lambda e: e.tasks(due=5), r"due=5 is not possible; give \(from, to\)"),
    ("tasks: text as due", lambda e: e.tasks(due=("now", None)), "due can't be 'now'"),
    ("tasks: a due of nothing", lambda e: e.tasks(due=(2e9, 1e9)), "holds nothing: its end must be later"),
    (
        "tasks: dead ones that are due",
        lambda e: e.tasks(state="dead", due=(1e9, None)),
        "only scheduled and held tasks have a",
    ),
    ("tasks: ready ones held", lambda e: e.tasks(state="ready", holder="a"), "only leased tasks have a holder"),
    ("tasks: due ones held", lambda e: e.tasks(due=(1e9, None), holder="a"), "only leased tasks have a holder"),
    ("tasks: a number as holder", lambda e: e.tasks(holder=5), "the name of a consumer can't be 5"),
    ("tasks: nothing", lambda e: e.tasks(limit=0), "limit=0 is not possible; give an int from 1 to 1,000"),
    ("tasks: too many", lambda e: e.tasks(limit=1001), "limit=1001"),
    ("tasks: True", lambda e: e.tasks(limit=True), "limit=True"),
    ("tasks: a number as cursor", lambda e: e.tasks(cursor=5), "a cursor can't be 5; give the .cursor of a page"),
    ("tasks: text as cursor", lambda e: e.tasks(cursor="x y"), "the cursor 'x y' is not one that a page gave"),
    ("forecast: a year", lambda e: e.forecast("year"), "forecast of 'year' is not possible; use one of 'hour', 'day'"),
    ("forecast: a list", lambda e: e.forecast(["hour"]), "forecast of"),
    (
        "cancel_all: nothing",
        lambda e: e.cancel_all(),
        "cancel_all needs topic=.* or everything=True",
    ),
    ("cancel_all: both", lambda e: e.cancel_all(topic="a", everything=True), "everything=True stands alone"),
    ("cancel_all: leased ones", lambda e: e.cancel_all(state="leased"), "leased tasks can't be cancelled; use state="),
    ("reschedule_all: no time", lambda e: e.reschedule_all(topic="a"), "reschedule needs a time"),
    ("reschedule_all: dead ones", lambda e: e.reschedule_all(state="dead", delay=5), "dead tasks can't be rescheduled"),
    ("reschedule_all: nothing", lambda e: e.reschedule_all(delay=5), "reschedule_all needs topic="),
    ("requeue_all: nothing", lambda e: e.requeue_all(), 'requeue_all needs topic="name"'),
    ("requeue_all: both", lambda e: e.requeue_all("a", everything=True), "everything=True stands alone"),
    ("requeue_all: ready ones", lambda e: e.requeue_all("a", state="ready"), "state='ready' matches no dead task"),
    ("dead: due ones", lambda e: list(e.dead(due=(0, 1))), "only scheduled and held tasks have a due time"),
    ("tasks: both", lambda e: e.tasks("a", everything=True), "everything=True stands alone"),
    ("tasks: no tag", lambda e: e.tasks(tag=""), "a tag can't be empty"),
    (
        "limit: nothing",
        lambda e: e.limit("a"),
        r"limit needs rate=, concurrency= or per_key=; limit.topic, None. lifts",
    ),
    ("requeue_all: a number", lambda e: e.requeue_all(5), "a topic can't be 5"),
    ("requeue_all: no reason", lambda e: e.requeue_all("a", reason=" "), "reason=. . is not possible"),
    ("purge: nothing", lambda e: e.purge(), "purge needs"),
    ("purge: everything of text", lambda e: e.purge(everything="yes"), "everything='yes'"),
    ("consumer: a number", lambda e: e.consumer(5), "topics=5 is not possible; give a name"),
    ("consumer: a list of numbers", lambda e: e.consumer([5]), "a topic can't be 5"),
    ("consumer: text as lease", lambda e: e.consumer(lease="30"), "lease can't be '30'"),
    ("consumer: a number as name", lambda e: e.consumer(name=5), "the name of a consumer can't be 5"),
]

SETTLING: list[tuple[str, Callable[[Any, Any], Any], str]] = [
    ("claim: text", lambda c, d: c.claim("1"), "max='1'"),
    ("claim: none", lambda c, d: c.claim(0), "max=0"),
    ("claim: text as wait", lambda c, d: c.claim(1, wait="1"), "wait can't be '1'"),
    ("claim: no wait", lambda c, d: c.claim(1, wait=None), "wait can't be None"),
    ("claim: a bool as wait", lambda c, d: c.claim(1, wait=True), "wait can't be True"),
    ("claim: for ever", lambda c, d: c.claim(1, wait=math.inf), "wait can't be inf"),
    ("ack: text", lambda c, d: c.ack("x"), "a delivery can't be str"),
    ("ack: None", lambda c, d: c.ack(None), "a delivery can't be NoneType"),
    ("ack: ids", lambda c, d: c.ack([d.id]), "a delivery can't be str"),
    ("retry: an id", lambda c, d: c.retry(d.id), "a delivery can't be str"),
    ("retry: text as delay", lambda c, d: c.retry(d, delay="1"), "a delay can't be"),
    ("retry: a number as reason", lambda c, d: c.retry(d, reason=5), "a reason can't be int"),
    ("bury: a number", lambda c, d: c.bury(5, "why"), "a delivery can't be int"),
    ("bury: None as reason", lambda c, d: c.bury(d, None), "a reason can't be NoneType"),
    ("snooze: text", lambda c, d: c.snooze(d, "5"), "a delay can't be"),
    ("hold: backwards", lambda c, d: c.hold(d, -1), "a delay can't be"),
    ("snooze: backwards", lambda c, d: c.snooze(d, -1), "a delay can't be"),
    ("extend: text", lambda c, d: c.extend(d, "30"), "seconds can't be '30'"),
    ("extend: an id", lambda c, d: c.extend(d.id, 30), "a delivery can't be str"),
]

OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("a number as url", {"url": 5}, "url=5"),
    ("a number as name", {"name": 5}, "the name of an engine can't be 5"),
    ("text as shards", {"shards": "16"}, "there can't be '16' shards"),
    ("an unhashable codec", {"codec": ["json"]}, "codec can't be"),
    ("text as max_payload", {"max_payload": "1"}, "max_payload='1'"),
    ("a bool as max_payload", {"max_payload": True}, "max_payload=True"),
    ("a bool as dead_count", {"dead_count": True}, "dead_count=True"),
    ("text as dead_age", {"dead_age": "1"}, "dead_age can't be"),
    ("text as timeout", {"timeout": "1"}, "timeout"),
    ("NaN as timeout", {"timeout": math.nan}, "timeout"),
    ("None as timeout", {"timeout": None}, "timeout"),
    ("text as connect_timeout", {"connect_timeout": "1"}, "connect_timeout"),
    ("text as protocol", {"protocol": "3"}, "protocol"),
    ("an unhashable fsync", {"fsync": ["always"]}, "fsync="),
    ("text as replay", {"replay": "10"}, "replay='10'"),
    ("a bool as replay", {"replay": True}, "replay=True"),
    ("no second of replay", {"replay": 0}, "replay=0 .* or None"),
    ("NaN as replay", {"replay": math.nan}, "replay=nan"),
    ("text as replay_bytes", {"replay_bytes": "1mb"}, "replay_bytes='1mb'"),
    ("too few replay_bytes", {"replay_bytes": 1000}, "replay_bytes=1000"),
]


def refused(row: str, words: str, given: Callable[..., Any], *arguments: Any) -> None:
    try:
        given(*arguments)
    except BadInput as exc:
        said = str(exc)
    else:
        said = "nothing: it was taken"
    assert re.search(words, said), row


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_operations(engine: Engine) -> None:
    for row, given, words in OPERATIONS:
        refused(row, words, given, engine)
    assert (engine.stats().scheduled, engine.topology.shards, engine.topology.paused) == (0, SHARDS, frozenset())


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_deliveries(running: Engine) -> None:
    running.push("x")
    consumer = running.consumer()
    (delivery,) = consumer.claim(1, wait=30.0)
    for row, given, words in SETTLING:
        refused(row, words, given, consumer, delivery)
    consumer.ack(delivery)


@pytest.mark.parametrize("kind", [Engine, AsyncEngine])
@pytest.mark.parametrize(("options", "words"), [row[1:] for row in OPTIONS], ids=[row[0] for row in OPTIONS])
def test_options_of_an_engine(kind: Callable[..., object], options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        kind(**{"url": "redis://127.0.0.1:1"} | options)


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("timeout", ["1", -1.0, math.nan, True])
def test_waiting_for_a_resize_in_words(engines: Engines, engine: Engine, timeout: Any) -> None:
    with pytest.raises(ShardqError, match="timeout can't be"):
        engines.done(engine.resize(dry_run=True).wait(timeout=timeout))


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_push_that_says_keep_needs_no_id(engine: Engine) -> None:
    """It is what happens anyway: a program may say so for all its pushes."""
    assert engine.push("x", on_conflict="keep", delay=HOUR).outcome == "pushed"
