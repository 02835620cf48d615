"""Words that another program, or another version, has left in the keys of a shard: no script ends at them, so what is
good beside them goes on; and what can never be handled is dead, with the reason ``format``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shardq.core.calls import by_id, listing, observe, resharding
from shardq.core.calls import dispatch as calls
from shardq.core.calls.consume import SettleAck, SettleGiveBack, release
from shardq.core.calls.listing import START, Span
from shardq.core.calls.request import Call, Missing
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.topology import Limit
from shardq.core.model.record import UNREADABLE
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, opening, record
from tests.lua.test_claim import LEASE, claim
from tests.lua.test_dispatch import dispatch
from tests.lua.test_forward import THEIRS, forward
from tests.lua.test_permits import OPEN, RATE, permit
from tests.lua.test_settle import settle

GOOD = record("good")

NUMBERS = ["", "x", "-3", "-1.5", "1e300", "nan", "inf", "-inf", "9" * 30, "9007199254740992", "\udcff"]
"""In place of a count, or of a time."""

ENTRIES = ["", "x", "1:2", "a:b:c:d", "-1:0:3:t", "0:1e5:3:t", "\udcff", "0:0:3:~t"]
"""In place of a lease entry; the last one is of a lease that was revoked."""


def headed(head: object) -> str:
    """A record with this head."""
    text = head if isinstance(head, bytes) else msgspec.msgpack.encode(head)
    return (b"\x18" + len(text).to_bytes(2, "big") + text + b"bad").decode("utf-8", "surrogateescape")


VALUES: dict[str, list[object]] = {
    "m": ["x", "7", True, [], {}, -1, 1.5, 1e300, 2**53, float("nan")],
    "x": ["x", "7", True, [1], {}],
    "n": ["x", True, {}, -1, 1.5, float("inf")],
}
HEADS: list[object] = [
    *({field: value} for field, values in VALUES.items() for value in values),
    *(b"\xc1", b"\x81\xa1m", b"\x01", b"\xa1x", b"\x81\xa1q" + b"\x91" * 9000 + b"\xc0"),
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_lease_entry(shard: Shard, keys: ShardKeys, entry: str) -> None:
    shard.seed(
        {
            "meta": meta(),
            "task": {"bad": GOOD, "good": GOOD, "dead": GOOD},
            "due": {"good": T},
            "leased": {"bad": T},
            "lease": {"bad": entry, "dead": entry},
            "dead": {"dead": T},
        }
    )
    assert shard.run(listing.page(keys, EPOCH, "leased", Span(), holder="me", count=9).at(NOW)).ids == []
    found = shard.run(dispatch(keys))
    assert (found.moved, found.reaped) == (1, 1)
    claimed = shard.run(claim(keys))
    assert set(claimed.ids) == {"bad", "good"}
    assert shard.run(settle(keys, *(SettleAck(id, "tok") for id in claimed.ids))) == {}


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_the_head_of_a_record(shard: Shard, keys: ShardKeys, head: object) -> None:
    ready: State = {"task": {"bad": headed(head), "good": GOOD}, "ready/": ["bad", "good"]}
    died: State = {"dead": {"bad": T}, "why": {"bad": UNREADABLE}}
    for seeded in (ready, ready | {"lease": {"other": "0:0::"}}):
        shard.seed(seeded | {"meta": meta()})
        assert shard.run(claim(keys)).ids == ["good"]
        assert {name: shard.state()[name] for name in died} == died
    shard.seed(ready | {"meta": meta()})
    assert shard.run(forward(keys)).sent == 1
    assert shard.state()[THEIRS] == ["good"]
    assert {name: shard.state()[name] for name in died} == died


@pytest.mark.parametrize("headers", ["text", 7, {"a": {"b": 1}}, {"a": float("inf")}, {1: "a", 2**40: "b"}], ids=str)
def test_headers_that_are_none(shard: Shard, keys: ShardKeys, headers: object) -> None:
    """A stream gets them as JSON; what JSON can't say is no header."""
    shard.seed({"meta": meta(), "task": {"bad": headed({"h": headers}), "good": GOOD}, "ready/": ["bad", "good"]})
    to = f"{keys.prefix}stream"
    call = calls.forward(keys, EPOCH, "", to=to, side="stream", limit=9).at(NOW)
    sent, left = shard.ask(call)[1:]
    assert left == 0
    assert sent + len(shard.state().get("dead", {})) == 2
    assert shard.do("XREVRANGE", to, "+", "-", "COUNT", 1)[0][1][:4] == ["id", "good", "payload", "good"]


