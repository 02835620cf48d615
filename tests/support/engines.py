"""Both engines behind one interface, so that one test runs on both: the asyncio engine gets a loop in a thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, cast

from shardq import AsyncConsumer, AsyncEngine, Engine
from shardq.core.consumer.aio import AsyncSettlingBlock
from shardq.features.schedules.handle_aio import AsyncOwnedSchedules, AsyncScheduleHandle

T = TypeVar("T")

Kind = Literal["sync", "asyncio"]

SHARDS = 4
"""Of the engines that the fixture ``engine`` opens: enough for every master of the cluster to have one."""

ENDING_S = 40.0
"""The time for a worker to finish its tasks."""


class Engines:
    """Makes engines of one kind, and closes them."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._loop = _Loop() if kind == "asyncio" else None
        self._made: list[Engine] = []

    def make(self, url: Any = None, **options: Any) -> Engine:
        """Makes an engine that is not open yet."""
        if self._loop is None:
            engine = Engine(url, **options)
        else:
            # the same names and arguments, as test_twins compares
            engine = cast(Engine, _Blocking(AsyncEngine(url, **options), self._loop))
        self._made.append(engine)
        return engine

    def opened(self, url: Any, **options: Any) -> Engine:
        return self.make(url, **options).open()

    @contextmanager
    def working(self, worker: Any) -> Iterator[Callable[[], None]]:
        """Runs a worker during the block, which is given what stops it; at the end it is stopped, and has ended."""
        run: Future[None]
        if self._loop is None:
            with ThreadPoolExecutor(1, thread_name_prefix="worker") as threads:
                run = threads.submit(worker.run)
                try:
                    yield worker.stop
                finally:
                    worker.stop()
                    run.result(ENDING_S)
        else:
            loop = self._loop
            run = loop.submit(worker.run())
            try:
                yield lambda: loop.call(worker.stop)
            finally:
                loop.call(worker.stop)
                run.result(ENDING_S)

    def ran(self, worker: Any) -> None:
        """Runs a worker that ends by itself, as it can't begin."""
        self.done(worker.run())

    def done(self, result: Any) -> Any:
        """Returns the result of a call on an object that no engine here made, awaited if need be."""
        return self._loop.run(result) if self._loop is not None and inspect.iscoroutine(result) else result

    def close(self) -> None:
        """Closes all engines, while their servers still run."""
        for engine in self._made:
            engine.close()

    def end(self) -> None:
        self.close()
        if self._loop is not None:
            self._loop.end()


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Blocking:
    """An asyncio engine, consumer or handle of schedules, with the methods of its twin for threads."""

    def __init__(
        self, target: AsyncEngine | AsyncConsumer | AsyncScheduleHandle | AsyncOwnedSchedules, loop: _Loop
    ) -> None:
        self._target = target
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._target)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._waited(found) if callable(found) else found

    def __enter__(self) -> Any:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        assert isinstance(self._target, AsyncConsumer)
        return self._iterated(aiter(self._target))

    def _waited(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*words: Any, **options: Any) -> Any:
            result = function(*words, **options)
            return await result if inspect.isawaitable(result) else result

        def call(*words: Any, **options: Any) -> Any:
            result = self._loop.run(called(*words, **options))
            if result is self._target:
                return self
            if isinstance(result, AsyncConsumer | AsyncScheduleHandle | AsyncOwnedSchedules):
                return _Blocking(result, self._loop)
            if isinstance(result, AsyncSettlingBlock):
                return self._entered(result)
            return self._iterated(result) if inspect.isasyncgen(result) else result

        return call

    @contextmanager
    def _entered(self, block: AsyncSettlingBlock) -> Iterator[None]:
        self._loop.run(block.__aenter__())
        try:
            yield
        except BaseException as exc:
            if not self._loop.run(block.__aexit__(type(exc), exc, exc.__traceback__)):
                raise
        else:
            self._loop.run(block.__aexit__(None, None, None))

    def _iterated(self, items: Any) -> Iterator[Any]:
        async def following() -> list[Any]:
            return [item async for item in _first(items)]

        try:
            while item := self._loop.run(following()):
                yield item[0]
        finally:
            self._loop.run(_closed(items))


async def _first(items: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The next item, if there is one: StopAsyncIteration does not cross threads."""
    try:
        yield await anext(items)
    except StopAsyncIteration:
        return


async def _closed(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
