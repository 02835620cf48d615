"""Engines that encrypt: a payload that was not encrypted for its task by a known key is never handled, and the task is
dead at once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from cluster.server import Server
from shardq import Delivery, Engine, Task
from shardq.codecs import bound_to, encrypted
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.slots import tag
from shardq.core.model.ids import Ids
from shardq.core.model.record import JSON, MSGPACK, RAW, encode_record
from shardq.errors import PayloadNotAuthentic, PayloadNotEncodable
from shardq.outbox import Outbox, OutboxRelay
from tests.support.engines import SHARDS, Engines
from tests.support.heads import encode_head
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until

KEY, OTHER = (Fernet.generate_key() for _ in range(2))

HEAD = encode_head(nonce=5)


class Stored:
    """The records of an engine, as somebody who may write to the server reads and writes them."""

    def __init__(self, engine: Engine, servers: Servers) -> None:
        self._engine = engine
        self._servers = servers

    def __getitem__(self, id: str) -> bytes:
        keys = shard_keys(self._engine.name, self._engine.topology.shard_of(id))
        record: bytes = self._servers.ask(keys.slot, "HGET", keys.task, id)
        return record

    def __setitem__(self, id: str, record: bytes) -> None:
        keys = shard_keys(self._engine.name, self._engine.topology.shard_of(id))
        assert self._servers.ask(keys.slot, "HSET", keys.task, id, record) == 0


def payload_at(record: bytes) -> int:
    """The place of the payload in a record with a head."""
    return 3 + int.from_bytes(record[1:3], "big")


def flipped(record: bytes, at: int) -> bytes:
    changed = bytearray(record)
    changed[at] ^= 1
    return bytes(changed)


CLEAR = "the payload is in the clear"
CHANGED = "none of the keys has encrypted it, or it was changed"
MOVED = "it was encrypted for another task, "

ATTACKS: dict[str, tuple[str, Callable[[Stored, str], bytes]]] = {
    "clear": (CLEAR, lambda stored, id: encode_record(JSON, "evil")),
    "clear-with-a-head": (CLEAR, lambda stored, id: encode_record(MSGPACK, "evil", encode_head(headers={"a": "b"}))),
    "clear-with-a-nonce": (CLEAR, lambda stored, id: encode_record(JSON, "evil", HEAD)),
    "another-codec": (CLEAR, lambda stored, id: encode_record(RAW, b"evil", HEAD)),
    "another-key": (CHANGED, lambda stored, id: encode_record(encrypted(OTHER), "evil", HEAD, id=id)),
    "moved-id": (f"{MOVED}'mail/good'", lambda stored, id: stored["mail/good"]),
    "moved-topic": (f"{MOVED}'sms/moved-topic'", lambda stored, id: stored["sms/moved-topic"]),
    "truncated": (CHANGED, lambda stored, id: stored[id][:-1]),
    "empty": (CHANGED, lambda stored, id: stored[id][: payload_at(stored[id])]),
    "first-byte": (CHANGED, lambda stored, id: flipped(stored[id], payload_at(stored[id]))),
    "last-byte": (CHANGED, lambda stored, id: flipped(stored[id], -1)),
    "of-a-schedule": (
        f"{MOVED}'mail/every-often@'",
        lambda stored, id: encode_record(encrypted(KEY), "often", HEAD, id="mail/every-often@"),
    ),
}


@pytest.mark.parametrize("by", ["claim", "worker"])
def test_each_is_dead_at_once(
    by: str, engines: Engines, url: str, name: str, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS, codec=encrypted(KEY))
    stored, got = Stored(engine, servers), list[tuple[str, Any]]()
    engine.start()
    engine.push("earlier", id="earlier", topic="mail", delay=FAR_S)
    replayed = stored["mail/earlier"]
    engine.reschedule("mail/earlier", delay=0)
    consumer = engine.consumer("mail")
    consumer.ack(*claim(consumer, 1))

    for id in ("good", "replayed", *ATTACKS):
        engine.push(id, id=id, topic="mail", delay=FAR_S)
    engine.push("moved-topic", id="moved-topic", topic="sms", delay=FAR_S)
    reasons = {f"mail/{word}": reason for word, (reason, _) in ATTACKS.items()}
    reasons["mail/replayed"] = f"{MOVED}'mail/earlier'"
    for word, (_, attack) in ATTACKS.items():
        stored[f"mail/{word}"] = attack(stored, f"mail/{word}")
    stored["mail/replayed"] = replayed
    engine.push("made", topic="mail")
    for id in ("mail/good", *reasons):
        engine.reschedule(id, delay=0)

    def all_dead() -> bool:
        if by == "claim":
            got.extend((delivery.id, delivery.payload) for delivery in consumer.claim(50, wait=0.1))
        return all(state_of_stored(engine, id) == "dead" for id in reasons) and len(got) == 2

    if by == "claim":
        wait_until(all_dead, "all are claimed or dead")
    else:
        worker = engine.worker()

        @worker.on("mail")
        def note(delivery: Delivery) -> None:
            got.append((delivery.id, delivery.payload))

        with engines.working(worker):
            wait_until(all_dead, "all are handled or dead")
    assert sorted(payload for _, payload in got) == ["good", "made"]
    for id, reason in reasons.items():
        info = engine.get(id, decode=False)
        assert info is not None
        assert str(info.reason).startswith(f"refused: {reason}"), id
        assert info.lapses == 0
        assert caplog.text.count(f"task {id} is refused, and dead: ") == 1
        with pytest.raises(PayloadNotAuthentic, match=r"in the clear|encrypted"):
            engine.get(id)
    assert {info.id: info.payload for info in engine.tasks("mail", state="dead")} == dict.fromkeys(reasons)


def state_of_stored(engine: Engine, id: str) -> str:
    info = engine.get(id, decode=False)
    return "gone" if info is None else info.state


def test_clear_ones_are_read_for_the_time_of_a_change(engines: Engines, url: str, name: str, servers: Servers) -> None:
    clear = engines.opened(url, name=name, shards=SHARDS)
    for id in ("clear", "headed", "moved"):
        clear.push(id, id=id, delay=FAR_S, headers={"a": "b"} if id == "headed" else None)
    clear.push("plain")
    engine = engines.opened(url, name=name, codec=encrypted(KEY, clear="read"))
    engine.push("encrypted", id="encrypted", delay=FAR_S)
    stored = Stored(engine, servers)
    stored["moved"] = stored["encrypted"]
    for id in ("clear", "headed", "moved", "encrypted"):
        engine.reschedule(id, delay=0)
    engine.start()
    got = claim(engine.consumer(), 4)
    assert {delivery.payload for delivery in got} == {"clear", "headed", "plain", "encrypted"}

    def other_dead() -> bool:
        assert engine.consumer().claim(10, wait=0.1) == []
        return state_of_stored(engine, "moved") == "dead"

    wait_until(other_dead, "the other is dead")


def test_an_authentic_payload_that_the_inner_codec_can_not_read_is_a_failed_attempt(
    engines: Engines, url: str, name: str
) -> None:
    id = engines.opened(url, name=name, shards=1, codec=encrypted(KEY, codec="raw")).push(b"{")
    engine = engines.opened(url, name=name, codec=encrypted(KEY))
    engine.start()

    def failed() -> bool:
        assert engine.consumer().claim(1, wait=0.1) == []
        info = engine.get(id, decode=False)
        return info is not None and info.failures > 0

    wait_until(failed, "it has failed")
    assert state_of_stored(engine, id) != "dead"


def test_a_schedule_binds_its_name_and_topic(engines: Engines, url: str, name: str, servers: Servers) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS, codec=encrypted(KEY))
    engine.every("often", interval=1, topic="mail", payload="often")
    engine.every("daily", interval=86_400, topic="mail", payload="daily")
    before = servers.held(name)
    # each program declares its schedules when it starts
    engines.opened(url, name=name, codec=encrypted(KEY)).every("daily", interval=86_400, topic="mail", payload="daily")
    assert servers.held(name) == before
    assert [schedule.payload for schedule in engine.schedules()] == ["daily", "often"]
    without_key = engines.opened(url, name=name)
    without_key.start()  # dispatchers need no key
    run = without_key.schedule("daily").run()
    assert bound_to(run) == "mail/every-daily@" != run
    got = {delivery.id: delivery.payload for delivery in claim(engine.consumer("mail"), 3)}
    assert got.pop(run) == "daily"
    assert set(got.values()) == {"often"}
    assert {bound_to(id) for id in got} == {"mail/every-often@"}


def test_ids_that_only_look_like_those_of_a_schedule_are_bound_as_they_are() -> None:
    made = "mail/every-nightly@"
    for rest in ("2030-01-02T03:00:00Z", "2030-01-02T03:00:00.500Z", "2030-01-02T03:00:00Z~2", "run--0123456789aA"):
        assert bound_to(made + rest) == made
    assert bound_to("every-x@2030-01-02T03:00:00Z") == "every-x@"
    for id in ("every-monday@ann", "a/every-x@", "a/b@2030-01-02T03:00:00Z", "a/every-x@run-short", "a/every-x@run-"):
        assert bound_to(id) == id


def test_an_id_that_collides_is_made_anew(
    engines: Engines, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.opened(url, name=name, shards=1, codec=encrypted(KEY))
    numbers = iter([1 << 70, 1 << 70, 1 << 71])
    monkeypatch.setattr(Ids, "_reserve", lambda self, n: next(numbers))
    first, second = (engine.push(n, topic="mail", delay=FAR_S, tags=["t"]) for n in (1, 2))
    assert first != second
    found = [(info.payload, info.tags) for id in (first, second) if (info := engine.get(id))]
    assert found == [(1, ("t",)), (2, ("t",))]


def test_receivers_of_forwarded_tasks_decrypt_them(engines: Engines, url: str, name: str, servers: Servers) -> None:
    with_key = engines.opened(url, name=name, shards=1, codec=encrypted(KEY))
    engine = engines.opened(url, name=name)
    listed, streamed, slot = f"list:{{{tag(name, 0)}}}", f"stream:{{{tag(name, 0)}}}", shard_keys(name, 0).slot
    engine.forward("listed", to=listed)
    engine.forward("streamed", to=f"stream:{streamed}")
    ids = [with_key.push(n, topic=topic) for n, topic in enumerate(("listed", "streamed"))]
    engine.start()
    wait_until(lambda: all(state_of(with_key, id) == "gone" for id in ids), "they are forwarded")
    [data] = servers.ask(slot, "LRANGE", listed, 0, -1)
    assert AESSIV(urlsafe_b64decode(KEY)).decrypt(data, None) == ids[0].encode() + b"\0" + b"0"
    [(_, fields)] = servers.ask(slot, "XRANGE", streamed, "-", "+")
    assert encrypted(KEY).decode(fields[b"payload"], fields[b"id"].decode()) == 1


def test_a_far_task_whose_id_is_taken_is_bound_to_its_other_id(
    engines: Engines, url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.opened(url, name=name, shards=1, codec=encrypted(KEY), far=tmp_path / "far.db")
    numbers = iter([1 << 76, 1 << 76, (1 << 76) + 1])
    monkeypatch.setattr(Ids, "_reserve", lambda self, n: next(numbers))
    at = time.time() + 30 * 86_400
    first, second = (engine.push(n, topic="mail", at=at) for n in (1, 2))
    assert first != second
    assert [info.payload for id in (first, second) if (info := engine.get(id))] == [1, 2]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sa.Engine]:
    database = sa.create_engine(f"sqlite:///{tmp_path}/app.db")
    yield database
    database.dispose()


def test_every_way_into_the_engine_binds_the_id(
    engines: Engines, own_server: Server, name: str, tmp_path: Path, database: sa.Engine
) -> None:
    """By spool, outbox and far store. Far tasks get other ids than those that were made first."""
    outbox = Outbox(codec=encrypted(KEY))
    outbox.create(database)
    far = tmp_path / "far.db"
    engine = engines.opened(
        own_server.url, name=name, shards=2, codec=encrypted(KEY), spool=tmp_path / "spool", far=far, timeout=2
    )
    ids: list[str] = [
        engine.push(0, delay=30 * 86_400),
        *engine.push_many([Task(1, delay=30 * 86_400), Task(2, delay=60)]),
    ]
    with database.begin() as connection:
        ids += [outbox.push(connection, 3, delay=30 * 86_400), outbox.push(connection, 4, delay=60)]
        ids += [outbox.push(connection, 5, id="own", topic="mail", delay=60)]
    with Engine(own_server.url, name=name, far=far) as relaying:
        relay = OutboxRelay(relaying, database)
        while relay.step():
            pass
        relay.close()
    own_server.pause()
    ids += [engine.push(6, delay=60), engine.push(7, delay=60, id="x", topic="mail")]
    own_server.resume()
    engine.start()

    def replayed() -> bool:
        spool = engine.stats().spool
        return spool is not None and spool.waiting == 0

    wait_until(replayed, "all are replayed")
    assert [info.payload for id in ids if (info := engine.get(id))] == list(range(8))
    page = engine.tasks()
    listed = [*page]
    while page.cursor is not None:
        page = engine.tasks(cursor=page.cursor)
        listed += page
    assert sorted(info.payload for info in listed) == list(range(8))


class Signed:
    """Somebody's own codec that authenticates, and encrypts nothing."""

    name = "signed"
    clear: Literal["refuse", "read"] = "refuse"

    def encode(self, payload: Any, id: str = "", /) -> bytes:
        text = json.dumps(payload).encode()
        return self._sign(text, id) + text

    def decode(self, data: bytes, id: str = "", /) -> Any:
        if not hmac.compare_digest(data[:32], self._sign(data[32:], id)):
            raise PayloadNotAuthentic("the signature is not of this task")
        return json.loads(data[32:])

    def _sign(self, text: bytes, id: str) -> bytes:
        return hmac.digest(b"key", bound_to(id).encode() + b"\0" + text, hashlib.sha256)