@pytest.mark.parametrize("count", [*NUMBERS, "1.0", "+1", " 1"])
def test_a_count_of_ghosts(shard: Shard, keys: ShardKeys, count: str) -> None:
    shard.seed(
        {
            "meta": meta(),
            "task": {"bad": GOOD, "good": GOOD},
            "ghost": {"bad": count},
            "ready/": ["bad", "bad", "good"],
        }
    )
    assert "good" in shard.run(claim(keys)).ids
    shard.seed({"meta": meta(), "task": {"bad": GOOD}, "ghost": {"bad": count}, "ready/": ["bad"]})
    assert shard.run(listing.purge(keys, EPOCH, "", scope="topic", go_on=START).at(NOW)).done
    shard.seed({"meta": meta(), "task": {"bad": GOOD}, "ghost": {"bad": count}})
    assert shard.run(observe.restore(keys, EPOCH, "bad").at(NOW))


GHOSTLY: dict[str, Callable[[ShardKeys], Call[Any]]] = {
    "cancel": lambda keys: by_id.cancel(keys, EPOCH, "bad").at(NOW),
    "cancel_tag": lambda keys: listing.cancel_tag(keys, EPOCH, "tag", "0", count=9).at(NOW),
    "reschedule": lambda keys: by_id.reschedule(keys, EPOCH, "bad", -9).at(NOW),
    "push_unique": lambda keys: by_id.push_unique(keys, EPOCH, ["bad", -9, GOOD, "replace", 0]).at(NOW),
}
"""What leaves one more."""


@pytest.mark.parametrize("leave", GHOSTLY.values(), ids=GHOSTLY)
@pytest.mark.parametrize("count", NUMBERS)
def test_one_ghost_more(shard: Shard, keys: ShardKeys, count: str, leave: Callable[[ShardKeys], Call[Any]]) -> None:
    tagged = record("bad", tags=("tag",))
    shard.seed({"meta": meta(), "task": {"bad": tagged}, "ghost": {"bad": count}, "ready/": ["bad"]})
    assert shard.ask(leave(keys))[0] == "ok"
    assert shard.state()["ghost"] == {"bad": "1"}
    assert shard.run(claim(keys)).ids == []


