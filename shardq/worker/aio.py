"""The worker that ``AsyncEngine.worker()`` returns: coroutines run on the caller's loop, functions on threads.

Its twin for threads is ``sync``. Claiming, extending and settling are done by threads here, too, so that leases are
extended whatever the loop is busy with.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack

from shardq.core.drivers.conversations import adrive
from shardq.core.model.task import AsyncReceipt
from shardq.worker.base import WorkerBase, WorkerOptions
from shardq.worker.handlers import Plan, Registry
from shardq.worker.processor import Processor
from shardq.worker.supervisor import ending_signals


class AsyncWorker(WorkerBase[AsyncReceipt]):
    """Runs handlers on the tasks of their topics: coroutine functions on this loop, functions on threads.

    >>> worker = engine.worker(concurrency=1000)
    >>> @worker.on("email")
    ... async def send(delivery): ...
    >>> await worker.run()
    """

    def __init__(
        self,
        push: Callable[..., AsyncReceipt],
        tasks: Registry,
        processor: Callable[[Plan], Awaitable[Processor]],
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(push, tasks, **options)
        self._processor = processor
        self._ended: asyncio.Event | None = None

    async def run(self, *, signals: bool = True) -> None:
        """Handles tasks until ``stop()``, SIGTERM, SIGINT, SIGHUP or its cancellation, and then ends in the same order
        as ``Worker.run``. A second signal, ``stop()`` or cancellation ends the grace at once.

        Signals are heard in the main thread. SIGHUP, which a closed terminal sends, ends nothing when it is ignored, as
        under nohup, or has a handler of the program's own. ``signals=False`` leaves all signals to the program, which
        calls ``stop()``: a server such as uvicorn hears them itself, and would not end while the worker takes them.

        A worker that runs already is refused; after its end it may run again.

        >>> await worker.run()
        """
        self._plan()
        with self._run_once():
            loop = asyncio.get_running_loop()
            ended = self._ended = asyncio.Event()
            processor = await self._processor(self._plan())
            with _signals(loop, self.stop) if signals else contextlib.nullcontext():
                try:
                    # First: its threads may be at a handler, which asks for `healthy`, before the last of them has
                    # begun.
                    self._at_work = processor
                    await adrive(self._lifecycle.begin(), lambda call: call, thrown=BaseException)
                    if not self._stop.is_set():
                        processor.start()
                        await ended.wait()
                finally:
                    self._at_work = None
                    try:
                        await self._stopped(processor)
                    finally:
                        await adrive(self._lifecycle.end(), lambda call: call, thrown=BaseException)

    async def _stopped(self, processor: Processor) -> None:
        """Stops, and can't be cancelled: held tasks must be given back. A cancellation ends the grace."""
        # Not the loop's own threads: handlers may have taken all of them.
        thread = ThreadPoolExecutor(1, thread_name_prefix="shardq-stop")
        stopping = asyncio.get_running_loop().run_in_executor(thread, processor.stop, self.grace, self._hurry)
        thread.shutdown(wait=False)
        cancelled: asyncio.CancelledError | None = None
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError as exc:
                self._hurry.set()
                cancelled = exc
        if cancelled is not None:
            raise cancelled
        stopping.result()

    def stop(self) -> None:
        """Ends ``run``. Call it from its loop, also before ``run`` begins. Called again, it ends it without grace.

        >>> worker.stop()
        """
        if not self._stop.set():
            self._hurry.set()
        if self._ended is not None:
            self._ended.set()


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Makes the signals that end a worker call ``stop``, if that is possible: in the main thread."""
    before: dict[signal.Signals, Any] = {}
    # Another thread's loop can't take signals.
    with contextlib.suppress(RuntimeError, ValueError):
        for number in ending_signals():
            handler = signal.getsignal(number)
            loop.add_signal_handler(number, stop)
            before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            ours = signal.getsignal(number)
            loop.remove_signal_handler(number)
            # The same handler: it was the loop's own, for a callback that the loop has forgotten.
            if handler is not None and handler != ours:
                signal.signal(number, handler)
