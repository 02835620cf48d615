"""What stands in place of the standard library while a simulated run goes on: clocks, threads, locks, sockets, and
chance. The product knows nothing of it. Of the product the sizes of moves alone are changed, as runs have few tasks.
"""

from __future__ import annotations

import _thread
import os
import queue
import random
import secrets
import select
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from shardq import version
from shardq.core import locks
from shardq.core.calls import resharding
from shardq.core.drivers import sockets
from shardq.core.drivers.router import NodeRouter
from shardq.core.producer import packing
from shardq.core.resharding import migration
from tests.sim.world import hub as hubs
from tests.sim.world import network

MARKS = 1023
"""Of nonces, in dedup windows: see shardq/lua/README.md."""

MOVES = ((1000, 250), (3, 2), (2, 1))
"""How many tasks a sweep moves at a time, and how many of them a script; with few, groups overlap."""

PAGE = 5
"""How many a sweep looks at, where it moves few."""

IDS_BYTES = 6
"""What a source of ids asks of the system for each second."""


@contextmanager
def simulated(hub: hubs.Hub, net: network.Network, seed: int, *, clashing: bool = False) -> Iterator[None]:
    """All that the product does in this block is simulated. ``clashing``: all processes begin each second with the same
    id.
    """
    draw = random.Random(f"{seed}/product")
    state = random.getstate()

    def token_hex(count: int = 16) -> str:
        return draw.randbytes(count).hex()

    marks: set[int] = set()

    def new_nonce() -> int:
        """Two pushes have the same mark once in so many times; none of a run have."""
        while True:
            nonce = draw.getrandbits(32)
            if nonce % MARKS not in marks or len(marks) == MARKS:
                marks.add(nonce % MARKS)
                return nonce

    def urandom(count: int) -> bytes:
        return bytes(count) if clashing and count == IDS_BYTES else draw.randbytes(count)

    group, batch = random.Random(f"{seed}/moves").choice(MOVES)
    replaced: list[tuple[Any, str, Any]] = [
        *((time, "monotonic", hub.monotonic), (time, "time", hub.time), (time, "sleep", hub.sleep)),
        *((time, "monotonic_ns", lambda: int(hub.monotonic() * 1e9)), (time, "perf_counter", hub.monotonic)),
        *((threading, "Thread", hubs.Thread), (threading, "current_thread", lambda: hub.current)),
        *((threading, "get_ident", lambda: hub.current.ident), (threading, "main_thread", lambda: hub.outside)),
        *((threading, "Lock", hubs.Lock), (threading, "RLock", hubs.RLock)),
        *((threading, "_allocate_lock", hubs.Lock), (threading, "_time", hub.monotonic)),
        (locks.Guard, "__new__", lambda _: hubs.Guard()),
        (_thread, "start_new_thread", lambda work, words: work(*words)),  # it starts one of ours, and says so
        *((queue, "SimpleQueue", queue._PySimpleQueue), (queue, "time", hub.monotonic)),  # type: ignore[attr-defined]
        *((secrets, "token_hex", token_hex), (secrets, "randbits", draw.getrandbits)),
        *((secrets, "token_bytes", draw.randbytes), (secrets, "choice", draw.choice)),
        *((uuid, "uuid4", lambda: uuid.UUID(int=draw.getrandbits(128), version=4)), (os, "urandom", urandom)),
        *((sockets, "new_socket", lambda family: network.Socket(net)), (os, "write", network.write)),
        *((select, "poll", network.Poll), (selectors, "PollSelector", network.Selector)),
        *((packing, "new_nonce", new_nonce), (migration, "GROUP", group), (resharding, "BATCH", batch)),
        *((resharding, size, PAGE) for size in ("PAGE", "SCAN", "MOST_SEEN") if batch < resharding.BATCH),
        (NodeRouter.carry, "__defaults__", (hub.sleep,)),  # that is `time.sleep`, as it was when it was defined
        (socket.socket, "shutdown", network.shutdown),
        *((socket, "socketpair", network.socketpair), (socket, "gethostname", lambda: hub.current.process.name)),
        (version, "__version__", "0.0"),  # the same story at each revision
    ]
    with ExitStack() as stack:
        hubs.set_hub(hub)
        stack.callback(hubs.set_hub, None)
        stack.callback(random.setstate, state)
        random.seed(f"{seed}/random")
        for where, name, instead in replaced:
            stack.enter_context(mock.patch.object(where, name, instead))
        yield