def test_a_count_of_ghosts_that_is_one(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(
        {"meta": meta(), "task": {"bad": GOOD, "good": GOOD}, "ghost": {"bad": "2"}, "ready/": ["bad", "good", "bad"]}
    )
    assert shard.run(claim(keys, max=1)).ids == ["good"]
    assert shard.state()["ghost"] == {"bad": "1"}
    assert shard.run(claim(keys)).ids == []
    assert "ghost" not in shard.state()


@pytest.mark.parametrize("field", ["clock", "ahead"])
@pytest.mark.parametrize("word", [*NUMBERS, "253402300800000"])
def test_the_steady_clock(shard: Shard, keys: ShardKeys, field: str, word: str) -> None:
    """One that no server can have had counts as none, and the next dispatch writes it anew."""
    shard.seed({"meta": meta() | {field: word}, "task": {"good": GOOD}, "due": {"good": T}, "leased": {"held": T + 9}})
    found = shard.run(dispatch(keys))
    assert (found.moved, found.reaped) == (1, 0)
    assert shard.run(claim(keys)).ids == ["good"]
    assert shard.state()["leased"] == {"held": T + 9, "good": T + LEASE}
    shard.run(dispatch(keys))
    assert shard.state()["meta"]["clock"] == f"{T}"


@pytest.mark.parametrize("word", NUMBERS)
def test_counters(shard: Shard, keys: ShardKeys, word: str) -> None:
    fields = ("reaped", "buried", "died/", "trimmed", "trimmed_at", "late", "wake_at", "forwarded", "swept")
    shard.seed(
        {
            "meta": meta() | dict.fromkeys(fields, word),
            "topics": {"": word, "mail": word},
            "looks": {"": word, "mail": word},
            "task": {"a": GOOD, "b": GOOD, "spent": GOOD, "old": GOOD},
            "due": {"a": T},
            "ready/": ["b"],
            "leased": {"spent": T},
            "lease": {"spent": "9:9:3:x"},
            "dead": {"old": 0},
        }
    )
    found = shard.run(dispatch(keys))
    assert (found.moved, found.buried) == (1, 1)
    assert shard.run(listing.trim(keys, EPOCH, age_ms=1000, keep=9).at(NOW)).removed == 1
    assert shard.run(claim(keys)).ids == ["b", "a"]
    assert shard.run(settle(keys, SettleGiveBack("a", "tok"), SettleAck("b", "tok"))) == {}
    assert shard.state()["due"] == {"a": T}
    counts = shard.run(observe.peek(keys, EPOCH, ["", "mail"], draw=9).at(NOW))
    assert (counts.scheduled, counts.dead) == (1, 1)
    assert shard.run(listing.page_ready(keys, EPOCH, "", None, count=9).at(NOW)).whole


@pytest.mark.parametrize("word", NUMBERS)
def test_counters_of_what_leaves(shard: Shard, keys: ShardKeys, word: str) -> None:
    fields = dict.fromkeys(("forwarded", "moved", "reaped"), word)
    stored: State = {"task": dict.fromkeys("abc", GOOD), "ready/": ["a"], "due": {"b": T + 50}, "leased": {"c": T}}
    shard.seed({"meta": meta() | fields} | stored)
    assert shard.run(dispatch(keys)).reaped == 1
    assert shard.run(forward(keys)).sent == 2
    assert len(shard.run(resharding.take(keys, EPOCH, "n1", 2, ["b"]).at(NOW))) == 1


@pytest.mark.parametrize("topic", ["no topic", "\udcff", "a\nb", "x" * 65, "{a}", "ü", "*"])
def test_an_id_of_no_topic_that_can_be(shard: Shard, keys: ShardKeys, topic: str) -> None:
    due, held = f"{topic}/due", f"{topic}/held"
    shard.seed(
        {
            "meta": meta(),
            "task": {due: GOOD, held: GOOD, "good": GOOD},
            "due": {due: T - 9, "good": T},
            "leased": {held: T - 9},
            "lease": {held: "0:0::me:1"},
        }
    )
    found = shard.run(dispatch(keys))
    assert (found.moved, found.by_topic, found.lacking) == (1, (("", 1),), ())
    assert shard.state()["why"] == {due: UNREADABLE, held: UNREADABLE}
    assert shard.state()["dead"] == {due: T, held: T}
    assert "due" not in shard.state()
    assert "leased" not in shard.state()


def test_the_longest_topic(shard: Shard, keys: ShardKeys) -> None:
    topic = "x" * 64
    shard.seed({"meta": meta(), "task": {f"{topic}/a": GOOD}, "due": {f"{topic}/a": T}})
    assert shard.run(dispatch(keys, [topic])).moved == 1
    assert shard.run(claim(keys, {topic: 9})).ids == [f"{topic}/a"]


@pytest.mark.parametrize("id", ["a\nb", "\na", "a\n", "\n"])
def test_an_id_with_a_line_feed(shard: Shard, keys: ShardKeys, id: str) -> None:
    shard.seed({"meta": meta(), "task": {id: GOOD, "good": GOOD}, "ready/": [id, "good"]})
    assert shard.run(claim(keys)).ids == ["good"]
    assert shard.state()["why"] == {id: UNREADABLE}


@pytest.mark.parametrize(("topic", "id"), [("mail", "bad"), ("mail", "sms/bad"), ("mail", "mailbad"), ("", "mail/bad")])
def test_an_id_of_another_topic(shard: Shard, keys: ShardKeys, topic: str, id: str) -> None:
    """Who takes a topic's tasks gets no other ones."""
    good = f"{topic}/good" if topic else "good"
    ready: State = {"task": {id: GOOD, good: GOOD}, f"ready/{topic}": [id, good], "meta": meta()}
    shard.seed(ready)
    assert shard.run(claim(keys, {topic: 9})).ids == [good]
    assert shard.state()["why"] == {id: UNREADABLE}
    shard.seed(ready)
    assert shard.run(forward(keys, topic)).sent == 1
    assert shard.state()["why"] == {id: UNREADABLE}


def test_an_id_that_is_no_text(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "task": {"\udcff": GOOD, "good": GOOD}, "ready/": ["\udcff", "good"]})
    claimed = shard.run(claim(keys))
    assert claimed.ids == ["\udcff", "good"]
    assert claimed.foreign == {0}
    assert shard.run(settle(keys, *(SettleAck(id, "tok") for id in claimed.ids))) == {}
    assert "task" not in shard.state()


