"""What tasks are forwarded to: a list of another server, a list of the engine's own, a subject of NATS. What has
arrived there is read, with the instants at which it was seen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import msgspec
import redis

from cluster.nats import NatsServer
from cluster.server import Server
from shardq import Engine
from shardq.core.layout.slots import slot_of
from tests.chaos.grounds.ground import KEPT, Ground
from tests.chaos.program import HOME, NATS, OUT
from tests.judge.model import Op
from tests.judge.witness import monotonic_us

SUBJECT = "chaos"

LIST = "arrived"

LOOK_S = 0.2

HELD_S = 600.0
"""How long NATS remembers ids, and waits for anything: longer than a round."""


class Sinks:
    """The servers that tasks are forwarded to, as a context manager."""

    def __init__(self, *, watched: bool = True) -> None:
        """``watched``: the instants at which payloads arrive are noted."""
        self._is_watched = watched
        self._stack = ExitStack()
        self.other = Server(options=KEPT)
        self.nats = NatsServer()
        self._seen_us: list[tuple[int, float]] = []
        """Payloads of the other server's list, and when they were first seen there."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="arrivals", daemon=True)
        self._ahead_us = time.time() * 1e6 - monotonic_us()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.other)
            stack.enter_context(self.nats)
            asyncio.run(self._with_nats(self._made))
            self._stack = stack.pop_all()
        if self._is_watched:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._is_watched:
            self._thread.join()
        self._stack.close()

    def route(self, engine: Engine) -> None:
        """Has the engine forward to all of them."""
        engine.forward(OUT, to=f"{self.other.url}/0#{LIST}")
        engine.forward(HOME, to=LIST)
        engine.forward(NATS, to=f"nats://{self.nats.address}#{SUBJECT}")

    # ---- faults

    def kill(self, number: int) -> Callable[[], None]:
        """SIGKILL of one. Returns what starts it again."""
        if number % 2:
            self.nats.kill()
            return self.nats.start
        self.other.kill()
        return self.other.start

    def freeze(self, number: int) -> Callable[[], None]:
        if number % 2:
            (pid,) = self.nats.pids
            os.kill(pid, signal.SIGSTOP)
            return lambda: os.kill(pid, signal.SIGCONT)
        self.other.pause()
        return self.other.resume

    # ---- what has arrived

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        try:
            with self.other.client(timeout=1.0) as client:
                some = client.lrange(LIST, len(self._seen_us), -1)
        except redis.RedisError:
            return
        now_us = monotonic_us()
        self._seen_us += [(int(each), now_us) for each in some]

    def arrivals(self, home: list[bytes], *, is_home_relayed: bool) -> Iterator[tuple[int, Op]]:
        """All that has arrived, by payload. ``home``: the list of the engine's own server."""
        self._is_over.set()
        self._thread.join()
        self.look()
        at_us = monotonic_us()
        for number, seen_us in self._seen_us:
            yield number, Op("arrive", 0.0, seen_us, "arrived", number, relayed=True)
        for payload in home:
            yield int(payload), Op("arrive", 0.0, at_us, "arrived", int(payload), relayed=is_home_relayed)
        for number, seen_us in asyncio.run(self._with_nats(self._read)):
            yield number, Op("arrive", 0.0, seen_us, "arrived", number, relayed=True)

    def clear(self, ground: Ground) -> None:
        """Removes all that has arrived."""
        self.other.ask("DEL", LIST)
        ground.server_of(slot_of(LIST)).ask("DEL", LIST)
        asyncio.run(self._with_nats(self._purged))

    async def _purged(self, stream: Any) -> None:
        await stream.purge_stream(SUBJECT)

    async def _with_nats(self, work: Any) -> Any:
        import nats

        connection = await nats.connect(f"nats://{self.nats.address}", connect_timeout=20)
        try:
            return await work(connection.jetstream(timeout=20))
        finally:
            await connection.close()

    async def _made(self, stream: Any) -> None:
        await stream.add_stream(name=SUBJECT, subjects=[SUBJECT], duplicate_window=HELD_S)

    async def _read(self, stream: Any) -> list[tuple[int, float]]:
        info = await stream.stream_info(SUBJECT)
        found: list[tuple[int, float]] = []
        if not info.state.messages:
            return found
        subscription = await stream.subscribe(SUBJECT, ordered_consumer=True)
        while len(found) < info.state.messages:
            message = await subscription.next_msg(timeout=20)
            seen_us = message.metadata.timestamp.timestamp() * 1e6 - self._ahead_us
            found.append((msgspec.json.decode(message.data, type=int), seen_us))
        return found