def test_a_codec_of_the_user_gets_the_id(engines: Engines, url: str, name: str, servers: Servers) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS, codec=Signed())
    for id in ("good", "moved"):
        engine.push(id, id=id, delay=FAR_S)
    engines.opened(url, name=name).push("clear", id="clear")
    stored = Stored(engine, servers)
    stored["moved"] = stored["good"]
    for id in ("good", "moved"):
        engine.reschedule(id, delay=0)
    engine.start()
    assert [delivery.payload for delivery in claim(engine.consumer(), 1)] == ["good"]

    def others_dead() -> bool:
        assert engine.consumer().claim(10, wait=0.1) == []
        return [state_of_stored(engine, id) for id in ("moved", "clear")] == ["dead", "dead"]

    wait_until(others_dead, "the others are dead")
    info = engine.get("moved", decode=False)
    assert info is not None
    assert info.reason == "refused: the signature is not of this task"


def test_a_codec_around_it_is_told_that_it_goes_inside() -> None:
    class Around:
        name = "around"

        def encode(self, payload: Any, /) -> bytes:
            return encrypted(KEY).encode(payload)

        def decode(self, data: bytes, /) -> Any:
            return encrypted(KEY).decode(data)

    with pytest.raises(PayloadNotEncodable, match=r"a codec of yours goes into it, encrypted\(KEY, codec=…\)"):
        Engine("redis://127.0.0.1:1", codec=Around()).push(1)
