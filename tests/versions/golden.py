"""What a release stores, kept as text: ``python -m tests.versions.golden NAME`` makes ``golden/NAME`` with this build.

Each release makes its own before it is tagged, and none is made again. A folder has

- ``keys.json``: every key of an engine with tasks in all states, a resize on its way, schedules, routes, limits,
  reports, a history and the log of changes;
- ``spool.sql``, ``outbox.sql``: a spool and an outbox (SQLite) with commands that wait;
- ``expected.json``: what a user has to find there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa

from cluster.server import Server
from shardq import Engine, Task, outbox
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from tests.resharding.migration import Migration, moving_ids
from tests.support.states import claim, ready_of, state_of
from tests.support.waiting import wait_until

FOLDER = Path(__file__).parent / "golden"
NAME = "golden"
SHARDS, MORE = 4, 6
FAR_S = 15 * 365 * 86_400.0
"""Later than any test of any release."""

SOON_S = 90.0

Key = tuple[str, Any]
"""The type of a key, and its content: of bytes the characters of Latin-1."""


# ---- keys as text


def stored(client: redis.Redis) -> dict[str, Key]:
    """Every key of a server."""
    return {_text(key): _read(client, key) for key in sorted(client.scan_iter(count=1000))}


def _read(client: Any, key: bytes) -> Key:
    kind = _text(client.type(key))
    match kind:
        case "hash":
            return kind, {_text(field): _text(value) for field, value in sorted(client.hgetall(key).items())}
        case "zset":
            return kind, [[_text(member), score] for member, score in client.zrange(key, 0, -1, withscores=True)]
        case "list":
            return kind, [_text(each) for each in client.lrange(key, 0, -1)]
        case "string":
            return kind, _text(client.get(key))
    raise AssertionError(f"{key!r} is a {kind}")


def store(ask: Any, key: str, kind: str, content: Any) -> None:
    """Writes a key. ``ask`` sends a command, of words."""
    match kind:
        case "hash":
            ask("HSET", _raw(key), *(_raw(word) for item in content.items() for word in item))
        case "zset":
            ask("ZADD", _raw(key), *(word for member, score in content for word in (score, _raw(member))))
        case "list":
            ask("RPUSH", _raw(key), *map(_raw, content))
        case _:
            ask("SET", _raw(key), _raw(content))


def _text(raw: bytes) -> str:
    return raw.decode("latin-1")


def _raw(text: str) -> bytes:
    return text.encode("latin-1")


def dumped(path: Path) -> str:
    """A SQLite database as the SQL that makes it."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        told = {name: database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")}
        return "\n".join([*(f"PRAGMA {name}={value};" for name, value in told.items()), *database.iterdump(), ""])


def restored(text: str, path: Path) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(text)
    return path


# ---- making them