@pytest.mark.parametrize("score", ["-inf", "+inf", "-1e300", "1e300", "1.7e308", "-0.5"])
def test_scores(shard: Shard, keys: ShardKeys, score: str) -> None:
    shard.seed({"meta": meta(), "task": {"bad": GOOD, "good": GOOD}, "due": {"good": T}})
    for key in ("due", "leased", "seen", "dead"):
        shard.do("ZADD", keys.prefix + key, score, "bad")
    first = shard.run(dispatch(keys))
    assert first.oldest_ms <= T
    assert "good" in shard.run(claim(keys)).ids
    for _ in range(3):
        found = shard.run(dispatch(keys, limit=1))
        assert found.next_us is None or found.next_us >= 0
    shard.run(observe.peek(keys, EPOCH, [""], draw=9).at(NOW))
    for state in ("scheduled", "leased", "dead"):
        shard.run(listing.page(keys, EPOCH, state, Span(), count=9).at(NOW))


@pytest.mark.parametrize(
    "epoch",
    [
        "",
        "x",
        "nan:v:e",
        "inf:v:e",
        f"{'9' * 30}:v:e",
        f"{2**53}:v:e",
        "3.0:v:e",
        " 3:v:e",
        "03:v:e",
        "3",
        "3:",
        "3:v:e:c",
    ],
)
def test_an_epoch_that_is_none(shard: Shard, keys: ShardKeys, epoch: str) -> None:
    """The shard counts as one that was never opened, and who opens it writes the epoch anew."""
    shard.seed({"meta": meta() | {"epoch": epoch}, "task": {"good": GOOD}, "due": {"good": T}})
    with pytest.raises(Missing):
        shard.run(dispatch(keys))
    shard.run(opening(keys, EPOCH))
    assert shard.run(dispatch(keys)).moved == 1


@pytest.mark.parametrize("word", NUMBERS)
def test_a_bucket(centre: Shard, control: ControlKeys, word: str) -> None:
    for field in ("tokens", "at_us", "clock", "ahead", "turn_ms"):
        centre.seed(OPEN | {RATE: {field: word}})
        granted = centre.run(permit(control, 1, rate=10.0, concurrency=2))
        assert granted.granted in (0, 1), field
        assert 0 <= granted.again_ms <= 5000, field
        centre.run(release(control, 0, "mail", ["me:1#1"], unused=1))


def test_a_rate_of_nearly_nothing(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    limit = Limit(rate=1e-300).rate
    assert centre.run(permit(control, 1, rate=limit)).granted == 1
    assert centre.run(permit(control, 1, rate=limit)).again_ms == 3_600_000


@pytest.mark.parametrize("epoch", ["", "x", "nan:a:e", "inf:a:e", f"{'9' * 30}:a:e", f"{2**53}:a:e", "3"])
def test_an_epoch_of_the_topology_that_is_none(centre: Shard, control: ControlKeys, epoch: str) -> None:
    """It makes nobody stale: nothing newer could be read."""
    centre.seed({"topology": {"epoch": epoch}})
    assert centre.run(permit(control, 1, concurrency=4)).granted == 1
