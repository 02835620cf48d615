"""Conversations with one server, written once and driven by threads and by asyncio: the handshake of a new connection,
and the question whether replicas have what was written. No I/O.

A conversation is a generator. It yields its next step and is resumed with the outcome, or with its ShardqError thrown
in; its return value is the result. The operations of engines (``operation``) are driven in the same way.
"""

from __future__ import annotations

import dataclasses
import ssl
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from hiredis import ProtocolError

from shardq.core.calls.node_info import info_fields
from shardq.core.calls.request import Call, pack
from shardq.core.drivers.credentials import Credentials
from shardq.core.drivers.faults import ErrorReply, Fault, Reaction, of_reply
from shardq.core.drivers.settings import Settings, bracketed
from shardq.errors import AccessDenied, ServerFault, ServerTooOld, ShardqError, Unavailable

S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], carry_out: Callable[[S], Any], step: S | None = None) -> T:
    """Carries out one step after the other. Returns the result. ``step``: the first one, if it was taken already."""
    try:
        if step is None:
            step = next(steps)
        while True:
            try:
                outcome = carry_out(step)
            except ShardqError as exc:
                step = steps.throw(exc)
            else:
                step = steps.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration


async def adrive(steps: Generator[S, Any, T], carry_out: Callable[[S], Awaitable[Any]]) -> T:
    """The same on asyncio."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = await carry_out(step)
            except ShardqError as exc:
                step = steps.throw(exc)
            else:
                step = steps.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration


# So that CLIENT LIST shows whose a connection is. A user that may not say it is no error.
NAME = "shardq"
# The parser's words about the first byte of HTTP, and of HTML.
_WEB = ('got "H"', 'got "<"')
_QUOTE = ", with args beginning with"
# A server's words for commands of clusters.
NO_CLUSTER = "cluster support disabled"


class Exchange(NamedTuple):
    """Commands that leave together, and the number of their answers. The last answer is handed back."""

    data: bytes
    answers: int


def handshake(
    settings: Settings, login: Credentials, *, protocol: int, sentinel: bool, node_id: str | None = None
) -> Generator[Exchange, Any, Fault | None]:
    """Yields exchanges, and is resumed with the last answer of each, or a ``Fault``. Returns why it failed, if it did:
    every refusal says what is wrong with the URL, and none quotes a password, though a server may.

    ``node_id``: the server must be this node of its cluster; "": any node of a cluster. RESP2 is what a server speaks
    unasked: HELLO is not sent for it, so that proxies without HELLO can be used.
    """
    db = 0 if sentinel else settings.db
    answer: Any
    if protocol == 3:
        answer = yield Exchange(pack("HELLO", "3", *_auth(login, always_user=True)), 1)
        if not isinstance(answer, dict):
            return _refused(answer, settings, login, sentinel=sentinel)
    elif login:
        answer = yield Exchange(pack(*_auth(login)), 1)
        if answer != b"OK":
            return _refused(answer, settings, login, sentinel=sentinel)
    name = pack("CLIENT", "SETNAME", NAME)
    if db:
        answer = yield Exchange(name + pack("SELECT", str(db)), 2)
    elif node_id is not None:
        answer = yield Exchange(name + pack("CLUSTER", "MYID"), 2)
        if (told := _other_node(answer, node_id)) is not None:
            return told
    else:
        answer = yield Exchange(name, 1)
    if isinstance(answer, bytes) or (
        not db and isinstance(answer, ErrorReply) and not answer.text.startswith("NOAUTH")
    ):
        return None
    return _refused(answer, settings, login, sentinel=sentinel)


def _other_node(answer: Any, node_id: str) -> Fault | None:
    """The fault of a server that has come to listen where a node of the cluster did. One that can't tell who it is, as
    behind a proxy, is believed.
    """
    if isinstance(answer, ErrorReply) and NO_CLUSTER in answer.text:
        told = "one without a cluster"
    elif isinstance(answer, bytes) and node_id and answer.decode() != node_id:
        told = f"the node {answer.decode()} instead of {node_id}"
    else:
        return None
    text = f"another server listens at the address of this node of the cluster: {told}"
    return Fault(Reaction.WAIT, Unavailable, text, is_other_node=True)


def renewal(login: Credentials) -> Exchange:
    """Gives a connection newer credentials."""
    return Exchange(pack(*_auth(login)), 1)


def _auth(login: Credentials, *, always_user: bool = False) -> list[str]:
    if not login:
        return []
    user = login.username or ("default" if always_user else None)
    return ["AUTH", *([user] if user else []), login.password or ""]


def _refused(answer: Any, settings: Settings, login: Credentials, *, sentinel: bool) -> Fault:
    if isinstance(answer, ErrorReply):
        # an old server quotes what it does not understand, cut off somewhere
        text = answer.text.partition(_QUOTE)[0]
        for secret in filter(None, (login.password,)):
            text = text.replace(secret, "***")
        return _denied(text, settings, login, sentinel=sentinel) or _unfit(text, settings)
    if isinstance(answer, Fault):
        if not isinstance(answer.cause, ProtocolError):
            return _broken(answer, settings)
        kind = " but an HTTP server" if any(sign in answer.text for sign in _WEB) else f" ({answer.cause})"
        return _stranger(kind, answer.cause)
    return _stranger(" (it answers, but not to what it is asked)")


def _broken(fault: Fault, settings: Settings) -> Fault:
    """The fault of a connection that ended, or of a silent server. Nothing that was sent has changed anything."""
    fault = fault.before_sending()
    if fault.is_final or not isinstance(fault.cause, ConnectionError | ssl.SSLEOFError):
        return fault
    if settings.tls is None:
        return dataclasses.replace(fault, mute=True)
    if settings.tls.cert is None:
        advice = (
            "check that the server runs; one that wants a certificate of its clients (cert= and key=) ends like this"
        )
        return dataclasses.replace(fault, advice=advice)
    return fault


def _stranger(kind: str, cause: BaseException | None = None) -> Fault:
    return Fault(
        Reaction.END,
        Unavailable,
        f"it is no Redis server{kind}",
        advice="check the host and the port in the URL",
        cause=cause,
    )


def _denied(text: str, settings: Settings, login: Credentials, *, sentinel: bool) -> Fault | None:
    """The fault of a server that refuses who we are."""
    if text.startswith("NOAUTH"):
        where = bracketed(settings.addresses[0]) if settings.kind == "single" else "host:port"
        return _no_entry(
            f"it asks for a password, and the URL has no {'sentinel_password' if sentinel else 'password'}",
            "write ?sentinel_password= at its end (and sentinel_user= for one of its users)"
            if sentinel
            else f"write {settings.scheme}://:password@{where}, or user:password@ for one of its users",
        )
    if text.startswith("WRONGPASS"):
        given = "with the password of the URL" if login.password else "without a password"
        who = f"the user {login.username!r} {given}" if login.username else "the password of the URL"
        if settings.provided is not None and not sentinel:
            # they may have run out on the way: the next try has newer ones
            return Fault(
                Reaction.WAIT,
                AccessDenied,
                f"it does not accept the user {login.username or 'default'!r} with what {settings.provided!r} gave",
                advice="check the user and its ACL on the server, and this machine's clock",
            )
        where = "after sentinel_user= and sentinel_password=" if sentinel else "before the @"
        return _no_entry(
            f"it does not accept {who}",
            f"check the user, the password and the ACL; in the URL they stand {where}, percent-encoded",
        )
    if "without any password configured" in text or "no password is set" in text:
        return _no_entry(
            "it has no password, and the URL has one",
            f"leave out {'sentinel_password=' if sentinel else 'what stands before the @'}",
        )
    return None


def _no_entry(text: str, advice: str) -> Fault:
    return Fault(Reaction.END, AccessDenied, text, advice=advice)


def _unfit(text: str, settings: Settings) -> Fault:
    """The fault of a server that refuses what we ask for."""
    unknown = "unknown command" in text
    if text.startswith("NOPROTO") or (unknown and "HELLO" in text.upper()):
        return Fault(
            Reaction.END,
            ServerTooOld,
            f"it does not know HELLO ({text})",
            advice="shardq needs Redis 7.0 or newer, or Valkey; behind a proxy that speaks RESP2 only, set protocol=2",
        )
    if "DB index" in text or "SELECT is not allowed" in text or (unknown and "SELECT" in text):
        where = "after db=" if settings.scheme == "unix" else "at the end of the URL"
        return Fault(
            Reaction.END,
            ServerFault,
            f"it has no database {settings.db} ({text})",
            advice=f"write a smaller number {where}, or none; the server's setting `databases` is how many it has, "
            "a node of a cluster has database 0 only, and a sentinel has none",
        )
    return dataclasses.replace(of_reply(text, asked=""), text=text)


WAIT_MS = 1000  # time for the replicas to confirm: they do in a round trip. Longer than that they are behind.

CONVERSATION_S = 5.0  # time for the whole of it

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

DISK_MS = 3000  # time for the disk: with everysec it has all within a second, or two

POLICY = Exchange(pack("CONFIG", "GET", "appendfsync"), 1)


class Confirmation(NamedTuple):
    """A conversation to be held on one connection to a node, which is used for nothing else meanwhile."""

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
    ) -> Generator[Confirmation, str | Fault | None, dict[int, str | None]]:
        """Asks each node of these slots if its replicas, and its ``disk``, have all that was written until now. Returns
        histories by slot, see ``operation.Confirm``.
        """
        addresses = {seal.slot: node_of(seal.slot) for seal in seals}
        said: dict[str, str | None] = {}
        for address, seal in {addresses[seal.slot]: seal for seal in seals}.items():
            # what is cached may be of before a restart: that is known too late for the disk
            history: str | Fault | None = None if disk else self._known(address)
            if address and history is None:
                history = yield Confirmation(address, self._asked(address, seal, disk=disk))
            said[address] = None if isinstance(history, Fault) else history
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
        reached = yield Exchange(pack("WAITAOF", 1, 0, DISK_MS), 1)
        if isinstance(reached, ErrorReply):
            # Redis before 7.2 has no WAITAOF, and not each user may send it. Then it is time that tells: with everysec
            # it is on the disk within two seconds, if the server lives so long. No server has so many replicas.
            yield Exchange(pack("WAIT", 1_000_000, 2 * WAIT_MS + 100), 1)
            text = yield INFO
            same = isinstance(text, bytes) and info_fields(text).get(b"run_id", b"") == history.split(" ")[1].encode()
            return history if same else _fault(text)
        if isinstance(reached, list) and reached[0] == 1:
            return history
        if isinstance(reached, list):
            told = yield POLICY
            words = [*told, *told.values()] if isinstance(told, dict) else told
            if isinstance(words, list) and b"no" in words:
                self._unsynced[address] = history  # the operator has said that the disk does not matter
                return history
        return _fault(reached)

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
