"""Many large bodies, many lines and many slow clients at once: the memory of the gateway stays bounded, and others are
answered meanwhile.
"""

from __future__ import annotations

import socket
import statistics
import time
from contextlib import ExitStack, suppress

import httpx
import psutil
import pytest

from shardq import Engine
from tests.cli.shell import LONGEST_S, Shell
from tests.cli.test_serve import place_in, told
from tests.support.slow_clients import place_of
from tests.support.waiting import wait_until

HEAD = b"POST /v1/tasks:batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-ndjson\r\n"

MOST_MIB = 160
"""Over what the process takes when idle."""


def memory(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def usual_s(client: httpx.Client) -> float:
    """The median of some pushes."""
    took = []
    for _ in range(15):
        began = time.monotonic()
        assert client.post("/v1/tasks", json={"payload": 1, "delay": 60}).status_code == 201
        took.append(time.monotonic() - began)
    return statistics.median(took)


@pytest.mark.slow
def test_two_hundred_bodies_of_16_mib_and_others_beside_them(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("serve", "--port", "0")
    place = place_in(told(process))
    with httpx.Client(base_url=place, timeout=LONGEST_S) as client, ExitStack() as stack:
        idle_s, idle = usual_s(client), memory(process.pid)
        line = b'{"payload": "%s"}\n' % (b"x" * 16_000)
        size, most = 16 << 20, idle
        clients = [
            stack.enter_context(socket.create_connection(place_of(place), timeout=LONGEST_S)) for _ in range(200)
        ]
        for each in clients:
            each.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size)
            each.setblocking(False)
        # of every second one a line that does not end: nothing of it can be pushed, so it is held
        pieces = {each: b"x" * 65536 if number % 2 else line * 4 for number, each in enumerate(clients)}
        left = dict.fromkeys(clients, size)
        until = time.monotonic() + 20
        while left and time.monotonic() < until:
            for each in list(left):
                try:
                    sent = each.send(pieces[each])
                    pieces[each] = pieces[each][sent:] + pieces[each][:sent]
                    left[each] -= sent
                except BlockingIOError:
                    continue
                except OSError:  # it was ended
                    del left[each]
                    continue
                if left[each] <= len(pieces[each]):
                    del left[each]
            most = max(most, memory(process.pid))
            if memory(process.pid) > idle + (2 * MOST_MIB << 20):
                break
        assert (most - idle) >> 20 < MOST_MIB
        assert usual_s(client) < 0.5 + 10 * idle_s
        with suppress(OSError):
            for each in clients:
                each.close()
        lines = line * 500
        for _ in range(20):  # 160 MiB of lines that are pushed
            answer = client.post("/v1/tasks:batch", content=lines, headers={"Content-Type": "application/x-ndjson"})
            assert answer.status_code == 200
        assert (memory(process.pid) - idle) >> 20 < MOST_MIB
        wait_until(lambda: client.post("/v1/tasks", json={"payload": 1}).status_code == 201, "nothing is held any more")
    process.terminate()
    process.communicate(timeout=LONGEST_S)