def fill(engine: Engine, url: str) -> dict[str, Any]:
    """Has the engine hold something of everything. Returns what a user finds: id → payload, by state."""
    held: dict[str, dict[str, Any]] = {}

    def pushed(word: str, **options: Any) -> str:
        return str(engine.push({"what": word}, topic="mail", **options))

    def made(state: str, *ids: str) -> None:
        held.setdefault(state, {}).update({id: info.payload for id in ids if (info := engine.get(id))})

    engine.limit("slow", rate=5, concurrency=2)
    engine.forward("out", to="redis://127.0.0.1:1/0#jobs")
    engine.forward("rows", to="stream:rows", maxlen=1000)
    engine.configure(max_attempts=7, dead_age=FAR_S, dead_count=1000)
    engine.every("nightly", cron="0 3 * * *", tz="Europe/Berlin", topic="mail", payload={"what": "nightly"})
    engine.every("often", interval=86_400, payload=1, tags=["a"], max_attempts=2)
    engine.schedule("often").pause()

    @engine.task(topic="calls", name="shop.send")
    def send(to: str, text: str) -> None: ...

    engine.start()
    worker = engine.worker(concurrency=2)
    worker.on("nobody")(lambda delivery: None)
    working = threading.Thread(target=lambda: worker.run(signals=False))
    working.start()

    # dead, leased and ready ones, one after the other, so that each claim meets the one that is meant
    consumer = engine.consumer("mail", lease=FAR_S / 10)
    for state in ("dead", "leased"):
        ids = [pushed(f"{state} {n}", headers={"trace": "π"}, max_attempts=3) for n in range(2)]
        deliveries = claim(consumer, 2)
        if state == "dead":
            consumer.bury(deliveries, "of no use")
        made(state, *ids)
    # its second attempt is far away
    retried = pushed("retried")
    consumer.retry(claim(consumer, 1), delay=FAR_S)
    ready = [pushed("ready 1"), pushed("ready 2", id="named", dedup=FAR_S)]
    wait_until(lambda: ready_of(engine, "mail") == 2, "both are ready")
    gone = pushed("ghost")
    wait_until(lambda: state_of(engine, gone) == "ready", "it is ready")
    engine.cancel(gone)  # its entry stays in the list
    # a dedup window outlives its task
    once = str(engine.push({"what": "once"}, id="once", dedup=FAR_S))
    default = engine.consumer("", lease=60)
    default.ack(claim(default, 1))
    assert state_of(engine, once) == "gone"
    engine.pause("slow")
    wait_until(lambda: engine.history("hour").points, "a row of the history is there", timeout=SOON_S)
    wait_until(lambda: len(engine.fleet()) == 2, "both have reported", timeout=SOON_S)

    scheduled = [
        retried,
        pushed("far", delay=FAR_S),
        pushed("tagged", delay=FAR_S, tags=["user-42"], expires=2 * FAR_S),
        str(engine.push_many([Task("in a call", delay=FAR_S)])[0]),
        str(send.options(delay=FAR_S).push("ann@example.org", "π")),
    ]
    made("ready", *ready)
    with contextlib.closing(Engine(url, name=NAME, codec="msgpack").open()) as other:
        scheduled.append(str(other.push({"n": 1.5, "π": None}, delay=FAR_S)))
        held["msgpack"] = {scheduled[-1]: {"n": 1.5, "π": None}}
    with contextlib.closing(Engine(url, name=NAME, codec="raw").open()) as other:
        scheduled.append(str(other.push(b"\x00raw", delay=FAR_S)))
    # what is on its way: a task that was taken and not put yet, and one that was not begun
    movers = [str(engine.push({"what": id}, id=id, delay=FAR_S)) for id in moving_ids(SHARDS, MORE, 2)]
    made("scheduled", *(set(scheduled[:5]) | set(movers)))
    held["raw"] = {scheduled[-1]: "\x00raw"}
    worker.stop()
    working.join()
    return {"tasks": held, "moving": movers[0], "seen": once}


@contextlib.contextmanager
def halfway(url: str, id: str) -> Iterator[None]:
    """A resize that nobody carries out, with one task taken."""
    driver = Driver(Settings.from_url(url))
    driver.open()
    try:
        with Engine(url, name=NAME) as engine:
            engine.resize(MORE, rate=1)
        Migration(driver, NAME).bring(id, "taken")
        yield
    finally:
        driver.close()


def make(folder: Path, scratch: Path) -> None:
    with Server() as server, contextlib.closing(server.client()) as client:
        engine = Engine(server.url, name=NAME, shards=SHARDS).open()
        expected = fill(engine, server.url)
        # as of a process that was killed
        reports = {key: content for key, content in stored(client).items() if key.endswith((":reports", ":members"))}
        engine.close()
        for key, content in reports.items():
            store(server.ask, key, *content)
        with halfway(server.url, expected["moving"]):
            keys = stored(client)
        spool = scratch / "spool.db"
        with contextlib.closing(Engine(server.url, name=NAME, spool=spool, timeout=1).open()) as spooling:
            server.pause()
            ids = [str(spooling.push({"what": f"spooled {n}"}, id=f"spooled-{n}", delay=FAR_S)) for n in range(2)]
            expected["spooled"] = {id: {"what": f"spooled {n}"} for n, id in enumerate(ids)}
            spooling.cancel(ids[0])
            texts = dumped(spool)
            server.resume()
    database = sa.create_engine(f"sqlite:///{scratch}/outbox.db")
    outbox.create(database)
    with database.begin() as connection:
        id = outbox.push(connection, {"what": "in the outbox"}, delay=FAR_S, topic="mail")
        outbox.cancel(connection, "mail/of another time")
    database.dispose()
    expected["outbox"] = {str(id): {"what": "in the outbox"}}
    folder.mkdir(parents=True)
    (folder / "keys.json").write_text(json.dumps(keys, indent=1) + "\n")
    (folder / "spool.sql").write_text(texts)
    (folder / "outbox.sql").write_text(dumped(scratch / "outbox.db"))
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(prog="python -m tests.versions.golden", description=__doc__)
    parser.add_argument("name", help="of the release")
    folder = FOLDER / parser.parse_args().name
    if folder.exists():
        raise SystemExit(f"{folder} is there already: what a release has stored is made once")
    with tempfile.TemporaryDirectory() as scratch:
        make(folder, Path(scratch))


if __name__ == "__main__":
    main()
