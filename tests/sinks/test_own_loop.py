"""HTTP sinks share one thread, which runs while any of them is open; what is interrupted is answered all the same."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from shardq.features.sinks import Message, Sent, Unsent
from shardq.features.sinks.http import HttpSink
from shardq.features.sinks.in_loop import InLoop
from shardq.features.sinks.own_loop import LOOP
from tests.sinks.nasty import CLOSE, HANG, READ, NastyServer, Step
from tests.support.waiting import wait_until

TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"

Open = Callable[..., InLoop]


def messages(count: int) -> Sequence[Message]:
    return [
        Message(id=f"mail/{n}", topic="mail", payload=b"%d" % n, codec="json", headers={}, attempt=1)
        for n in range(count)
    ]


def threads() -> int:
    return sum(thread.name == "shardq-sinks-http" for thread in threading.enumerate())


@pytest.fixture
def opened() -> Iterator[Open]:
    made: list[InLoop] = []

    def opened(server: NastyServer, options: str = "") -> InLoop:
        sink = InLoop(HttpSink(f"http://127.0.0.1:{server.port}/#{options}"))
        made.append(sink)
        sink.open()
        return sink

    yield opened
    for sink in made:
        sink.close()


def test_all_sinks_have_one_thread_which_ends_with_the_last(opened: Open) -> None:
    with NastyServer([READ, TAKEN]) as server:
        sinks = [opened(server) for _ in range(3)]
        sent = [future for sink in sinks for future in sink.send(messages(20))]
        assert [future.result(10) for future in sent] == [Sent()] * 60
        assert threads() == 1
        assert server.connections <= 3 * 8
        for sink in sinks[1:]:
            sink.close()
            sink.close()
        assert sinks[0].send(messages(1))[0].result(10) == Sent()
        sinks[0].close()
        wait_until(lambda: threads() == 0 and server.open == 0, "the thread has ended, and nothing is open")
        sinks[0].open()
        assert sinks[0].send(messages(1))[0].result(10) == Sent()


def test_a_sink_is_opened_again_as_soon_as_it_is_closed() -> None:
    """The loop of before may still be about to end: without a queue for each opening, one in a hundred hung."""
    usual_s = sys.getswitchinterval()
    with NastyServer([READ, TAKEN]) as server:
        sink = InLoop(HttpSink(f"http://127.0.0.1:{server.port}/#connections=1"))
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(400):
                sink.open()
                assert sink.send(messages(1))[0].result(10) == Sent()
                sink.close()
        finally:
            sys.setswitchinterval(usual_s)
        assert len(server.requests) == 400


@pytest.mark.parametrize("script", [[READ, HANG], [HANG]])
def test_what_is_interrupted_has_an_answer(opened: Open, script: Sequence[Step]) -> None:
    """What is under way, what waits for a connection, and what was handed over a moment before."""
    with NastyServer(script) as server:
        sink = opened(server, "timeout=60&connections=2&max_attempts=3")
        under_way = sink.send(messages(5))
        wait_until(lambda: server.open == 2, "two are under way")
        others = sink.send(messages(5))
        sink.interrupt()
        assert {future.result(10) for future in [*under_way, *others]} == {Unsent("the process ends")}
        wait_until(lambda: server.open == 0, "their connections are closed")


def test_after_an_outage_the_rest_is_not_tried(opened: Open) -> None:
    with NastyServer([READ, b"HTTP/1.1 503 X\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"]) as server:
        sink = opened(server, "connections=1")
        found = [future.result(10) for future in sink.send(messages(8))]
        assert found == [Unsent("HTTP 503 Service Unavailable", 7.0)] * 8
        assert len(server.requests) == 1
        sink.send(messages(1))[0].result(10)
        assert len(server.requests) == 2


def test_a_request_without_an_answer_asks_if_the_endpoint_is_there(opened: Open) -> None:
    with NastyServer([READ, CLOSE], [READ, TAKEN]) as server:
        (future,) = opened(server).send(messages(1))
        assert "the endpoint answers others" in future.result(10).reason  # type: ignore[union-attr]  # else it fails
        assert [request.split()[0] for request in server.requests] == [b"POST", b"OPTIONS"]


def test_the_child_of_a_fork_has_a_loop_of_its_own(opened: Open) -> None:
    with NastyServer([READ, TAKEN]) as server:
        sink = opened(server)
        assert sink.send(messages(1))[0].result(10) == Sent()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mine = opened(server)
                code = 0 if mine.send(messages(1))[0].result(10) == Sent() else 2
                mine.close()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sink.send(messages(1))[0].result(10) == Sent()
        assert server.connections == 2, "that of the parent stays"
        loop = LOOP.enter()
        LOOP.leave(loop)
        assert loop.is_running()
