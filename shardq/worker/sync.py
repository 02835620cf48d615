"""The worker that ``engine.worker()`` returns. Its asyncio twin is ``aio``."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Unpack

from shardq.core.drivers.conversations import drive
from shardq.core.model.task import Receipt
from shardq.worker.base import WorkerBase, WorkerOptions
from shardq.worker.handlers import Plan, Registry
from shardq.worker.supervisor import ProcessSupervisor, ending_signals

if TYPE_CHECKING:
    from shardq.worker.processor import Processor


class Worker(WorkerBase[Receipt]):
    """Runs handlers on the tasks of their topics: functions on threads, coroutine functions on an event loop.

    >>> worker = engine.worker(concurrency=16)
    >>> @worker.on("email")
    ... def send(delivery): ...
    >>> worker.run()
    """

    def __init__(
        self,
        push: Callable[..., Receipt],
        tasks: Registry,
        processor: Callable[[Plan], Processor],
        processes: int,
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(push, tasks, **options)
        self._processor = processor
        self._supervisor = ProcessSupervisor(processes)

    def run(self, *, signals: bool = True) -> None:
        """Handles tasks until ``stop()``, SIGTERM, SIGINT or SIGHUP, and then ends in this order:

        1. It claims no more, and gives back tasks that are not begun.
        2. Running handlers may finish, all of them within ``grace`` seconds.
        3. It gives the tasks of the others back, without a failed attempt. Coroutines are cancelled; the thread of a
           function is left behind, as nothing can end it.
        4. It sends the last settlements, for a few seconds at most if the servers don't answer. Tasks that it could not
           settle come back when their lease runs out.
        5. It calls what ``on_shutdown`` has registered.

        A second signal, or ``stop()``, ends step 2 at once, and leaves step 4 a second.

        Signals are heard in the main thread; in another one, call ``stop()`` yourself. SIGHUP, which a closed terminal
        sends, ends nothing if it is ignored, as under nohup, or if your program has a handler for it.
        ``signals=False`` leaves all signals to your program, which calls ``stop()``.

        With ``processes=`` the handlers run in that many children of this process, which keeps their number. It tells
        them to stop together, and to hurry after a second signal; a frozen child is killed in the end. A child that
        gets SIGTERM itself ends in this order, too, and is replaced; if this process is killed, all children end in
        this order. If children die again and again at their start, the pauses before the next get longer.

        Raises if the worker runs already; after its end it may run again.

        >>> worker.run()
        """
        self._plan()
        heard = ending_signals()
        with self._run_once(), _signals(heard if signals else (), self._signalled):
            if self._supervisor.size > 1:
                self._supervisor.run(self._run_here, self._stop, self._hurry, heard=heard, grace=self.grace)
            else:
                self._run_here()

    @property
    def processes(self) -> int:
        """The processes in which it runs handlers; 1: the one that calls ``run``. May be set before ``run``."""
        return self._supervisor.size

    @processes.setter
    def processes(self, count: int) -> None:
        self._supervisor = ProcessSupervisor(count)

    @property
    def healthy(self) -> bool:
        """True while it runs and nothing of it is dead or failing: neither a thread that claims, settles or extends
        leases, nor the loop for coroutines, nor, with ``processes=``, one of the children.
        """
        # In a child of its own there is a processor.
        return super().healthy or (self._at_work is None and self._supervisor.healthy)

    def stop(self) -> None:
        """Ends ``run``. May be called from any thread, also before ``run`` begins. Called again, it ends it without
        grace.

        >>> worker.stop()
        """
        if not self._stop.set():
            self._hurry.set()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def _run_here(self) -> None:
        processor = self._processor(self._plan())

        def wait(work: Awaitable[object]) -> None:
            processor.wait_for(work, self._hurry)

        try:
            # First: its threads may be at a handler, which asks for `healthy`, before the last of them has begun.
            self._at_work = processor
            drive(self._lifecycle.begin(), wait, thrown=BaseException)
            if not self._stop.is_set():
                processor.start()
                self._stop.wait()
        finally:
            self._at_work = None
            processor.stop(self.grace, self._hurry, lambda: drive(self._lifecycle.end(), wait, thrown=BaseException))


@contextlib.contextmanager
def _signals(heard: Collection[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Installs ``handler`` for these signals if that is possible: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
