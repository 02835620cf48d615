"""The shard of an id, the shards in which an id is looked for, and the fields of the stored topology."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.layout import formats
from shardq.core.layout.topology import NO_SETTINGS, EngineSettings, Limit, Route, TopicSettings, Topology
from shardq.errors import ShardqError

IDS = ["a", "order-42", "email/order-42", "0abcDEF_-12345", "email/0abcDEF_-12345", "grün", "日本語"]

ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
counts = st.sampled_from([1, 2, 3, 6, 16, 17, 32, 64, 100, 256, 1024])
words = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)


def of(shards: int, *priors: int) -> Topology:
    return Topology(epoch=7, shards=shards, priors=priors)


@pytest.mark.parametrize(
    ("count", "shards"),
    [
        (1, [0, 0, 0, 0, 0, 0, 0]),
        (2, [1, 1, 0, 1, 1, 0, 1]),
        (3, [1, 1, 0, 2, 1, 0, 1]),
        (16, [6, 1, 6, 13, 9, 0, 8]),
        (17, [6, 1, 6, 16, 9, 0, 8]),
        (64, [17, 41, 6, 60, 27, 0, 42]),
        (1000, [369, 385, 399, 810, 266, 82, 355]),
        (1024, [369, 385, 399, 1014, 266, 82, 355]),
    ],
)
def test_the_shards_of_ids_are_pinned(count: int, shards: list[int]) -> None:
    assert [of(count).shard_of(id) for id in IDS] == shards


def test_the_hash_is_murmur3_of_the_whole_id_in_utf_8() -> None:
    # From the reference vectors of MurmurHash3_x86_32: another library must agree with these.
    assert mmh3.hash("", signed=False) == 0
    assert mmh3.hash("The quick brown fox jumps over the lazy dog", signed=False) == 0x2E4FF723
    assert mmh3.hash("grün", signed=False) == mmh3.hash("grün".encode(), signed=False)


def test_another_process_finds_the_same_shards() -> None:
    program = (
        "import sys; from shardq.core.layout.topology import Topology; t = Topology(epoch=1, shards=64); "
        "print(*(t.shard_of(id) for id in sys.argv[1:]))"
    )
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-X", "utf8", "-c", program, *IDS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert [int(word) for word in found.stdout.split()] == [of(64).shard_of(id) for id in IDS]


@given(ids, counts)
def test_a_shard_is_one_of_those_there_are(id: str, count: int) -> None:
    assert 0 <= of(count).shard_of(id) < count


@given(st.lists(ids), counts)
def test_many_ids_at_once_have_the_same_shards(many: list[str], count: int) -> None:
    topology = of(count)
    assert topology.shards_of(many) == [topology.shard_of(id) for id in many]


def test_ids_are_spread_evenly() -> None:
    held = Counter(of(16).shards_of(f"order-{number}" for number in range(160_000)))
    assert len(held) == 16
    assert max(held.values()) < 10_400
    assert min(held.values()) > 9_600


@given(ids, counts)
def test_without_priors_an_id_has_one_home(id: str, count: int) -> None:
    assert of(count).homes(id) == [of(count).shard_of(id)]


@given(ids, counts, st.lists(counts, max_size=4))
def test_homes_are_the_shards_of_the_priors_in_order_then_the_present_one(
    id: str, count: int, priors: list[int]
) -> None:
    visits = [of(past).shard_of(id) for past in priors] + [of(count).shard_of(id)]
    homes = of(count, *priors).homes(id)
    assert homes == [shard for place, shard in enumerate(visits) if shard not in visits[place + 1 :]]
    assert homes[-1] == of(count).shard_of(id)


def test_a_shard_that_occurs_twice_keeps_its_last_place() -> None:
    # There and back again: the new shard is looked into before the old one, which is where tasks now go.
    moved = next(id for id in map(str, range(1000)) if of(16).shard_of(id) != of(17).shard_of(id))
    assert of(16, 16, 17).homes(moved) == [16, of(16).shard_of(moved)]


@pytest.mark.parametrize(
    ("topology", "span"),
    [(of(16), range(16)), (of(32, 16), range(32)), (of(8, 16), range(16)), (of(8, 4, 32, 16), range(32))],
)
def test_the_span_covers_all_counts(topology: Topology, span: range) -> None:
    assert topology.span() == span


def test_the_fields_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology(
        epoch=12,
        shards=32,
        priors=(8, 16),
        topics={
            "email": TopicSettings(route=Route("celery"), limit=Limit(concurrency=3)),
            "sms": TopicSettings(route=Route("out", "left"), limit=Limit(rate=2.5), paused=True),
        },
        pending=64,
        since=9,
        move_rate=1000.0,
        features=("f",),
        settings=EngineSettings(max_attempts=3, dead_age=1.5, dead_count=7, done_age=2.5, done_count=9),
        ended=((4, 5000),),
        is_keyed=True,
        word="w",
        engine="e",
        created=1_700_000_000_000,
    )
    fields = {
        b"format": str(formats.FORMAT).encode(),
        b"features": b'["f"]',
        b"keyed": b"true",
        b"epoch": b"12:w:e",
        b"created": b"1700000000000",
        b"shards": b"32",
        b"priors": b"[8,16]",
        b"pending": b"64",
        b"since": b"9",
        b"move_rate": b"1000.0",
        b"max_attempts": b"3",
        b"dead_age": b"1.5",
        b"dead_count": b"7",
        b"done_age": b"2.5",
        b"done_count": b"9",
        b"ended": b"[[4,5000]]",
    }
    settings = {
        b"email": b'{"route":{"to":"celery","side":"right","maxlen":null},"limit":{"rate":null,"concurrency":3}}',
        b"sms": b'{"route":{"to":"out","side":"left","maxlen":null},"paused":true,'
        b'"limit":{"rate":2.5,"concurrency":null}}',
    }
    monkeypatch.setattr(formats, "FEATURES", frozenset({"f"}))
    assert topology.to_fields() == fields
    assert {topic.encode(): each.to_text() for topic, each in topology.topics.items()} == settings
    assert Topology.from_fields(fields).with_stored(settings) == topology
    assert not topology.with_stored(dict.fromkeys(settings, b"")).topics


@given(
    epoch=st.integers(1, 2**53 - 1),
    shards=st.integers(1, 1024),
    priors=st.lists(st.integers(1, 1024), max_size=5),
    topics=st.dictionaries(
        words,
        st.builds(
            TopicSettings,
            route=st.builds(Route, to=st.text(max_size=20), side=st.sampled_from(["left", "right"])) | st.none(),
            paused=st.booleans(),
        ).filter(lambda each: each != NO_SETTINGS),
        max_size=5,
    ),
    settings=st.builds(EngineSettings, max_attempts=st.integers(1, 10**6), dead_age=st.floats(0.001, 1e11)),
)
def test_a_topology_survives_its_fields(
    epoch: int, shards: int, priors: list[int], topics: dict[str, TopicSettings], settings: EngineSettings
) -> None:
    topology = Topology(
        epoch=epoch,
        shards=shards,
        priors=tuple(priors),
        topics=topics,
        settings=settings,
    )
    stored = {topic.encode(): each.to_text() for topic, each in topics.items()}
    assert Topology.from_fields(topology.to_fields()).with_stored(stored) == topology


WRITTEN: dict[bytes, bytes] = {b"format": str(formats.FORMAT).encode(), b"epoch": b"1:w:e", b"shards": b"16"}


def test_unknown_fields_are_passed_over_and_missing_ones_are_empty() -> None:
    fields = WRITTEN | {b"colour": b"32", b"names": b"{}"}
    assert Topology.from_fields(fields) == Topology(epoch=1, shards=16, word="w", engine="e")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({b"epoch": None}, "no field 'epoch'"),
        ({b"shards": None}, "no field 'shards'"),
        ({b"epoch": b"x"}, "its epoch is 0"),
        ({b"epoch": b"1"}, "its epoch is 0"),
        ({b"shards": b"x"}, "malformed"),
        ({b"shards": b"0"}, "outside 1..1024"),
        ({b"priors": b"[2000]"}, "outside 1..1024"),
        ({b"priors": b"[8"}, "truncated"),
        ({b"max_attempts": b"many"}, "malformed"),
        ({b"dead_count": b"null"}, "Expected `int`"),
        ({b"format": b"many"}, "malformed"),
    ],
)
def test_an_unreadable_topology_is_refused(fields: dict[bytes, bytes | None], why: str) -> None:
    stored = {name: text for name, text in (WRITTEN | fields).items() if text is not None}
    with pytest.raises(ShardqError, match=r"can't be read: .*; epoch must be EPOCH:WORD:ENGINE") as caught:
        Topology.from_fields(stored)
    assert why in str(caught.value)


def test_numbers_of_shards_are_forgotten_with_the_ends() -> None:
    kept = Topology(epoch=1, shards=4, priors=(8,), settings=EngineSettings())
    assert kept.with_ended(1000) == ()
    kept = kept.following(settings=EngineSettings(done_age=60.0), ended=((2, 999), (16, 5000)))
    assert kept.with_ended(1000) == ((16, 5000), (8, 1000 + 60_000 + 60_000))
    assert list(kept.ends_span()) == list(range(16))


def test_topics_that_are_forwarded_elsewhere_keep_them() -> None:
    topology = Topology(epoch=1, shards=1, settings=EngineSettings(done_age=60.0))
    for to, age_ms in (("list", 0), ("stream:s", 0), ("https://example.org/x", 60_000), ("redis://h:1/0#l", 60_000)):
        assert topology.with_topic("mail", route=Route(to)).ends_age_ms("mail") == age_ms
    assert topology.with_topic("mail", done_age=90.0).ends_age_ms("mail") == 60_000
    assert topology.ends_rule == "60000:12500"
