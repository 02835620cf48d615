"""What threads share on the way of a call, safe at any instant of a signal. Used by all that a push, a claim, a
settling or a buffer goes through in the thread of its caller.

A signal's handler runs in the main thread, between any two of its instructions. It may raise there (a soft time limit,
a job's timeout, Ctrl-C), or it may call the engine itself (a handler of SIGTERM that hands work back). Exceptions that
one thread has raised in another come like that, too. The locks of ``threading`` that have Python code in them
(``Condition``, ``Event``, ``Semaphore``) have instants at which a handler that raises leaves them taken for ever. Four
rules hold instead, and this module has what follows from them:

1. A lock is one of C, entered by ``with`` and by nothing else: between its entry and the block no handler runs. Where
   the block makes no call and no loop, none runs in the block either: that is a plain ``threading.Lock``, for an
   *instant*. Where it does, the lock is a ``Guard``.
2. A thread that finds that it holds a guard itself is a handler within the guarded change. It takes a way without it.
3. Nobody waits with a lock. Who waits looks, waits for a bell of its own, and looks again (``Waiting``); also after a
   while without a bell, as who should have rung it may have been interrupted before.
4. What is given back is counted by those that have it: an interrupted thread may give nothing back. A ``Permit`` is an
   object, and is out for as long as anybody refers to it.

An exception may come between any two statements, so changes stand in an order that leaves each state between them
sound; one call of a C method of a ``deque``, ``set`` or ``dict`` is never half done.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import queue
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

LOOK_S = 0.2
"""The length of one wait. When two signals come at once, the system may have another thread take both, and does not
wake the main thread, where Python would call their handlers. Also the time after which a lost bell is made good.
"""

LOOK_APART_S = 2.0
"""The same for an event that another thread waits for, where no handler waits to be called: many such threads sleep."""


def raised_by_handler(exc: BaseException) -> bool:
    """True if the handler of a signal has raised it. It is for the caller then, whatever its type: it is no answer of a
    server, no failure of a socket, and says nothing of a payload. Asked where errors of many types are caught.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {_code_of(handler) for handler in handlers if callable(handler)} - {None}
    trace = exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """The code of a function, a method, a partial or an object with ``__call__``; None for a function of C."""
    while isinstance(handler, partial):
        handler = handler.func
    code = getattr(handler, "__code__", None)  # a method has that of its function
    if code is None:
        code = getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


class Guard(_thread.RLock):  # type: ignore[misc]  # it is final for type checkers alone
    """A lock whose block makes calls. Enter it by ``with``, unless it is ``held_here``."""

    __slots__ = ()

    @property
    def held_here(self) -> bool:
        """True if this thread holds it: the caller has interrupted the block, and must not enter it."""
        return self._is_owned()  # type: ignore[no-any-return,attr-defined]  # every RLock has it: a Condition asks it


class Waiting:
    """Those who wait for something that others give back. The first that waits is the first that is woken."""

    def __init__(self) -> None:
        self.bells: deque[Any] = deque()
        """Those who wait now, one each. Empty: there is nobody to wake."""

    def until(self, found: Callable[[], T], deadline: float = math.inf) -> T:
        """Returns what ``found`` returns as soon as that is not None, or after the deadline."""
        bell = threading.Lock()
        bell.acquire()
        bells, is_rung = self.bells, True
        # hundreds of threads may wait: each look of theirs takes the interpreter from the others
        look_s = LOOK_S if threading.current_thread() is threading.main_thread() else LOOK_APART_S
        try:
            while True:
                if is_rung:
                    bells.append(bell)  # before the look: what is given from now on rings it
                it, left = found(), deadline - time.monotonic()
                if it is not None or left <= 0:
                    return it
                is_rung = bell.acquire(timeout=min(left, look_s))
        finally:
            try:
                bells.remove(bell)
            except ValueError:  # it was rung, perhaps for what another is to take
                self.wake()

    def wake(self, most: int = 1) -> None:
        """Has so many of those who wait look again."""
        for _ in range(most):
            try:
                bell = self.bells.popleft()
            except IndexError:
                return
            bell.release()

    def wake_all(self) -> None:
        self.wake(len(self.bells))


