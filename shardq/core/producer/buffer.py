"""Coalesces the pushes of many threads: one thread sends what the others leave in the buffer.

A caller gets a ``Pending`` at once, which tells when its task is safely stored. The buffer is sent when the last
sending is over. Callers wait while it is full.
A buffer that was not closed is closed with its engine, or as the program ends: what it still holds is sent then, or the
number of lost pushes is said.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from shardq.core import forks
from shardq.core.locks import LOOK_S, Latch, Permits, SignalSafeEvent, Waiting
from shardq.core.model.checks import check_seconds
from shardq.core.model.printable import counted
from shardq.core.model.task import Receipt
from shardq.core.model.task_options import PushOptions
from shardq.core.producer.packing import Entries
from shardq.core.threads import launch
from shardq.errors import EngineClosed, PushError, ShardqError, Unanswered

log: logging.Logger = logging.getLogger("shardq.producer")

MOST_WAITING = 8000
"""Tasks that may wait while others are sent."""

MAX_FAILED = 25
"""Failed sendings kept for the next flush, 100,000 tasks at most: an outage of hours must not fill the memory of a
process that never flushes. Every ``Pending`` tells its own task's outcome in any case.
"""

ENDING_S = 1.0
"""Time for the thread of a buffer to end whose engine is closed."""

Send = Callable[[Entries], list[Receipt]]
"""Stores packed tasks, or raises PushError."""

Pack = Callable[..., Entries]
"""Checks and encodes one task, given as push takes it."""

_unclosed: set[Buffer] = set()
"""The buffers of this process that were used and not closed."""


class _Sending:
    """Tasks that are sent together, and their outcome."""

    __slots__ = ("done", "entries", "error", "receipts", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Pending] = deque()
        """What was pushed, until it is taken to be sent."""
        self.entries: Entries = Entries(keyed=False)
        self.done: Latch = Latch()
        self.receipts: Sequence[Receipt] = ()
        """In the order of the entries."""
        self.error: ShardqError | None = None

    def take(self) -> None:
        """Takes what was pushed, in the sending thread, when no more is pushed here."""
        entries = self.entries
        for position in itertools.count():
            try:
                pending = self.waiting.popleft()
            except IndexError:
                return
            packed = pending._packed
            pending._packed, pending._position = None, position
            entries.ids += packed.ids
            entries.fresh += packed.fresh
            entries.unique += packed.unique
            entries.keyed = entries.keyed or packed.keyed

    @property
    def lost(self) -> int:
        """The number of its tasks that are not known to be stored."""
        if not self.done.is_set():
            return len(self.entries.ids) + len(self.waiting)
        error = self.push_error()
        return len(error.ids) - len(error.stored)

    def push_error(self) -> PushError:
        """The outcome of its tasks, when it failed."""
        if isinstance(self.error, PushError):
            return self.error
        # It ended before its answers were read: some of it may be stored.
        return PushError(ids=self.entries.ids, stored=[], failed={}, unknown=self.entries.ids)

    def left_to_the_parent(self) -> None:
        """Fails it, in the child of a fork."""
        self.done = Latch()
        if self.entries.ids or self.waiting:
            self.done.set()
            if not self.receipts and self.error is None:
                self.error = EngineClosed(
                    "this push was made before a fork, and the parent process sends it: ask for its result there"
                )


class Pending:
    """A push in flight. ``id`` is known at once; ``result()`` waits until the task is stored.

    >>> pending = buffer.push({"order": 42})
    >>> receipt = pending.result(timeout=5)
    """

    __slots__ = ("_packed", "_position", "_sending", "id")

    def __init__(self, packed: Entries) -> None:
        self.id: str = packed.ids[0]
        self._packed: Any = packed  # None once it is among the entries
        self._sending: _Sending
        """What it goes with."""
        self._position: int
        """The task's place among the entries: two threads may push one id."""

    def __repr__(self) -> str:
        return f"<Pending {self.id}: {'done' if self.done() else 'under way'}>"

    def done(self) -> bool:
        """True if ``result`` would not wait.

        >>> if pending.done():
        ...     print(pending.result())
        """
        return self._sending.done.is_set()

    def result(self, timeout: float | None = None) -> Receipt:
        """Returns the receipt once the task is stored. Raises the error if it is not, and TimeoutError if that takes
        longer.

        >>> receipt = pending.result(timeout=5)
        """
        if timeout is not None:
            check_seconds(timeout, "timeout")
        sending = self._sending
        if not sending.done.wait(timeout):
            raise TimeoutError(
                f"the push of {self.id} is still under way after {timeout} s; wait on, or look with get()"
            )
        if sending.receipts:
            return sending.receipts[self._position]
        error = sending.error
        if isinstance(error, PushError):
            id = error.ids[self._position]
            if isinstance(id, Receipt):
                return id
            if id in error.failed:
                raise error.failed[id]
            raise Unanswered(
                f"the push of {id} was sent and its answer lost; look with get(), or push it again by its id"
            ) from error
        assert error is not None, "a sending ends with receipts or with an error"
        raise error


