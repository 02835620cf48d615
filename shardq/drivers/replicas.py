"""The conversation that tells whether a node's replicas have what was written on it, for both drivers, and what is
remembered of each node. No I/O.

WAIT is about the writes of one connection. So a small one is made first, on a connection that nobody else uses
meanwhile: the replicas that have it have all that came before it, by whichever connection.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from shardq.calls.observe import info_fields
from shardq.calls.request import Call
from shardq.drivers.connection import pack
from shardq.drivers.faults import ErrorReply, of_reply
from shardq.errors import AccessDenied

WAIT_MS = 1000
"""Time for the replicas to confirm: they do in a round trip. Longer than that they are behind."""

CONVERSATION_S = 5.0
"""Time for the whole of it."""

ALONE_S = 1.0
"""A node without replicas is taken to have none for this long, and not asked meanwhile."""

REMEMBERED_S = 300.0
"""A replica that is not connected counts for this long. After that neither a cluster nor Sentinel promotes it, as they
are usually set up.
"""

INFO = pack(("INFO", "replication"))


class ReplicaTracker:
    """The replicas of each node, as far as one driver knows of them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """Address → how many replicas it had at most lately, and when it had them last."""
        self._alone: dict[str, tuple[str, float]] = {}
        """Address of a node without replicas → its history, and until when that is good."""

    def known(self, address: str) -> str | None:
        """The history of a node that has no replica, and needs not be asked."""
        history, until = self._alone.get(address, ("", 0.0))
        return history if time.monotonic() < until else None

    def confirmed(self, address: str, seal: Call[None]) -> Generator[bytes, Any, str | None]:
        """Yields what to send on one connection, and is resumed with the answer. The name of the node's history when
        all its replicas have what was written until now; None when that can't be said."""
        text = _allowed((yield INFO), address)
        if not isinstance(text, bytes):
            return None
        fields = info_fields(text)
        if fields.get(b"role") != b"master":
            return None
        history = fields[b"master_replid"].decode()
        connected = sum(name.startswith(b"slave") and b"state=online" in value for name, value in fields.items())
        # a master has a backlog when it had a replica, and one that was promoted because it was one itself
        lost = fields.get(b"repl_backlog_active") == b"1" and not fields[b"master_replid2"].strip(b"0")
        wanted = self._wanted(address, connected, before=int(lost))
        if not wanted:
            self._alone[address] = history, time.monotonic() + ALONE_S
            return history
        sealed = yield seal.packed_in_full()
        if not isinstance(sealed, list) or sealed[0] != b"ok":
            return None
        reached = _allowed((yield pack(("WAIT", str(wanted), str(WAIT_MS)))), address)
        return history if isinstance(reached, int) and reached >= wanted else None

    def _wanted(self, address: str, connected: int, *, before: int) -> int:
        """``before``: how many it had, for all we know, when it is met first."""
        now = time.monotonic()
        most, at = self._seen.setdefault(address, (before, now))
        if connected >= most or now - at > REMEMBERED_S:
            most, at = self._seen[address] = connected, now
        return most


def _allowed(answer: Any, address: str) -> Any:
    if isinstance(answer, ErrorReply) and of_reply(answer.text, asked=address).error is AccessDenied:
        raise AccessDenied(
            f"{address}: whether replicas have what was written can't be asked: {answer.text}; "
            "allow the user INFO and WAIT: tasks are moved between shards only where that is known"
        )
    return answer
