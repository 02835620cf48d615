"""Loops, which repeat a step in a thread until they are stopped; single pieces of work in threads; the end of threads.

A thread in the handshake with a silent server can't be told anything before its timeout, and must not hold up the end
of a program. It is left behind, does nothing more, and ends by itself some seconds later.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeVar

from shardq.core import forks
from shardq.core.locks import Guard, Latch, SignalSafeEvent
from shardq.errors import ServerFault, ShardqError, Unanswered, Unavailable

T = TypeVar("T")

END_S = 0.15
"""The time that all threads have together: stopping in half a second is the promise, and signing off takes its part."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0  # the pause after a step that failed: it doubles with each failure in a row

LoopState = Literal["starting", "running", "failing", "stopped"]


class Loop:
    """A thread that repeats a step. No error ends it: a step that failed is tried again, after a pause that doubles.

    The log says an error once for a cause, ``fails``, and once that the step ``works`` again. A loop is started once
    and stopped once; one that was stopped never starts. One that was started is stopped in the child of a fork.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        log: logging.Logger,
        *,
        fails: str,
        works: str,
        fields: Mapping[str, object] | None = None,
        woken: Callable[[], object] = lambda: None,
        failed: Callable[[BaseException], bool | None] = lambda _: False,
        healed: Callable[[], object] = lambda: None,
        ended: Callable[[], object] = lambda: None,
        first_s: float = 0.0,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        """``step`` returns the seconds until the next one; None: it waits for ``wake()``. ``first_s``: those until the
        first one.

        Called in the thread: ``woken`` before a step for which ``wake()`` was called, ``failed`` after one that raised,
        ``healed`` after the first that did not again, ``ended`` at the end. ``failed`` returns True if the log has the
        cause elsewhere.
        """
        self.name = name
        self.fault: str = ""  # the error of the last step; empty if it did not fail
        self.fault_of_server: bool = False  # true if that was one of the server
        self.tells: bool = True  # a step sets it to False if its end does not say that the fault is over
        self.failing_since: float | None = None  # when the first of the steps in a row that failed began
        self._step = step
        self._log = log
        self._fails, self._works, self._fields = fails, works, dict(fields or {})
        self._woken, self._failed, self._healed, self._ended = woken, failed, healed, ended
        self._first_s = first_s
        self._longest_pause_s = longest_pause_s
        self._pause_s = 0.0
        self._said: set[type[BaseException]] = set()  # the kinds of errors that the log has, since a step last worked
        self._stepped = False
        self._reset()
        forks.watch(self, Loop._forked)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        """Held while the thread starts: a start and a stop may come at once, the stop also from a signal's handler."""
        self._wake = SignalSafeEvent()  # users of an engine wake its loops
        self.stopping: threading.Event = threading.Event()  # set by stop(). A step that waits waits for this, too.
        self.thread: threading.Thread | None = None

    def _forked(self) -> None:
        was_started = self.thread is not None
        self._reset()
        if was_started:
            self.stopping.set()

    @property
    def state(self) -> LoopState:
        if self.stopping.is_set():
            return "stopped"
        return "failing" if self.fault else "running" if self._stepped else "starting"

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self.thread is not None and self.thread.is_alive()

    def start(self) -> None:
        """Starts the thread, unless it was started or stopped before."""
        with self._lock:
            if self.stopping.is_set():
                return
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name=self.name, daemon=True)
            if self.thread.ident is None:  # new, or whoever made it was interrupted
                try:
                    launch(self.thread)
                except RuntimeError:  # a system without threads to spare
                    self.thread = None
                    raise

    def wake(self) -> None:
        """Makes the next step begin now, or right after the present one. From any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Tells the thread to end after the present step. From any thread."""
        with self._lock:
            self.stopping.set()
        self._wake.set()

    def join(self, within_s: float | None = None) -> None:
        """Returns when the thread has ended, or after that time. The thread itself does not wait."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(within_s)

    def run(self) -> None:
        """Repeats the step until ``stop()``, in the calling thread."""
        wait: float | None = self._first_s
        try:
            while not self.stopping.is_set():
                if self._wake.is_set() or (wait != 0.0 and self._wake.wait(wait)):
                    if self.stopping.is_set():
                        return
                    self._woken()
                    # before the step: what wakes it from now on may come too late for it
                    self._wake.clear()
                wait = self._guarded_step()
        finally:
            self._ended()

    def _guarded_step(self) -> float | None:
        began, self.tells = time.monotonic(), True
        try:
            wait = self._step()
        except BaseException as exc:  # also SystemExit: a step may call code of the user's own
            if self.thread is None and not isinstance(exc, Exception):
                raise  # ``run`` was called in a thread of the caller's, which is interrupted
            return 0.0 if self.stopping.is_set() else self._note(exc, began)
        self._stepped = True
        if self.fault and self.tells:
            self._pause_s = 0.0
            self._healed()
            if self._said:
                self._said.clear()
                self._tell(logging.WARNING, "%s", self._works)
            self.fault, self.failing_since = "", None
        return wait

    def _note(self, exc: BaseException, began: float) -> float:
        """Notes and logs an error. Returns the pause, random so that loops do not retry in step."""
        self.failing_since = self.failing_since or began
        self.fault = type(exc).__name__
        self.fault_of_server = isinstance(exc, ServerFault)
        with contextlib.suppress(BaseException):  # the text may be made by the user's own code
            self.fault = f"{self.fault}: {exc}"
        # one cause, though it is met before a call is sent or after
        cause = Unavailable if isinstance(exc, Unanswered) else type(exc)
        if not self._failed(exc) and cause not in self._said:
            self._said.add(cause)
            self._tell(logging.ERROR, "%s: %s", self._fails, exc, error=exc)
        self._pause_s = min(self._longest_pause_s, max(FIRST_PAUSE_S, 2 * self._pause_s))
        return self._pause_s * random.uniform(0.5, 1.0)

    def _tell(self, level: int, text: str, *words: object, error: BaseException | None = None) -> None:
        fields, trace = self._fields, None
        if error is not None:
            fields = fields | {"error": type(error).__name__}
            # a tuple: of the exception alone, logging would ask if it is true
            trace = None if isinstance(error, ShardqError) else (type(error), error, error.__traceback__)
        with contextlib.suppress(BaseException):  # filters and handlers of logging are the user's code
            self._log.log(level, text, *words, exc_info=trace, extra=fields)


def launch(thread: threading.Thread) -> None:
    """Starts a thread, and returns when it runs. Raises RuntimeError where the system has none to spare.

    ``Thread.start`` waits for that by an Event: whoever is interrupted there by a signal's handler may keep the new
    thread from running, for ever. So it is called in a thread that no handler interrupts; in one alone, also where
    the caller was interrupted here and calls again.
    """
    over, failed = Latch(), list[RuntimeError]()

    def start() -> None:
        try:
            if (first := vars(thread).setdefault("_launched", over)) is over:
                thread.start()
            else:
                first.wait()
        except RuntimeError as exc:
            del vars(thread)["_launched"]
            failed.append(exc)
        finally:
            over.set()

    _thread.start_new_thread(start, ())
    over.wait()
    if failed:
        raise failed[0]


class _FutureLock(Guard):  # type: ignore[misc]  # likewise
    """The lock of an ``Outcome``, in place of a Condition: nobody waits on it."""

    __slots__ = ()

    def notify_all(self) -> None:
        pass

    def wait(self, _: float | None = None) -> bool:
        return False


class Outcome(Future[T]):
    """A future whose ``result`` may be interrupted at any instant by a signal's handler, and then still gets one. It
    can't be cancelled.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = _FutureLock()  # type: ignore[assignment]
        self._over = over = Latch()
        self.add_done_callback(lambda _: over.set())  # the first: those after it may ask for the result
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        self._over.wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._over.wait(timeout)
        return super().exception(0)


