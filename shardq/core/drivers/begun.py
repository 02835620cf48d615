"""A call that is sent now and whose answer is read later: ``begin`` and ``finish`` of the drivers.

The server works meanwhile. With threads the connection is the call's own until the answer is read, so few may be begun
at a time.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shardq.core.drivers.connection import FINISH_S, READ_TIMEOUT_S, Connection
from shardq.core.drivers.faults import Fault
from shardq.core.drivers.pool import ConnectionPool
from shardq.core.drivers.retry import RetryingCall

if TYPE_CHECKING:
    from shardq.core.drivers.aioconnection import Answer, AsyncConnection

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class BegunCall(Generic[T]):
    """Whoever has it reads the answer, in any thread, and exactly once: else its connection is lost to the pool."""

    retrying: RetryingCall[T]
    address: str
    _pool: ConnectionPool
    _connection: Connection
    _read: Callable[[], None]
    """Called when the answer was read."""

    def receive(self) -> Any:
        """Returns the answer, an ``ErrorReply`` or a ``Fault``. One that has come is read, however late it is."""
        left = min(self.retrying.deadline, self.silent_at) - time.monotonic()
        try:
            answer = self._connection.receive(left)
        except BaseException:
            self.leave()
            raise
        self._read()
        if isinstance(answer, Fault):
            self._pool.drop(self._connection)
        else:
            self._pool.give(self._connection)
        return answer

    @property
    def number(self) -> int:
        """Its file descriptor; -1 if it is closed."""
        return self._connection.sock.fileno()

    @property
    def silent_at(self) -> float:
        """The time at which its server is taken for dead."""
        return self.retrying.sent_at + READ_TIMEOUT_S

    def leave(self) -> None:
        """Takes the answer for a caller who was interrupted: it says what the caller was given."""
        self.retrying.finished(self._connection.receive(FINISH_S))
        self._pool.drop(self._connection)
        self._read()


def answered(calls: Sequence[BegunCall[Any]], until: float) -> Sequence[BegunCall[Any]]:
    """Waits for an answer to one of them. Returns those that have one, or all when the time is over."""
    poll = select.poll()
    by_number = {call.number: call for call in calls}
    if -1 in by_number:
        return calls
    for number in by_number:
        poll.register(number, select.POLLIN)
    left = min(until, *(call.silent_at for call in calls)) - time.monotonic()
    try:
        found = poll.poll(max(0.0, left) * 1000)
    except BaseException:
        for call in calls:
            call.leave()
        raise
    return [by_number[number] for number, _ in found] or calls


@dataclass(slots=True, eq=False)
class AsyncBegunCall(Generic[T]):
    """The twin for asyncio, where a connection has any number of calls."""

    retrying: RetryingCall[T]
    address: str
    connection: AsyncConnection
    answer: Answer
