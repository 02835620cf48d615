"""The replicas and the disk of each node, as a driver knows them: have they all that was written? No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from shardq.core.calls.node_info import info_fields
from shardq.core.calls.request import Call, pack
from shardq.core.drivers.conversations import Exchange
from shardq.core.drivers.disk import synced
from shardq.core.drivers.faults import ErrorReply, Fault, of_reply
from shardq.errors import AccessDenied

WAIT_MS = 1000  # time for the replicas to confirm: they do in a round trip. Longer than that they are behind.

CONVERSATION_S = 6.0  # time for the whole of it

ALONE_S = 1.0
"""A node without replicas is taken to have none for this long, and not asked meanwhile. One that was promoted is, each
time.
"""

REMEMBERED_S = 300.0
"""A replica that is not connected counts for this long. After that neither a cluster nor Sentinel promotes it, as they
are usually set up.
"""

INFO = Exchange(pack("INFO", "server", "replication", "persistence"), 1)

VOLATILE = "volatile"
"""The last word of the history of a server without replicas and append-only file."""

DISK_S = 3.5  # time for the disk: with everysec it has all within a second or two, and that is known by then


class Confirmation(NamedTuple):
    """A conversation to be held on one connection to a node, which is used for nothing else meanwhile. Each step
    has one answer.
    """

    address: str
    conversation: Generator[Exchange, Any, str | Fault | None]


class ReplicaTracker:
    """The replicas of each node, as far as one driver knows of them, and its disk.

    WAIT and WAITAOF are about the writes of one connection. So a small one is made first, on a connection that is used
    for nothing else meanwhile: who has it has all that came before it, by whichever connection.

    The name of a history is that of the replication stream and of the server's process: one that was started again may
    have lost its last writes, and goes on in the same stream.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """Address → how many replicas it had at most lately, and when it had them last."""
        self._alone: dict[str, tuple[str, float]] = {}
        """Address of a node without replicas → its history, and until when that is good."""
        self._unsynced: dict[str, str] = {}
        """Address of a node with ``appendfsync no`` → its history."""

    def confirm(
        self, seals: Sequence[Call[None]], node_of: Callable[[int], str], *, disk: bool
    ) -> Generator[Sequence[Confirmation], Sequence[str | Fault | None], dict[int, str | None]]:
        """Asks each node of these slots if its replicas, and its ``disk``, have all that was written until now: all
        nodes at once. Returns histories by slot, see ``operation.Confirm``.
        """
        addresses = {seal.slot: node_of(seal.slot) for seal in seals}
        # what is cached may be of before a restart: that is known too late for the disk
        said = {address: None if disk else self._known(address) for address in addresses.values()}
        asked = [
            Confirmation(address, self._asked(address, seal, disk=disk))
            for address, seal in {addresses[seal.slot]: seal for seal in seals}.items()
            if address and said[address] is None
        ]
        if asked:
            for each, history in zip(asked, (yield asked), strict=True):
                said[each.address] = None if isinstance(history, Fault) else history
        return {slot: said[address] for slot, address in addresses.items()}

    def _known(self, address: str) -> str | None:
        """The history of a node that had no replica a moment ago, and need not be asked."""
        history, until = self._alone.get(address, ("", 0.0))
        return history if time.monotonic() < until else None

    def _asked(self, address: str, seal: Call[None], *, disk: bool) -> Generator[Exchange, Any, str | Fault | None]:
        """Returns the name of the node's history if all its replicas have what was written until now, None if that
        can't be said, and the fault of a connection that can't be used any more.
        """
        text = _allowed((yield INFO), address)
        if not isinstance(text, bytes):
            return _fault(text)
        fields = info_fields(text)
        if fields.get(b"role") != b"master":
            return None
        history = f"{fields[b'master_replid'].decode()} {fields.get(b'run_id', b'').decode()}"
        connected = sum(name.startswith(b"slave") and b"state=online" in value for name, value in fields.items())
        # a master has a backlog when it had a replica, and one that was promoted because it was one itself
        was_promoted = bool(fields[b"master_replid2"].strip(b"0"))
        lost = fields.get(b"repl_backlog_active") == b"1" and not was_promoted
        wanted = self._wanted(address, connected, before=int(lost))
        keeps = fields.get(b"aof_enabled") == b"1"
        if not wanted and not keeps:
            history = f"{history} {VOLATILE}"
        appends = disk and keeps
        if not wanted and not was_promoted:  # others that followed its master come to it within moments
            self._alone[address] = history, time.monotonic() + ALONE_S
        if not wanted and not appends:
            return history
        sealed = yield Exchange(seal.packed_in_full(), 1)
        if not isinstance(sealed, list) or sealed[0] != b"ok":
            return _fault(sealed)
        if wanted:
            reached = _allowed((yield Exchange(pack("WAIT", wanted, WAIT_MS), 1)), address)
            if not isinstance(reached, int) or reached < wanted:
                return _fault(reached)
        return (yield from self._on_disk(address, history)) if appends else history

    def _on_disk(self, address: str, history: str) -> Generator[Exchange, Any, str | Fault | None]:
        """The same for the disk of a server with an append-only file."""
        if self._unsynced.get(address) == history:
            return history
        reached = _allowed((yield from synced(DISK_S)), address)
        if reached == "never":
            self._unsynced[address] = history  # the operator has said that the disk does not matter
        return history if reached in ("synced", "never") else _fault(reached)

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
            "allow the user INFO, WAIT and WAITAOF: tasks are moved between shards only where that is known"
        )
    return answer