class Latch:
    """Something that happens once, for any number of threads. It takes no lock."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting = Waiting()

    def set(self) -> None:
        self._is_set = True
        self._waiting.wake_all()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, or for so many seconds. Returns True if it is set."""
        if not self._is_set:
            deadline = math.inf if timeout is None else time.monotonic() + timeout
            self._waiting.until(lambda: self._is_set or None, deadline)
        return self._is_set


class Living(Generic[T]):
    """Objects, for as long as anybody else refers to them. Each change is one call of C, also that of an object's end:
    it rings no bell.
    """

    __slots__ = ("_refs",)

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[T]] = {}

    def __len__(self) -> int:
        return len(self._refs)

    def __iter__(self) -> Iterator[T]:
        """Those that live now."""
        return (one for ref in list(self._refs.values()) if (one := ref()) is not None)

    def add(self, one: T) -> None:
        key = id(one)
        # A reference that ends is handed to its callback: here as what ``pop`` returns where the key is gone already.
        self._refs[key] = weakref.ref(one, partial(self._refs.pop, key))

    def discard(self, one: object) -> None:
        self._refs.pop(id(one), None)


class Permit:
    """One of ``Permits``: out for as long as anybody refers to it, unless it was given back before."""

    __slots__ = ("__weakref__", "holder", "is_extra")

    def __init__(self, *, is_extra: bool = False) -> None:
        self.holder: int = threading.get_ident()
        """The thread that uses what it stands for; 0: none, or any."""
        self.is_extra: bool = is_extra
        """True if it is beyond their number."""


class Permits:
    """A number of permits."""

    def __init__(self, most: int) -> None:
        self.most: int = most
        self.waiting: Waiting = Waiting()
        self._out = Living[Permit]()
        self._guard = Guard()

    def __len__(self) -> int:
        """The number of permits that are out, but for extra ones."""
        return len(self._out)

    def take(self, most: int | None = None) -> Permit | None:
        """Returns a permit if fewer than ``most`` are out, by default all. To a handler that has interrupted this very
        call it gives an extra one.
        """
        if self._guard.held_here:
            return Permit(is_extra=True)
        permit = Permit()
        with self._guard:
            if len(self._out) >= (self.most if most is None else most):
                return None
            self._out.add(permit)
        return permit

    def take_until(self, deadline: float = math.inf) -> Permit | None:
        """Waits for a permit. None: none came back in time. A thread that has one is given an extra one: it would wait
        for itself.
        """
        if (permit := self.take()) is not None:
            return permit
        return Permit(is_extra=True) if self.held_here else self.waiting.until(self.take, deadline)

    def give(self, permit: Permit | None) -> None:
        """Takes a permit back. Nothing happens if it is back, or is none."""
        self._out.discard(permit)
        if self.waiting.bells:
            self.waiting.wake()

    @property
    def held_here(self) -> bool:
        """True if this thread uses what one of the permits stands for."""
        here = threading.get_ident()
        return any(permit.holder == here for permit in self._out)


class SignalSafeEvent:
    """An event. Anybody may set it; ``wait`` is for one thread, the one that clears it."""

    def __init__(self) -> None:
        self._given = threading.Lock()
        """Held once the event is set; nobody waits for it."""
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> bool:
        """Sets the event. Returns True to the first caller alone: a second signal may interrupt the handler of the
        first.
        """
        first = self._given.acquire(blocking=False)
        self._calls.put(None)
        return first

    def is_set(self) -> bool:
        return self._given.locked()

    def clear(self) -> None:
        if self._given.locked():
            self._given.release()
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, or for so many seconds. Returns True if it is set."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        look_s = LOOK_S if threading.current_thread() is threading.main_thread() else LOOK_APART_S
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=min(left, look_s))
        return self.is_set()
