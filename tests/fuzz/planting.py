"""Things that another program, another version or a failover may have left in an engine's keys: strategies of plain
commands that put them there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from shardq.core.fleet.report import Report, RouteStats, RunningTask, UnknownCall
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.model.ids import topic_of
from shardq.core.model.record import JSON, encode_record
from shardq.features.history import LENGTH
from shardq.features.schedules.entry import Declaration, State, encode
from tests.fuzz.nasty import EVIL, json_of, msgpack_of, records, scores, texts, words

Words = tuple[str | bytes | int, ...]

FAR_MS = 3_600_000


class Plant(NamedTuple):
    """One thing: its kind, and the commands that put it there."""

    kind: str
    commands: tuple[Words, ...]


class Place(NamedTuple):
    """Where things are put: a shard, and the control slot."""

    keys: ShardKeys
    control: ControlKeys
    now_ms: int


_GOOD = encode_record(JSON, "of another program")
TOPICS = ("", "mail", "slow", "work", "sms", "tick")
"""Those that are used beside what is put there."""

_TOPICS = [topic.encode() for topic in TOPICS]

_ids = st.one_of(
    st.sampled_from(
        [b"bad", b"mail/bad", b"mail/", b"/bad", b"\xff\xfe", b"mail/\xff", b"a\nb", b"mail/a\nb", b"\xff/bad"]
    ),
    st.sampled_from([b"", b"no topic of ours/x", b"mail/" + b"x" * 5000, b"x" * 65 + b"/y", f"mail/{EVIL}".encode()]),
    st.builds(lambda topic, word: topic + b"/bad" + word, st.sampled_from(_TOPICS), words),
    words,
)

_entries = st.one_of(
    words,
    st.sampled_from([b"0:0::", b"1:2:3:x", b"0:0:25:", b":::", b"x:0:3:t", b"0:1e5:3:t", b"-1:0:3:t", b"0:0:3:~p:1"]),
    st.builds(lambda *parts: b":".join(parts), words, words, words, words),
)


@st.composite
def _task(draw: st.DrawFn, at: Place) -> list[Words]:
    """An id in any state, with any record and any lease entry, of which any may be missing."""
    id, now, keys = draw(_ids), at.now_ms, at.keys
    topic = id.partition(b"/")[0] if b"/" in id else b""
    commands: list[Words] = []
    if draw(st.integers(0, 9)):
        record = draw(records()) if draw(st.booleans()) else _GOOD
        commands.append(("HSET", keys.task, id, record))
    if draw(st.booleans()):
        commands.append(("HSET", keys.lease, id, draw(_entries)))
    places: list[Words] = [
        ("ZADD", keys.due, now - 1000, id),
        ("ZADD", keys.due, now + FAR_MS, id),
        ("RPUSH", f"{keys.prefix}ready/".encode() + topic, id),
        ("RPUSH", keys.ready(draw(st.sampled_from(TOPICS))), id, id),
        ("ZADD", keys.leased, now - 1000, id),
        ("ZADD", keys.leased, now + FAR_MS, id),
        ("ZADD", keys.dead, now - 1000, id),
        ("ZADD", draw(st.sampled_from([keys.due, keys.leased, keys.dead])), draw(scores), id),
    ]
    commands += draw(st.lists(st.sampled_from(places), min_size=1, max_size=2))
    if draw(st.booleans()):
        commands.append(("HSET", keys.why, id, draw(words)))
    return commands


def _ghost(at: Place) -> st.SearchStrategy[list[Words]]:
    return st.builds(
        lambda id, count, entries: [
            ("HSET", at.keys.ghost, id, count),
            *[("RPUSH", at.keys.ready(topic_of(id.decode(errors="replace"))), id)] * entries,
        ],
        _ids,
        st.one_of(words, st.sampled_from([b"1", b"2", b"1000000"])),
        st.integers(0, 2),
    )


def _counter(at: Place) -> st.SearchStrategy[list[Words]]:
    return st.builds(
        lambda key, topic, count: [("HSET", key, topic, count)],
        st.sampled_from([at.keys.topics, at.keys.looks]),
        st.one_of(st.sampled_from(_TOPICS), words),
        words,
    )


def _seen(at: Place) -> st.SearchStrategy[list[Words]]:
    return st.builds(
        lambda id, behind, score: [("ZADD", at.keys.seen, score, id + behind)],
        _ids,
        st.sampled_from([b"", b"\n", b"\n7", b"\nx", b"\n1\n2"]),
        st.one_of(scores, st.just(str(at.now_ms + FAR_MS))),
    )


def _parcel(at: Place) -> st.SearchStrategy[list[Words]]:
    part = st.one_of(words, st.sampled_from([b"0", b"1", b"5000", b"due", b"dead", b"n1"]))
    made = st.builds(
        lambda target, kind, lease, why, record: (
            b"n1|%b|%b|%d|%b|%b|%b" % (target, kind, at.now_ms, lease, why, record)
        ),
        st.sampled_from([b"0", b"1", b"2", b"1023", b"1024", b"99999999999", b"-1", b"x", b""]),
        st.sampled_from([b"due", b"dead", b"x", b""]),
        part,
        part,
        records(),
    )
    parcels = st.one_of(made, words, st.lists(part, max_size=8).map(b"|".join))
    return st.builds(lambda id, parcel: [("HSET", at.keys.moved, id, parcel)], _ids, parcels)


def _mark(at: Place) -> st.SearchStrategy[list[Words]]:
    return st.builds(lambda id, number: [("HSET", at.keys.staged, id + b"|" + number, "")], _ids, words)


_META = (
    *("wake_at", "late", "clock", "ahead", "poller", "reaped", "buried", "forwarded", "moved", "trimmed", "trimmed_at"),
    *("swept", "sealed", "beat/outbox", "died/mail", "died/", "ghosts/mail", "ghosts/", "of_a_later_version"),
)


def _meta(at: Place) -> st.SearchStrategy[list[Words]]:
    return st.builds(lambda field, word: [("HSET", at.keys.meta, field, word)], st.sampled_from(_META), words)


def _waiting(at: Place) -> st.SearchStrategy[list[Words]]:
    keys = [at.keys.waiting("mail"), at.keys.waiting("work"), at.control.waiting("slow")]
    return st.builds(
        lambda key, who, score: [("ZADD", key, score, who)],
        st.sampled_from(keys),
        words,
        st.one_of(scores, st.just("1")),
    )


def _member(at: Place) -> st.SearchStrategy[list[Words]]:
    until = st.one_of(scores, st.just(str(at.now_ms + 2000)), st.just(f"{at.now_ms + 2000}.5"))
    keys = st.sampled_from([at.control.members, at.control.workers])
    return st.builds(lambda key, who, score: [("ZADD", key, score, who)], keys, words, until)


def _report(at: Place) -> st.SearchStrategy[list[Words]]:
    return st.builds(
        lambda key, who, text: [
            ("ZADD", key, at.now_ms + 2000, who),
            ("HSET", at.control.reports, who, text),
        ],
        st.sampled_from([at.control.members, at.control.workers]),
        st.one_of(st.just(b"another"), words),
        msgpack_of(REPORT),
    )


REPORT = msgspec.to_builtins(
    Report(
        host="host",
        pid=7,
        version="9.9",
        since=1.7e9,
        alive_s=3.0,
        topics=("mail",),
        concurrency=1,
        running=1,
        handled=7,
        batches=2,
        batched=7,
        tasks=("f",),
        unknown=(UnknownCall(task="f", topic="mail", count=3, seconds=4.0),),
        longest=(RunningTask(id="mail/x", topic="mail", seconds=60.0),),
        stuck=1,
        problems=("none",),
        sinks=(RouteStats(topic="sms", to="nats://n", circuit="open", error="down"),),
        forwards=1,
        shards=(0, 1),
        error="an error",
        dispatch={"mail": [0, 3, 7]},
        pickup={"mail": [0, 3, 7]},
        key_wait={"mail": [0, 3, 7]},
    )
)


def _bucket(at: Place) -> st.SearchStrategy[list[Words]]:
    return st.one_of(
        st.builds(
            lambda field, word: [("HSET", at.control.bucket("slow"), field, word)],
            st.sampled_from(["tokens", "at_us", "clock", "ahead"]),
            words,
        ),
        st.builds(lambda who, score: [("ZADD", at.control.permits("slow"), score, who)], words, scores),
    )


_declaration = Declaration(
    cron="* * * * *",
    interval_ms=None,
    tz="Europe/Berlin",
    topic="mail",
    jitter_ms=0,
    catch_up="one",
    record=_GOOD,
    start_ms=1000,
    end_ms=4_102_444_800_000,
    expires_ms=60_000,
    owner="shop",
    declared_ms=1_700_000_000_000,
)
DECLARED = msgspec.to_builtins(_declaration) | {"interval_ms": None, "overlap": "allow"}
INTERVAL = DECLARED | {"cron": None, "interval_ms": 60_000, "overlap": "skip", "jitter_ms": 5}


def states(now_ms: int) -> list[dict[str, object]]:
    state = State(generation=1, since_ms=now_ms - 600_000, changed_ms=now_ms - 600_000, times=_declaration.times)
    full = msgspec.structs.replace(
        state,
        tasks=_declaration.tasks,
        topic="mail",
        batch=(now_ms - 60_000, now_ms - 30_000),
        pushed=1,
        last_ms=now_ms - 120_000,
        last_id="mail/every-bad@1",
        stay=(("mail/every-bad@2", now_ms - 10, now_ms + 900),),
    )
    retracting = msgspec.structs.replace(
        full, batch=(), pushed=0, retract=(("mail/every-bad@3", now_ms - 10, True),), held=("mail/every-bad@4",)
    )
    return [msgspec.json.decode(encode(each)) for each in (state, full, retracting)]


@st.composite
def _schedule(draw: st.DrawFn, at: Place) -> list[Words]:
    name = draw(st.one_of(st.just(b"bad"), st.just(b"bad"), words))
    declaration, noted = draw(st.sampled_from([DECLARED, INTERVAL])), draw(st.sampled_from(states(at.now_ms)))
    declared, state = msgspec.json.encode(declaration), msgspec.json.encode(noted)
    which = draw(st.sampled_from(["declaration", "state", "both"]))
    if which != "state":
        declared = draw(json_of(declaration))
    if which != "declaration":
        state = draw(json_of(noted))
    both: list[Words] = [
        ("HSET", at.control.schedules, name, state),
        ("HSET", at.control.schedules, name + b"/declared", declared),
    ]
    kept = draw(st.sampled_from([both, both, both, both[:1], both[1:]]))
    return [*kept, ("SPUBLISH", at.control.news, b"schedules/" + name)]


def _history(at: Place) -> st.SearchStrategy[list[Words]]:
    texts = st.one_of(words, st.binary(max_size=90), st.just(b"\xff" * LENGTH))
    return st.builds(
        lambda offset, text: [("SETRANGE", at.control.history, offset, text)], st.sampled_from([0, 4, 65_536]), texts
    )


def _change(at: Place) -> st.SearchStrategy[list[Words]]:
    valid = {"at": "2030-01-01T00:00:00Z", "by": "ann", "what": "paused mail"}
    return st.builds(lambda text: [("LPUSH", at.control.changes, text)], json_of(valid))


def _message(at: Place) -> st.SearchStrategy[list[Words]]:
    """Nothing that stays, but processes hear it."""
    channels = st.sampled_from([at.control.news, at.control.news, at.keys.bell, at.keys.wake("x")])
    texts = st.one_of(words, words.map(lambda word: b"opened " + word), words.map(lambda word: b"schedules/" + word))
    return st.builds(lambda channel, text: [("SPUBLISH", channel, text)], channels, texts)


_KINDS: dict[str, Callable[[Place], st.SearchStrategy[list[Words]]]] = {
    "task": _task,
    "ghost": _ghost,
    "counter": _counter,
    "seen": _seen,
    "parcel": _parcel,
    "mark": _mark,
    "meta": _meta,
    "waiting": _waiting,
    "member": _member,
    "report": _report,
    "bucket": _bucket,
    "schedule": _schedule,
    "history": _history,
    "change": _change,
    "message": _message,
}

_OFTEN = ["task"] * 4 + ["report", "schedule", "parcel"]


def plants(at: Place) -> st.SearchStrategy[list[Plant]]:
    """Some things, each of one kind."""

    def of(kind: str) -> st.SearchStrategy[Plant]:
        return _KINDS[kind](at).map(lambda commands: Plant(kind, tuple(commands)))

    each = st.sampled_from([*_KINDS, *_OFTEN]).flatmap(of)
    return st.lists(each, min_size=1, max_size=5)


def following(epoch: bytes) -> bytes:
    """The epoch of the next change, as it is stored."""
    before = Stamp.of(epoch)
    return f"{before.epoch + 1}:{before.word}:{before.engine}".encode()


@st.composite
def topologies(draw: st.DrawFn, stored: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The fields of a topology, of which some are other ones than those that are stored; of the next epoch. A process
    that can't read the format does nothing, on purpose: that stays.
    """
    fields = {**stored, b"epoch": following(stored[b"epoch"])}
    for name in draw(st.sets(st.sampled_from(sorted(stored.keys() - {b"format", b"features"})), max_size=2)):
        what = draw(st.integers(0, 3))
        if what == 0:
            del fields[name]
        elif what == 1 or name == b"epoch":
            fields[name] = draw(words)
        else:
            fields[name] = draw(json_of(msgspec.json.decode(stored[name])))
    if draw(st.booleans()):
        fields[draw(texts).encode(errors="replace")] = draw(words)
    return fields


def topology_copies(topology: Topology) -> st.SearchStrategy[bytes]:
    """Copies of a topology in the meta of a shard, likewise."""
    copy = msgspec.json.decode(topology.to_text())
    return json_of({name: value for name, value in copy.items() if name not in ("format", "features")})


def now_ms() -> int:
    return int(time.time() * 1000)
