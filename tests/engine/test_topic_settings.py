"""The settings of a topic are a field of their own: a change costs the same whatever other topics have, and every
process and every shard knows all of them in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from shardq import Engine
from shardq.core.layout.keys import control_keys
from shardq.core.layout.topology import NO_SETTINGS, Limit, Route, TopicSettings
from shardq.engine.access import EngineAccess
from shardq.errors import InvalidOption
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers, keys_of
from tests.support.states import state_of
from tests.support.waiting import wait_until

MANY = 1000


def rates(count: int, rate: float = 5.0) -> dict[str, dict[str, float]]:
    return {f"t{number}": {"rate": rate} for number in range(count)}


def known(engine: Engine) -> dict[str, TopicSettings]:
    """The settings as the process knows them after a look."""
    engine.stats()
    return dict(engine.topology.topics)


def copies(servers: Servers, name: str, shards: int = SHARDS) -> list[dict[bytes, Any]]:
    """What the control slot and each shard have."""
    control = control_keys(name)
    places = [(control.slot, control.settings), *((keys.slot, keys.copy) for keys in keys_of(name, shards))]
    stored = [servers.ask(slot, "HGETALL", key) for slot, key in places]
    return [{topic: msgspec.json.decode(text) for topic, text in each.items()} for each in stored]


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_change_costs_the_same_with_many_topics(engine: Engine, engines: Engines, url: str, servers: Servers) -> None:
    other = engines.opened(url, name=engine.name)

    def traffic(change: Callable[[], object]) -> int:
        """The bytes to and from the server while a change is made, and learnt by another process."""

        def moved() -> int:
            (stats,) = servers.ask_all("INFO", "stats")
            return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])

        change()
        before = moved()
        change()
        known(other)
        return moved() - before

    def change() -> None:
        engine.limit("mail", rate=7)
        engine.limit("mail", None)

    few = traffic(change)
    engine.configure(topics=rates(MANY))
    assert len(known(other)) == MANY
    # what is stored of that many topics has some 40 kB
    assert traffic(change) < few + 5000


def test_changes_of_two_topics_at_once_both_stay(engine: Engine, engines: Engines, url: str, servers: Servers) -> None:
    both = engine, engines.opened(url, name=engine.name)

    def change(number: int) -> None:
        for turn in range(20):
            both[number].limit(f"t{number}-{turn}", rate=number + 1)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(change, range(2)))
    expected = {f"t{number}-{turn}": Limit(rate=number + 1) for number in range(2) for turn in range(20)}
    for each in both:
        known(each)
        assert each.topology.limits == expected
    stored, *others = copies(servers, engine.name)
    assert others == [stored] * SHARDS


@pytest.mark.parametrize("away", ["a while", "long"])
def test_a_process_that_was_away_learns_all(
    engine: Engine, engines: Engines, url: str, servers: Servers, away: str
) -> None:
    """The changes that it missed, also those that took settings away; or everything where too many were made since."""
    engine.configure(topics=rates(30))
    other = engines.opened(url, name=engine.name)
    assert len(known(other)) == 30
    for number in range(5):
        engine.limit(f"t{number}", None)
    engine.pause("t7")
    engine.forward("new", to="there")
    if away == "long":
        keys = control_keys(engine.name)
        servers.ask(keys.slot, "ZREMRANGEBYSCORE", keys.edits, "-inf", engine.topology.epoch - 1)
    assert known(other) == engine.topology.topics
    assert other.topology.settings_of("t0") == NO_SETTINGS
    assert other.topology.settings_of("t7") == TopicSettings(paused=True, limit=Limit(rate=5))
    assert other.topology.routes == {"new": Route("there")}


def test_only_changes_of_the_same_history_are_added(
    engine: Engine, engines: Engines, url: str, servers: Servers
) -> None:
    """A server came back older, and others went on from there, to higher epochs: what was lost is not there."""
    keys = control_keys(engine.name)
    engine.limit("kept", rate=1)
    dumps = {key: servers.ask(keys.slot, "DUMP", key) for key in (keys.topology, keys.settings, keys.edits)}
    other = engines.opened(url, name=engine.name)
    other.limit("lost", rate=2)
    assert known(other).keys() == {"kept", "lost"}
    EngineAccess(other).cache.before = None
    for key, dump in dumps.items():
        servers.ask(keys.slot, "RESTORE", key, 0, dump, "REPLACE")
    for shard in keys_of(engine.name, SHARDS):
        servers.ask(shard.slot, "DEL", shard.meta, shard.copy)
    assert engine.topology.epoch == other.topology.epoch - 1
    engine.limit("kept", None)  # takes the epoch of the lost change
    engine.limit("later", rate=3)
    assert engine.topology.epoch > other.topology.epoch
    assert known(other) == engine.topology.topics == {"later": TopicSettings(limit=Limit(rate=3))}
    assert {len(copy) for copy in copies(servers, engine.name)} == {1}


def test_nobody_knows_them_but_the_shards(engines: Engines, url: str, name: str, servers: Servers) -> None:
    keys = control_keys(name)
    engine = engines.opened(url, name=name, shards=SHARDS)
    engine.configure(topics=rates(30) | {"log": {"forward": "log-list"}})
    engine.limit("t3", None)
    topics = engine.topology.topics
    engine.close()
    servers.ask(keys.slot, "DEL", keys.topology, keys.settings, keys.edits)
    assert known(engines.opened(url, name=name, shards=SHARDS)) == topics


def test_a_shard_that_missed_changes_is_given_all(engine: Engine, servers: Servers) -> None:
    engine.configure(topics=rates(30))
    keys = keys_of(engine.name, SHARDS)[0]
    servers.ask(keys.slot, "DEL", keys.copy)
    older = engine.topology.following(epoch=1).stamp
    servers.ask(keys.slot, "HSET", keys.meta, "epoch", older)
    engine.limit("t3", None)
    stored, *others = copies(servers, engine.name)
    assert len(stored) == 29
    assert others == [stored] * SHARDS


def test_a_resize_while_limits_change(url: str, name: str, servers: Servers) -> None:
    with Engine(url, name=name, shards=SHARDS) as engine, ThreadPoolExecutor(1) as threads:
        engine.start()

        def change() -> None:
            for number in range(40):
                engine.limit(f"t{number}", rate=number + 1)

        changing = threads.submit(change)
        assert engine.resize(SHARDS * 2).wait(30)
        changing.result(30)
        assert len(known(engine)) == 40
        assert engine.topology.shards == SHARDS * 2
        stored, *others = copies(servers, name, SHARDS * 2)
        assert others == [stored] * SHARDS * 2


# ---- many at once


def test_configure_sets_what_is_named_and_nothing_else(engine: Engine) -> None:
    engine.pause("mail")
    engine.limit("mail", rate=1, concurrency=2)
    wanted: dict[str, dict[str, Any]] = {
        "mail": {"rate": 50},
        "log": {"forward": "stream:log", "maxlen": 100, "pause": True},
        "": {"concurrency": 3, "forward": False},
    }
    epoch = engine.topology.epoch
    expected = {
        "mail": TopicSettings(paused=True, limit=Limit(rate=50)),
        "log": TopicSettings(route=Route("stream:log", maxlen=100), paused=True),
        "": TopicSettings(limit=Limit(concurrency=3)),
    }
    assert engine.configure(topics=wanted, dry_run=True) == expected
    assert engine.topology.epoch == epoch
    assert engine.configure(topics=wanted) == expected == engine.topology.topics
    assert engine.topology.epoch == epoch + 1
    assert engine.changes()[0].what == "topics configured: mail, log, (default)"
    assert engine.configure(topics=wanted) == {}
    assert engine.configure(topics={"mail": {"rate": None, "pause": False}}) == {"mail": NO_SETTINGS}
    assert engine.topology.topics.keys() == {"log", ""}
    assert engine.topology.epoch == epoch + 2


def test_thousands_are_set_in_some_changes_and_read_by_pages(engine: Engine, engines: Engines, url: str) -> None:
    epoch = engine.topology.epoch
    assert len(engine.configure(topics=rates(1200))) == 1200
    assert engine.topology.epoch == epoch + 3
    assert len(engine.topology.limits) == 1200
    other = engines.opened(url, name=engine.name)
    assert other.topology.topics == engine.topology.topics


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        ({"a b": {"rate": 1}}, "a b"),
        ({"mail": 5}, "topic 'mail': 5 is not possible; give a dict of rate, concurrency, per_key, "),
        ({"mail": {"rat": 1}}, "topic 'mail': there is no setting 'rat'; there is rate, concurrency"),
        ({"mail": {"rate": -1}}, "topic 'mail': rate=-1 is not possible"),
        ({"mail": {"pause": 1}}, "topic 'mail': pause=1 is not possible; give True, False"),
        ({"mail": {"side": "left"}}, "topic 'mail': side and maxlen go with forward"),
        ({"mail": {"forward": "http//x"}}, "topic 'mail': to='http//x' is not possible"),
        ({"mail": {"forward": print}}, "topic 'mail': .* is not possible: a topic is not forwarded to a function"),
        (
            {"": {"forward": "x", "concurrency": 3}},
            r"\(default\): it can't be forwarded to the list 'x' and limited to 3",
        ),
        ([], "topics=.* is not possible; give a dict"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_set(engine: Engine, topics: Any, text: str) -> None:
    with pytest.raises((InvalidOption, ValueError), match=text):
        engine.configure(topics={"good": {"rate": 1}} | topics if topics else topics)
    assert engine.topology.topics == {}


def test_a_window_of_keys_holds_at_once(running: Engine) -> None:
    running.configure(topics={"t": {"per_key": 2}})
    assert running.topology.is_keyed, "a producer that may not begin with keys can push now"
    ids = [running.push(n, topic="t", key="k") for n in range(4)]

    def states() -> list[str]:
        return [state_of(running, id) for id in ids]

    wait_until(lambda: states() == ["ready", "ready", "held", "held"], "two are out")
    running.configure(topics={"t": {"per_key": 3}})
    wait_until(lambda: states() == ["ready", "ready", "ready", "held"], "three are out")
