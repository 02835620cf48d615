"""Both drivers behind one interface, so that one test runs on both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.drivers.aio import AsyncDriver
from shardq.core.drivers.routing import ConnectionCounts
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver

T = TypeVar("T")


class Carrier(Protocol):
    """The part of a driver that tests use."""

    @property
    def server_version(self) -> str: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def refresh(self) -> None: ...
    def call(self, call: Command[T], timeout: float | None = None) -> T: ...
    def call_all(self, calls: Iterable[tuple[Any, Command[T]]], *, timeout: float | None = None) -> Iterator[Any]: ...
    def confirm(self, seals: Sequence[Call[None]], *, disk: bool = False) -> dict[int, str | None]: ...
    def node_of(self, slot: int) -> str: ...
    def nodes(self) -> list[str]: ...
    def connections(self) -> dict[str, ConnectionCounts]: ...


class AsyncCarrier:
    """An AsyncDriver in a loop of its own, in a thread."""

    def __init__(self, settings: Settings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()
        self.driver = self.run(_made(settings))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def server_version(self) -> str:
        return self.driver.server_version

    def open(self) -> None:
        self.run(self.driver.open())

    def close(self) -> None:
        self.run(self.driver.close())

    def end(self) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def refresh(self) -> None:
        self.run(self.driver.refresh())

    def call(self, call: Command[T], timeout: float | None = None) -> T:
        return self.run(self.driver.call(call, timeout))

    def call_all(self, calls: Iterable[tuple[Any, Command[T]]], *, timeout: float | None = None) -> Iterator[Any]:
        answers: Any = self.driver.call_all(calls, timeout=timeout)
        try:
            while (answer := self.run(_next(answers))) is not None:
                yield answer
        finally:
            self.run(answers.aclose())

    def confirm(self, seals: Sequence[Call[None]], *, disk: bool = False) -> dict[int, str | None]:
        return self.run(self.driver.confirm(seals, disk=disk))

    def node_of(self, slot: int) -> str:
        return self.driver.node_of(slot)

    def nodes(self) -> list[str]:
        return self.driver.nodes()

    def connections(self) -> dict[str, ConnectionCounts]:
        return self.driver.connections()


async def _made(settings: Settings) -> AsyncDriver:
    return AsyncDriver(settings)


async def _next(answers: Any) -> Any:
    return await anext(answers, None)


class Carriers:
    """Makes carriers of one kind, and ends them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._made: list[Driver | AsyncCarrier] = []

    def make(self, url: str, **options: Any) -> Carrier:
        """Makes a driver that is not open yet."""
        settings = Settings.from_url(url, **options)
        made = Driver(settings) if self.kind == "sync" else AsyncCarrier(settings)
        self._made.append(made)
        return made

    def opened(self, url: str, **options: Any) -> Carrier:
        carrier = self.make(url, **options)
        carrier.open()
        return carrier

    def end(self) -> None:
        for made in self._made:
            if isinstance(made, AsyncCarrier):
                made.end()
            else:
                made.close()
