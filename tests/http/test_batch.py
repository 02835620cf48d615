"""Many tasks by one request: each line is accounted for, whatever is wrong with others."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.server import Server
from shardq import AsyncEngine, Engine
from shardq.http import batch, exchange
from tests.http.calling import Program, calling

NDJSON = {"Content-Type": "application/x-ndjson"}


def test_each_line_has_its_answer(program: Program, engine: Engine) -> None:
    engine.push(0, id="taken", delay=60)
    *lines, end = program.batch(
        [
            {"payload": 1, "topic": "mail", "delay": 60},
            {"payload": 2, "delay": -1},
            {"payload": 3, "id": "taken"},
            {"payload": 4, "id": "taken", "on_conflict": "reject"},
            {"payload": 5, "nonsense": 1},
            {"payload": 6, "id": "six", "delay": "1h"},
            {"payload_base64": "AAH/", "id": "bytes", "delay": 60},
        ]
    )
    assert [each["line"] for each in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert [each.get("outcome") for each in lines] == ["pushed", None, "kept", None, None, "pushed", "pushed"]
    assert [each.get("status") for each in lines] == [None, 400, None, 409, 400, None, None]
    assert (lines[3]["id"], lines[3]["state"], lines[3]["code"]) == ("taken", "scheduled", "Conflict")
    assert end == {"end": True, "lines": 7, "done": 4, "failed": 3, "is_whole": True}
    assert engine.stats().scheduled == 4


def test_lines_that_are_none(program: Program, engine: Engine) -> None:
    body = b'\n{"payload": 1, "delay": 60}\r\n   \n{"payload": "\xff"}\nnonsense\n{"payload": 2, "delay": 60}'
    *lines, end = program.batch(body)
    assert [(each["line"], each.get("status")) for each in lines] == [(2, None), (4, 400), (5, 400), (6, None)]
    assert (end["lines"], end["done"], end["failed"]) == (6, 2, 2)
    assert program.batch(b"") == [{"end": True, "lines": 0, "done": 0, "failed": 0, "is_whole": True}]


def test_windows_are_pushed_as_they_come(program: Program, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CHUNK", 10)
    *lines, end = program.batch([{"payload": n, "id": f"n-{n}", "delay": 60} for n in range(105)])
    assert [each["id"] for each in lines] == [f"n-{n}" for n in range(105)]
    assert end["done"] == engine.stats().scheduled == 105


def test_what_is_beyond_the_last_line_is_not_read(
    program: Program, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MOST_LINES", 20)
    monkeypatch.setattr(batch, "CHUNK", 10)
    *lines, last, end = program.batch([{"payload": n, "delay": 60} for n in range(30)])
    assert (len(lines), last["status"], last["line"]) == (20, 413, 21)
    assert (end["done"], end["is_whole"]) == (20, False)
    assert engine.stats().scheduled == 20


def test_what_was_read_before_a_refusal_is_pushed_and_answered(
    program: Program, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MOST_LINES", 20)
    monkeypatch.setattr(batch, "CHUNK", 15)
    *lines, end = program.batch([{"payload": n, "delay": 60} for n in range(30)])
    assert [each["line"] for each in lines] == [*range(1, 22)]
    assert (end["lines"], end["done"], end["failed"]) == (20, 20, 1)
    assert engine.stats().scheduled == 20


def test_few_batches_are_pushed_at_one_time(
    served_engine: AsyncEngine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line takes ten times its bytes while it is pushed: 200 clients with 1,500 lines each took 136 MiB."""
    monkeypatch.setattr(exchange, "TURNS", 2)
    pushed, now, most = AsyncEngine.push_many, 0, 0

    async def counted(*given: Any, **options: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)  # others come meanwhile
        try:
            return await pushed(*given, **options)
        finally:
            now -= 1

    monkeypatch.setattr(AsyncEngine, "push_many", counted)
    with calling(served_engine) as program, ThreadPoolExecutor(12) as clients:
        told = clients.map(lambda n: program.batch([{"payload": n, "delay": 60}] * 5)[-1]["done"], range(12))
        assert list(told) == [5] * 12
    assert most == 2
    assert engine.stats().scheduled == 60


def test_no_batch_waits_for_its_turn_where_no_turn_ends(
    served_engine: AsyncEngine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where servers are silent, all say so at the same time."""
    monkeypatch.setattr(exchange, "TURNS", 0)
    monkeypatch.setattr(batch, "TURN_S", 0.3)
    with calling(served_engine) as program:
        assert program.batch([{"payload": 1, "delay": 60}])[-1]["done"] == 1


def test_a_batch_that_says_it_is_too_large_is_refused_unread(program: Program, engine: Engine) -> None:
    answer = program.post("/v1/tasks:batch", content=b"x" * (batch.MOST_BYTES + 1), headers=NDJSON)
    assert answer.status_code == 413
    assert engine.stats().scheduled == 0


def test_a_line_is_bounded_and_may_come_in_pieces(
    program: Program, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "longest", lambda _: 300_000)
    lines = [{"payload": "x" * 200_000, "delay": 60}, {"payload": 1, "delay": 60}]
    assert program.batch(lines)[-1]["done"] == 2
    answer = program.post("/v1/tasks:batch", content=b"x" * 500_000, headers=NDJSON)
    assert (answer.status_code, engine.stats().scheduled) == (413, 2)


def test_one_id_twice_in_a_batch(program: Program, engine: Engine) -> None:
    *lines, _ = program.batch([{"payload": n, "id": "same", "delay": 60, "on_conflict": "replace"} for n in range(3)])
    assert [each["outcome"] for each in lines] == ["pushed", "replaced", "replaced"]
    assert (info := engine.get("same"))
    assert info.payload == 2


def test_the_topics_of_a_token_hold_for_each_line(of: object, engine: Engine) -> None:
    shop: Program = of("shop")  # type: ignore[operator]
    *lines, end = shop.batch([{"payload": 1, "topic": topic, "delay": 60} for topic in ("order-eu", "mail", "")])
    assert [each.get("status") for each in lines] == [None, 403, None]
    assert end["done"] == engine.stats().scheduled == 2


@pytest.mark.slow
def test_without_a_server_nothing_is_said_to_be_stored(own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=2):
        pass
    with calling(AsyncEngine(own_server.url, name=name, timeout=1.0)) as program:
        assert program.push(1, delay=60).status_code == 201
        own_server.stop()
        lone = program.push(1)
        assert (lone.status_code, lone.headers["retry-after"]) == (503, "1")
        body = b"".join(json.dumps({"payload": n}).encode() + b"\n" for n in range(10))
        answer = program.post("/v1/tasks:batch", content=body, headers=NDJSON)
        if answer.status_code == 503:
            return
        statuses = Counter(json.loads(line).get("status") for line in answer.text.splitlines())
        assert set(statuses) <= {503, 504, None}
        assert statuses[None] == 1, "only the end has none"
