"""The conversation that tells whether a node's replicas have what was written on it, for both drivers, and what is
remembered of each node. No I/O.

WAIT is about the writes of one connection. So a small one is made first, on a connection that is used for nothing else
meanwhile: the replicas that have it have all that came before it, by whichever connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from shardq.core.calls.node_info import info_fields
from shardq.core.calls.request import Call, pack
from shardq.core.drivers.faults import ErrorReply, Fault, of_reply
from shardq.core.drivers.handshake import Exchange
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

INFO = Exchange(pack("INFO", "replication"), 1)


class Confirmation(NamedTuple):
    """A conversation to be held on one connection to a node, which is used for nothing else meanwhile."""

    address: str
    conversation: Generator[Exchange, Any, str | Fault | None]


class ReplicaTracker:
    """The replicas of each node, as far as one driver knows of them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """Address → how many replicas it had at most lately, and when it had them last."""
        self._alone: dict[str, tuple[str, float]] = {}
        """Address of a node without replicas → its history, and until when that is good."""

    def confirm(
        self, seals: Sequence[Call[None]], node_of: Callable[[int], str]
    ) -> Generator[Confirmation, str | Fault | None, dict[int, str | None]]:
        """Asks each node of these slots if its replicas have all that was written until now. Returns histories by slot,
        see ``operation.Confirm``.
        """
        addresses = {seal.slot: node_of(seal.slot) for seal in seals}
        said: dict[str, str | None] = {}
        for address, seal in {addresses[seal.slot]: seal for seal in seals}.items():
            history: str | Fault | None = self._known(address)
            if address and history is None:
                history = yield Confirmation(address, self._asked(address, seal))
            said[address] = None if isinstance(history, Fault) else history
        return {slot: said[address] for slot, address in addresses.items()}

    def _known(self, address: str) -> str | None:
        """The history of a node that had no replica a moment ago, and need not be asked."""
        history, until = self._alone.get(address, ("", 0.0))
        return history if time.monotonic() < until else None

    def _asked(self, address: str, seal: Call[None]) -> Generator[Exchange, Any, str | Fault | None]:
        """Returns the name of the node's history if all its replicas have what was written until now, None if that
        can't be said, and the fault of a connection that can't be used any more.
        """
        text = _allowed((yield INFO), address)
        if not isinstance(text, bytes):
            return _fault(text)
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
        sealed = yield Exchange(seal.packed_in_full(), 1)
        if not isinstance(sealed, list) or sealed[0] != b"ok":
            return _fault(sealed)
        reached = _allowed((yield Exchange(pack("WAIT", wanted, WAIT_MS), 1)), address)
        return history if isinstance(reached, int) and reached >= wanted else _fault(reached)

    def _wanted(self, address: str, connected: int, *, before: int) -> int:
        """The number of replicas to wait for. ``before``: the number that a node met first has had, for all we know."""
        now = time.monotonic()
        most, at = self._seen.setdefault(address, (before, now))
        if connected >= most or now - at > REMEMBERED_S:
            most, at = self._seen[address] = connected, now
        return most


def _fault(answer: Any) -> Fault | None:
    return answer if isinstance(answer, Fault) else None


def _allowed(answer: Any, address: str) -> Any:
    if isinstance(answer, ErrorReply) and of_reply(answer.text, asked=address).error is AccessDenied:
        raise AccessDenied(
            f"{address}: whether replicas have what was written can't be asked: {answer.text}; "
            "allow the user INFO and WAIT: tasks are moved between shards only where that is known"
        )
    return answer
