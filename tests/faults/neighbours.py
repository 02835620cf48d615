"""The servers on the other side. Each is started once in a run, and every test leaves it up, empty and whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import nats.js.errors

from cluster.nats import NatsServer
from cluster.ports import free_port
from cluster.server import Server
from tests.support.workers import Worker


class Neighbour(ABC):
    """A server of its own process."""

    @property
    @abstractmethod
    def address(self) -> str:
        """HOST:PORT."""

    @abstractmethod
    def freeze(self) -> None: ...

    @abstractmethod
    def thaw(self) -> None: ...

    @abstractmethod
    def fill(self) -> None:
        """From now on it has no room for more."""

    @abstractmethod
    def make_room(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def start(self) -> None:
        """Starts it on its port with what it has stored."""

    @abstractmethod
    def empty(self) -> None:
        """Forgets what it has stored."""


class RedisNeighbour(Neighbour):
    """A Redis with an append-only file."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def address(self) -> str:
        return self.server.address

    def freeze(self) -> None:
        self.server.pause()

    def thaw(self) -> None:
        self.server.resume()

    def fill(self) -> None:
        self.set("maxmemory", "1")

    def make_room(self) -> None:
        self.set("maxmemory", "0")

    def set(self, option: str, value: str) -> None:
        """Sets an option, also for later starts; an empty value takes a password back."""
        if self.server.running:
            self.server.ask("CONFIG", "SET", option, value)
        if value:
            self.server.options[option] = value
        else:
            self.server.options.pop(option, None)

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def empty(self) -> None:
        self.server.ask("FLUSHALL")


class NatsNeighbour(Neighbour):
    """A NATS server with a stream, which holds one message when it is full."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server

    @property
    def address(self) -> str:
        return self.server.address

    def on(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Does some work with a JetStream context."""

        async def done() -> Any:
            client = await nats.connect(f"nats://ann:right@{self.address}")
            try:
                return await work(client.jetstream(timeout=20))
            finally:
                await client.close()

        return asyncio.run(done())

    def messages(self) -> list[Any]:
        async def read(js: Any) -> list[Any]:
            state = (await js.stream_info("mail")).state
            return [await js.get_msg("mail", number) for number in range(max(1, state.first_seq), state.last_seq + 1)]

        found: list[Any] = self.on(read)
        return found

    def _limit(self, messages: int) -> None:
        self.on(lambda js: js.update_stream(name="mail", subjects=["mail"], discard="new", max_msgs=messages))

    def freeze(self) -> None:
        for pid in self.server.pids:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.server.pids:
            os.kill(pid, signal.SIGCONT)

    def fill(self) -> None:
        self._limit(1)

    def make_room(self) -> None:
        self._limit(-1)

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def empty(self) -> None:
        async def anew(js: Any) -> None:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await js.delete_stream("mail")
            await js.add_stream(name="mail", subjects=["mail"])

        self.on(anew)


class Endpoint(Neighbour):
    """An HTTP endpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.file = folder / "arrived"
        self.file.touch()
        self._worker: Worker | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._worker is not None, "it runs"
        os.kill(self._worker.pid, number)

    def fill(self) -> None:
        (self.folder / "full").touch()

    def make_room(self) -> None:
        (self.folder / "full").unlink()

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    def start(self) -> None:
        self._worker = Worker("tests.faults.endpoint", self.port, self.folder)
        assert self._worker.said() == "up"

    def empty(self) -> None:
        self.file.write_text("")