def first_of(outcomes: Iterable[Future[Any]], within_s: float) -> None:
    """Returns when one of them is there, or after that time."""
    latch = Latch()
    for each in outcomes:
        each.add_done_callback(lambda _: latch.set())
    latch.wait(within_s)


def begun(work: Callable[[], T], name: str, *, daemon: bool = True) -> Future[T]:
    """Runs ``work`` in a thread of its own. Cancelling the future does not stop it.

    ``daemon``: a program that ends does not wait for it.
    """
    outcome = Outcome[T]()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as exc:  # noqa: BLE001  the future tells it
            outcome.set_exception(exc)

    try:
        launch(threading.Thread(target=run, name=name, daemon=daemon))
    except RuntimeError:  # the interpreter is shutting down, or the system has no more threads
        run()
    return outcome


def ended(threads: Iterable[threading.Thread | Loop]) -> None:
    """Returns when all have ended, or after ``END_S``. The calling thread is passed over."""
    deadline = time.monotonic() + END_S
    for each in threads:
        if each is not threading.current_thread():
            each.join(max(0.0, deadline - time.monotonic()))


class Peers(Protocol):
    """The dispatcher of this process, one among all."""

    process: str
    members: tuple[str, ...]
    """Those that live, if this one knows."""
    clock_ms: Callable[[], float]
    """The clock of the control slot's master."""


class SideThread:
    """A thread of an engine beside the pollers: the scheduler of recurring tasks, the recorder of the history, the
    loader of what waits in another store.
    """

    loop: Loop

    def hear(self, message: str | None) -> None:
        """Takes a message of the engine's news; None: some may have been missed."""

    def members_changed(self) -> None:
        """The living dispatchers are others than before."""

    def facts(self) -> Mapping[str, Any]:
        """Returns the facts that it adds to the report of its process."""
        return {}
