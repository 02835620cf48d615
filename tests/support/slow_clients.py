"""Clients that never send the end of a request, and how long others wait for an answer meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from tests.metrics.scraping import got

SOON_S = 1.0
"""An answer takes at most so long while slow clients are connected."""


def place_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def slow(stack: ExitStack, url: str, count: int) -> list[socket.socket]:
    """Opens so many connections, each with a request whose end never comes."""
    clients = []
    for _ in range(count):
        client = stack.enter_context(socket.create_connection(place_of(url), timeout=60))
        with suppress(OSError):  # it was ended before
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        clients.append(client)
    return clients


def ended(client: socket.socket, sent: bytes = b"x") -> bool:
    """True if the server has ended the connection. Until then it is sent one byte more."""
    client.setblocking(False)  # with a timeout, recv would wait for that
    try:
        client.send(sent)
        return not client.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def usual_s(url: str, paths: Sequence[str]) -> float:
    """The median time of an answer: the machine of the tests stands still now and then."""
    took = []
    for path in (*paths,) * 5:
        began = time.monotonic()
        assert got(url + path)[0] in (200, 503), path
        took.append(time.monotonic() - began)
    return sorted(took)[len(took) // 2]
