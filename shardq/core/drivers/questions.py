"""Questions to servers before it is known who serves what, and how their answers read. No I/O.

Conversations are generators: they yield questions and are resumed with the answers. Each router answers them in its own
way of waiting.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from shardq.core.drivers.faults import ErrorReply, Fault, Reaction, of_reply
from shardq.core.drivers.settings import Settings
from shardq.core.threads import begun
from shardq.errors import EmbeddedFault, InvalidUrl, Unavailable

# A node that hangs must not keep a driver from asking the next one.
ASK_TIMEOUT_S = 1.0
# A server that is probed the other way, with TLS or without, answers at once or not at all.
LOOK_TIMEOUT_S = 0.3
_AT_EACH_CALL = "it is started again, every few seconds, for as long as anything is asked of it"


@dataclass(frozen=True, slots=True)
class Query:
    """One command to one address, on a connection of its own. Answered by a value, an ``ErrorReply`` or a ``Fault``."""

    address: str
    words: tuple[str, ...]
    sentinel: bool = False
    node_id: str | None = None
    """See ``conversations.handshake``."""
    also: tuple[str, ...] = ()
    """A second command, sent after the answer to the first one. Then both answers are the answer."""
    within_s: float = ASK_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Probe:
    """Bytes for one address, on a bare connection. Answered by the first bytes that come back; empty if none do."""

    address: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Locate:
    """Asks what runs the server, and may start it, for its address. Answered by the address or a ``Fault``."""

    locate: Callable[[], str]

    def answer(self) -> str | Fault:
        """The answer. Blocks."""
        try:
            return self.locate()
        except EmbeddedFault as exc:
            return Fault(Reaction.WAIT, Unavailable, str(exc), advice=_AT_EACH_CALL, cause=exc)

    def begun(self) -> Future[str | Fault]:
        """The answer, from a thread that goes on when the caller gives up waiting."""
        return begun(self.answer, "shardq-locate")


Question: TypeAlias = Query | Probe | Locate


def of_all(failed_with: Sequence[tuple[str, Fault]]) -> Fault:
    """One fault for those of all that were asked: final if each of them is, with the error of the first that is."""
    for _, fault in failed_with:
        if fault.is_loading:
            return fault
    final = [fault for _, fault in failed_with if fault.is_final]
    first = (final or [fault for _, fault in failed_with])[0]
    common = len({fault.advice for _, fault in failed_with}) == 1
    told: dict[str, list[str]] = {}
    for address, fault in failed_with:
        text = fault.text if common or not fault.advice else f"{fault.text} ({fault.advice})"
        told.setdefault(text, []).append(address)
    return Fault(
        Reaction.END if len(final) == len(failed_with) else Reaction.WAIT,
        first.error,
        "; ".join(f"{', '.join(addresses)}: {text}" for text, addresses in told.items()),
        advice=first.advice if common else "",
        cause=first.cause,
    )


def asked_of(settings: Settings, ask: Query) -> Generator[Question, Any, Any]:
    """The answer, or a fault. A server that said nothing is probed the other way, with TLS or without."""
    answer = yield from answered(ask)
    if not isinstance(answer, Fault) or not answer.mute or ask.address.startswith("/"):
        return answer
    if settings.tls is None:
        first = yield Probe(ask.address, _client_hello())
        if first[:1] in (b"\x16", b"\x15"):  # a handshake, or an alert
            advice = f"write {settings.scheme.replace('redis', 'rediss')}:// for {settings.scheme}://"
            return Fault(Reaction.END, InvalidUrl, "its port is for TLS", advice=advice)
    else:
        first = yield Probe(ask.address, b"PING\r\n")
        if first[:1] in (b"+", b"-"):
            advice = f"write {settings.scheme.replace('rediss', 'redis')}:// for {settings.scheme}://"
            return Fault(Reaction.END, InvalidUrl, "its port is not for TLS", advice=advice)
    return answer


def answered(ask: Query) -> Generator[Question, Any, Any]:
    """The answer, or a fault."""
    answer = yield ask
    return of_reply(answer.text, asked=ask.address) if isinstance(answer, ErrorReply) else answer


def _client_hello() -> bytes:
    """The first bytes of TLS."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), out, server_hostname="redis").do_handshake()
    return out.read()


def knows_not(command: str, fault: Fault) -> bool:
    return "unknown command" in fault.text and command in fault.text
