"""The handshake of a new connection: HELLO or AUTH, then CLIENT SETNAME and SELECT, and what the answers mean. No I/O.

A conversation, held by ``connection`` and ``aioconnection``. Every refusal says what is wrong with the URL, and none
quotes a password, though a server may.
"""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Generator
from typing import Any, NamedTuple

from hiredis import ProtocolError

from shardq.core.calls.request import pack
from shardq.core.drivers.faults import ErrorReply, Fault, Reaction, of_reply
from shardq.core.drivers.settings import Credentials, Settings, bracketed
from shardq.errors import AccessDenied, ServerFault, ServerTooOld, Unavailable

# So that CLIENT LIST shows whose a connection is. A user that may not say it is no error.
NAME = "shardq"
# The parser's words about the first byte of HTTP, and of HTML.
_WEB = ('got "H"', 'got "<"')
_QUOTE = ", with args beginning with"


class Exchange(NamedTuple):
    """Commands that leave together, and the number of their answers. The last answer is handed back."""

    data: bytes
    answers: int


def handshake(settings: Settings, *, protocol: int, sentinel: bool) -> Generator[Exchange, Any, Fault | None]:
    """Yields exchanges, and is resumed with the last answer of each, or a ``Fault``. Returns why it failed, if it did.

    RESP2 is what a server speaks unasked: HELLO is not sent for it, so that proxies without HELLO can be used.
    """
    login = settings.sentinel_login if sentinel else settings.login
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
    answer = yield Exchange(name + pack("SELECT", str(db)), 2) if db else Exchange(name, 1)
    if answer == b"OK" or (not db and isinstance(answer, ErrorReply) and not answer.text.startswith("NOAUTH")):
        return None
    return _refused(answer, settings, login, sentinel=sentinel)


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
