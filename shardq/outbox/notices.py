"""How a relay waits for new rows: by LISTEN where the database tells of them, else for a moment."""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

import sqlalchemy as sa

log = logging.getLogger("shardq.outbox")

SLICE_S = 0.5
"""How long a relay that listens takes to notice that it is to stop."""


class Notices(Protocol):
    def wait(self, seconds: float) -> None:
        """Waits for new rows, at most so long."""

    def wake(self) -> None:
        """Ends a wait, from another thread."""

    def close(self) -> None: ...


class Polling:
    """No notices: every wait takes its time, unless the relay is stopped."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        pass


class Listening:
    """PostgreSQL's LISTEN on a connection of its own, for the driver psycopg: others can't wait for notices plainly."""

    def __init__(self, database: sa.Engine, channel: str) -> None:
        self._woken = threading.Event()
        pooled = database.raw_connection()
        connection: Any = pooled.driver_connection
        self._connection = connection
        # It listens from now on, so it does not return to the pool.
        pooled.detach()
        try:
            self._connection.autocommit = True
            self._connection.execute(f'LISTEN "{channel}"')
        except BaseException:
            self._connection.close()
            raise

    def wait(self, seconds: float) -> None:
        left = seconds
        while left > 0 and not self._woken.is_set():
            for _ in self._connection.notifies(timeout=min(left, SLICE_S), stop_after=1):
                return
            left -= SLICE_S

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._connection.close()


def notices(database: sa.Engine, channel: str) -> Notices:
    """Listens where that is possible."""
    if database.dialect.name == "postgresql" and database.dialect.driver == "psycopg":
        return Listening(database, channel)
    return Polling()