class Buffer(forks.OfOneProcess):
    """The buffer that ``engine.buffered()`` returns. Thread-safe. ``close()``, or leaving its ``with`` block, sends the
    rest.

    >>> with engine.buffered() as buffer:
    ...     pending = buffer.push({"order": 42}, delay=60)
    """

    def __init__(self, pack: Pack, send: Send, *, owner: object, timeout: float) -> None:
        self._pack = pack
        self._send = send
        self._owner = owner
        """The engine, which closes it."""
        self._timeout = timeout
        """The seconds for what is sent when its owner or the program ends."""
        self._closed = False
        self._reset()
        forks.watch(self, Buffer._forked)

    def _reset(self) -> None:
        self._filled = SignalSafeEvent()
        """Wakes the thread that sends."""
        self._emptied = Waiting()
        """Pushes that wait for room."""
        self._open = _Sending()
        """What is pushed now."""
        self._sent = _Sending()
        """The last sending, perhaps still in flight."""
        self._sent.done.set()
        self._failed: deque[tuple[int, _Sending]] = deque()
        """Failed sendings that no flush has reported, with their numbers."""
        self._dropped = self._dropped_told = 0
        """The tasks of failed sendings that were too many to keep: all, and those that a flush has reported."""
        self._delivered = self._told = 0
        """The numbers of the last sending that has ended, and of the last one that a flush has reported."""
        self._sender = Permits(1)
        """Of the thread that sends. Another one ends at once."""
        self._is_started = False
        """True while that thread runs. Made by the first push."""
        self._over = Latch()
        """Set when all is sent of a buffer that was closed."""

    def _forked(self) -> None:
        """Empties the buffer in the child of a fork: what was pushed before is the parent's to send."""
        for sending in (self._open, self._sent):
            sending.left_to_the_parent()
        _unclosed.discard(self)
        self._reset()

    def __repr__(self) -> str:
        return f"<Buffer: {len(self._open.waiting)} waiting{', closed' if self._closed else ''}>"

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def push(self, payload: Any, **options: Unpack[PushOptions]) -> Pending:
        """Like ``engine.push``, with the same options. Raises at once for wrong arguments.

        >>> pending = buffer.push({"order": 42}, delay=60)
        """
        pending = Pending(self._pack(payload, options))
        while True:
            sending = self._open
            if len(sending.waiting) >= MOST_WAITING:
                self._emptied.until(self._takes_more)
                sending = self._open
            if self._closed:
                raise EngineClosed("the buffer is closed; make another with engine.buffered()")
            if not self._is_started:
                self._start()
            pending._sending = sending
            sending.waiting.append(pending)
            # What was closed, or taken to be sent, since then may have missed it. Else it is on its way.
            if (sending is not self._open or self._closed) and self._taken_back(pending):
                continue
            if not self._filled.is_set():
                self._filled.set()
            return pending

    def _takes_more(self) -> bool | None:
        return self._closed or len(self._open.waiting) < MOST_WAITING or None

    @staticmethod
    def _taken_back(pending: Pending) -> bool:
        """Takes a task back that nobody has taken to be sent. Returns True if it did."""
        try:
            pending._sending.waiting.remove(pending)
        except ValueError:
            return False
        return True

    def _start(self) -> None:
        _unclosed.add(self)
        # Anew, to be called before what its engine has registered since: the embedded server's end.
        atexit.unregister(end_all)
        atexit.register(end_all)
        self._launch()
        self._is_started = True

    def _launch(self) -> None:
        launch(threading.Thread(target=self._run, name="shardq-buffer", daemon=True))

    def flush(self) -> None:
        """Returns when everything pushed so far is stored. Raises one PushError for all tasks sent since the last flush
        that are not stored.

        >>> buffer.flush()
        """
        told, sending = self._told, self._open
        # In this order: what is not open any more was sent before.
        last = sending if sending.waiting else self._sent
        last.done.wait()
        self._raise_failures(told)

    def close(self) -> None:
        """Sends the rest and waits for it. Raises like ``flush``.

        >>> buffer.close()
        """
        told = self._told
        self._end(None)
        self._raise_failures(told)

    def _end(self, within: float | None) -> None:
        """Takes no more pushes, and sends the rest. Waits for that, for so many seconds."""
        _unclosed.discard(self)
        self._closed = True
        self._emptied.wake_all()
        if self._is_started or self._open.waiting:
            if not self._sender:
                self._launch()
            self._filled.set()
            self._over.wait(within)

    def _lost(self) -> tuple[int, str]:
        """The number of pushes that are not known to be stored, other than those that a flush has told, and why."""
        failed = [sending for number, sending in list(self._failed) if number > self._told]
        unsent = [sending for sending in (self._sent, self._open) if not sending.done.is_set()]
        lost = self._dropped - self._dropped_told + sum(sending.lost for sending in {*failed, *unsent})
        why = str(failed[0].error) if failed else f"the servers have not answered within {self._timeout:g} s"
        return lost, why

    def _raise_failures(self, told: int) -> None:
        """Raises the errors of the sendings after number ``told``. Two flushes at once may both report one sending."""
        delivered, all_dropped = self._delivered, self._dropped
        failed = [sending for number, sending in list(self._failed) if told < number <= delivered]
        dropped = all_dropped - self._dropped_told
        self._told, self._dropped_told = delivered, all_dropped
        errors = [sending.error for sending in failed if sending.error is not None]
        if not errors:
            return
        error = errors[0] if len(errors) == 1 else PushError.merged(map(_Sending.push_error, failed))
        if dropped:
            error.add_note(
                f"{counted(dropped, 'task')} of sendings before these failed too: each Pending tells its own fate"
            )
        raise error

    def _run(self) -> None:
        permit = self._sender.take()
        if permit is None:
            return
        try:
            while True:
                is_closed = self._closed  # before the look: what is pushed later is taken back
                sending = self._open
                if sending.waiting:
                    self._sent = sending  # first: flush looks there for what is not open
                    self._open = _Sending()
                    sending.take()
                    self._emptied.wake_all()
                    self._deliver(sending)
                elif is_closed:
                    sending.done.set()  # a flush may have met what was then taken back
                    return
                else:
                    self._filled.wait(LOOK_S)  # one whose push was interrupted does not say that it is there
                    self._filled.clear()
        finally:
            self._is_started = False
            self._sender.give(permit)
            if self._closed:
                self._over.set()

    def _deliver(self, sending: _Sending) -> None:
        try:
            receipts = self._send(sending.entries)
        except ShardqError as exc:
            sending.error = exc
        except BaseException as exc:
            # The callers learn of it; the thread has none that would.
            sending.error = ShardqError(f"the buffer could not be sent: {exc!r}")
            raise
        else:
            sending.receipts = receipts
        finally:
            # A program that keeps a Pending would keep the payloads of its whole sending, too.
            sending.entries = Entries(ids=sending.entries.ids)
            self._note(sending)
            sending.done.set()

    def _note(self, sending: _Sending) -> None:
        """Notes the end of a sending. Its number counts when all that is said of it is there."""
        if sending.error is not None:
            while self._failed and self._failed[0][0] <= self._told:
                self._failed.popleft()
            self._failed.append((self._delivered + 1, sending))
            if len(self._failed) > MAX_FAILED:
                _, dropped = self._failed.popleft()
                self._dropped += len(dropped.entries.ids)
        self._delivered += 1


def end_all() -> None:
    """Closes all that are left, as the program ends."""
    _tell(end(None))


def tell(buffers: Sequence[Buffer]) -> None:
    """Says how many pushes are lost with buffers that were not closed, when their engine is."""
    for buffer in buffers:
        buffer._end(ENDING_S)  # its engine has no connections any more
    _tell(buffers)


def end(owner: object) -> list[Buffer]:
    """Closes the buffers of an engine that were not closed, while it can send; ``tell`` says what became of them. None:
    those of all engines.
    """
    buffers = [buffer for buffer in list(_unclosed) if owner is None or buffer._owner is owner]
    began = time.monotonic()
    for buffer in buffers:
        buffer._end(max(0.0, began + buffer._timeout - time.monotonic()))
    return buffers


def _tell(buffers: Sequence[Buffer]) -> None:
    for buffer in buffers:
        lost, why = buffer._lost()
        if lost:
            log.error("a buffer was not closed, and %d of its pushes are not known to be stored: %s", lost, why)
    for _ in buffers:  # at last, as a program may have them raised
        warnings.warn("a buffer was not closed: close it, or use it in a with block", ResourceWarning, stacklevel=4)
