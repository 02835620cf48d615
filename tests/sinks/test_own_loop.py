"""HTTP sinks share one thread, which runs while any is served; what is interrupted is given back all the same."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from shardq import Engine, Task
from shardq.features.sinks import Message, Sent, routes
from shardq.features.sinks.http import HttpSink
from shardq.features.sinks.own_loop import LOOP
from tests.sinks.nasty import CLOSE, HANG, READ, NastyServer
from tests.sinks.seen import left, sink_stats
from tests.support.states import state_of
from tests.support.waiting import wait_until

TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"
BUSY = b"HTTP/1.1 503 X\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"

MESSAGE = Message(id="mail/1", topic="mail", payload=b"1", codec="json", headers={}, attempt=1)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def threads() -> int:
    return sum(thread.name == "shardq-sinks-http" for thread in threading.enumerate())


def to(server: NastyServer, options: str = "") -> str:
    return f"http://127.0.0.1:{server.port}/#{options}"


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs coroutines in the sinks' loop."""
    loop = LOOP.enter()
    yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(10)
    LOOP.leave(loop)


def test_all_routes_have_one_thread_which_ends_with_the_process(feeding: Engine) -> None:
    with NastyServer([READ, TAKEN]) as server:
        topics = [f"hooks-{n}" for n in range(3)]
        for topic in topics:
            feeding.forward(topic, to=to(server))
        assert threads() == 0, "none has had a task"
        feeding.push_many([Task(n, topic=topic) for topic in topics for n in range(20)])
        wait_until(lambda: left(feeding) == 0, "all are taken")
        assert threads() == 1
        assert len(server.requests) == 60
        assert server.connections <= 3 * 8
        feeding.close()
        wait_until(lambda: threads() == 0 and server.open == 0, "the thread has ended, and nothing is open")


def test_what_is_interrupted_is_given_back(feeding: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way, and what waits for a connection."""
    monkeypatch.setattr(routes, "SENDING_S", 0.2)
    with NastyServer([READ, HANG]) as server:
        feeding.forward("hooks", to=to(server, "timeout=60&connections=2&max_attempts=3"))
        ids = feeding.push_many([Task(n, topic="hooks") for n in range(10)])
        wait_until(lambda: server.open == 2, "two are under way")
        feeding.close()
        wait_until(lambda: server.open == 0, "their connections are closed")
        feeding.open()
        assert {state_of(feeding, id) for id in ids} <= {"ready", "scheduled"}
        tasks = [feeding.get(id) for id in ids]
        assert not any(task.attempts for task in tasks if task is not None), "it counts no attempt"


def test_after_an_outage_the_rest_is_not_tried(feeding: Engine) -> None:
    with NastyServer([READ, BUSY]) as server:
        feeding.pause("hooks")
        feeding.forward("hooks", to=to(server, "connections=1"))
        feeding.push_many([Task(n, topic="hooks") for n in range(8)])
        wait_until(lambda: feeding.stats().ready == 8, "all are ready")
        feeding.resume("hooks")
        wait_until(lambda: sink_stats(feeding, "hooks").circuit == "open", "it is down")
        wait_until(lambda: feeding.stats().ready == 8, "all are given back")
        assert sink_stats(feeding, "hooks").error == "HTTP 503 Service Unavailable"
        assert len(server.requests) == sink_stats(feeding, "hooks").failed == 1


def test_a_request_without_an_answer_asks_if_the_endpoint_is_there(run: Run) -> None:
    with NastyServer([READ, CLOSE], [READ, TAKEN]) as server:
        sink = HttpSink(to(server))
        run(sink.open())
        assert "the endpoint answers others" in run(sink.send(MESSAGE)).reason
        assert [request.split()[0] for request in server.requests] == [b"POST", b"OPTIONS"]
        run(sink.close())


def test_the_child_of_a_fork_has_a_loop_of_its_own(run: Run) -> None:
    with NastyServer([READ, TAKEN]) as server:
        sink = HttpSink(to(server))
        run(sink.open())
        assert run(sink.send(MESSAGE)) == Sent()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                loop, mine = LOOP.enter(), HttpSink(to(server))
                for work in (mine.open(), mine.send(MESSAGE), mine.close()):
                    asyncio.run_coroutine_threadsafe(work, loop).result(10)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert run(sink.send(MESSAGE)) == Sent()
        assert server.connections == 2, "that of the parent stays"
        run(sink.close())
