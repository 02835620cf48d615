"""Payloads that are encrypted where they are stored."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from shardq import Engine, Task
from shardq.codecs import encrypted
from shardq.errors import InvalidOption, PayloadNotDecodable, PayloadNotEncodable
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S

OLD, NEW = (Fernet.generate_key() for _ in range(2))
SECRET = "ann@example.org"


def stored(servers: Servers, name: str) -> bytes:
    return b"".join(servers.held(name).values()) + b"".join(servers.held(name))


def test_nothing_of_a_payload_is_stored(engines: Engines, url: str, name: str, servers: Servers) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS, codec=encrypted(OLD))
    ids = [engine.push({"to": SECRET}, delay=60), *engine.push_many([Task(SECRET, delay=60) for _ in range(3)])]
    engine.every("often", interval=3600, payload=SECRET)
    assert SECRET.encode() not in stored(servers, name)
    infos = [engine.get(id) for id in ids]
    assert [str(info and info.payload).count(SECRET) for info in infos] == [1] * 4
    other = engines.opened(url, name=name, codec=encrypted(NEW))
    info = other.get(ids[0], decode=False)
    assert info is not None
    assert SECRET.encode() not in info.payload


def test_a_new_key_goes_in_front(engines: Engines, url: str, name: str) -> None:
    old = engines.opened(url, name=name, shards=SHARDS, codec=encrypted(OLD))
    both = engines.opened(url, name=name, codec=encrypted(NEW, OLD))
    first, second = old.push("first", delay=60), both.push("second", delay=60)
    assert [info.payload for id in (first, second) if (info := both.get(id))] == ["first", "second"]
    new = engines.opened(url, name=name, codec=encrypted(NEW))
    assert [info.payload for info in [new.get(second)] if info] == ["second"]
    with pytest.raises(PayloadNotDecodable, match="none of the keys has encrypted it"):
        new.get(first)


def test_arguments_of_named_tasks(url: str, name: str, servers: Servers) -> None:
    got: list[Any] = []
    at = dt.datetime(2030, 1, 2, tzinfo=dt.UTC)
    with Engine(url, name=name, shards=SHARDS, codec=encrypted(OLD)) as engine:

        @engine.task(topic="mail", name="send")
        def send(to: str, at: dt.datetime, size: tuple[int, int]) -> None:
            got.append((to, at, size))

        send.options(delay=0.2).push(SECRET, at, (1, 2))
        assert SECRET.encode() not in stored(servers, name)
        engine.start()
        worker = engine.worker()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(worker.run, signals=False)
            wait_until(lambda: got, "it is handled", timeout=SOON_S)
            worker.stop()
    assert got == [(SECRET, at, (1, 2))]


def test_what_is_spooled_is_encrypted(own_server: Any, name: str, tmp_path: Path) -> None:
    with Engine(own_server.url, name=name, codec=encrypted(OLD), spool=tmp_path / "s", timeout=1) as engine:
        own_server.pause()
        assert engine.push(SECRET, id="x").outcome == "spooled"
        assert SECRET.encode() not in (tmp_path / "s").read_bytes()
        own_server.resume()


def test_what_it_refuses() -> None:
    with pytest.raises(InvalidOption, match="needs a key"):
        encrypted()
    for key in ("short", b"x" * 44, 5):
        with pytest.raises(InvalidOption, match="32 bytes in url-safe base64"):
            encrypted(key)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidOption, match="clear can't be 'no'; use 'refuse', or 'read'"):
        encrypted(OLD, clear="no")  # type: ignore[arg-type]  # on purpose
    assert encrypted(OLD, codec="raw").decode(encrypted(OLD, codec="raw").encode(b"\x00", "x"), "x") == b"\x00"
    assert len(encrypted(OLD).encode("x" * 100, "mail/x")) == 102 + 17 + len("mail/x")
    with pytest.raises(PayloadNotEncodable, match="bytes would come back as text"):
        Engine("redis://127.0.0.1:1", codec=encrypted(OLD)).push(b"x")
