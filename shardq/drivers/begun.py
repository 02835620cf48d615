"""A call that is sent now and whose answer is read later: ``begin`` and ``finish`` of the drivers.

The server works meanwhile. With threads the connection is the call's own until the answer is read, so few may be begun
at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shardq.drivers.connection import FINISH_S, READ_TIMEOUT_S, Connection
from shardq.drivers.faults import Fault
from shardq.drivers.pool import ConnectionPool
from shardq.drivers.retry import RetryingCall

if TYPE_CHECKING:
    from shardq.drivers.aioconnection import Answer, AsyncConnection

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
        left = self.retrying.deadline - time.monotonic()
        try:
            answer = self._connection.receive(min(left, READ_TIMEOUT_S))
        except BaseException:
            self.leave()
            raise
        self._read()
        if isinstance(answer, Fault):
            self._pool.drop(self._connection)
        else:
            self._pool.give(self._connection)
        return answer

    def leave(self) -> None:
        """Takes the answer for a caller who was interrupted: it says what the caller was given."""
        self.retrying.finished(self._connection.receive(FINISH_S))
        self._pool.drop(self._connection)
        self._read()


@dataclass(slots=True, eq=False)
class AsyncBegunCall(Generic[T]):
    """The twin for asyncio, where a connection has any number of calls."""

    retrying: RetryingCall[T]
    address: str
    connection: AsyncConnection
    answer: Answer
