"""The translation table: every word of a server, every kind of exception."""

from __future__ import annotations

import ssl

import pytest
import redis.exceptions as theirs
from hiredis import ProtocolError

from shardq.drivers.faults import Reaction, of_exception, of_reply
from shardq.errors import (
    AccessDenied,
    OutOfMemory,
    ReadOnly,
    ServerFault,
    ServerTooOld,
    Unavailable,
)


@pytest.mark.parametrize(
    ("text", "reaction", "error"),
    [
        ("NOSCRIPT No matching script.", Reaction.IN_FULL, ServerFault),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Reaction.WAIT, Unavailable),
        ("CLUSTERDOWN The cluster is down", Reaction.WAIT, Unavailable),
        ("MASTERDOWN Link with MASTER is down", Reaction.WAIT, Unavailable),
        ("LOADING Redis is loading the dataset in memory", Reaction.WAIT, Unavailable),
        ("BUSY Redis is busy running a script.", Reaction.WAIT, Unavailable),
        ("UNKILLABLE Sorry the script already executed write commands", Reaction.WAIT, Unavailable),
        ("NOREPLICAS Not enough good replicas to write.", Reaction.WAIT, Unavailable),
        ("UNBLOCKED force unblock from blocking operation", Reaction.WAIT, Unavailable),
        ("READONLY You can't write against a read only replica.", Reaction.WAIT, ReadOnly),
        ("MISCONF Errors writing to the AOF file", Reaction.WAIT, ReadOnly),
        ("OOM command not allowed when used memory > 'maxmemory'.", Reaction.END, OutOfMemory),
        ("NOPERM this user has no permissions", Reaction.END, AccessDenied),
        ("ERR ACL failure in script: no permissions", Reaction.END, AccessDenied),
        ("ERR The user executing the script can't run this command", Reaction.END, AccessDenied),
        ("NOAUTH Authentication required.", Reaction.END, AccessDenied),
        ("WRONGPASS invalid username-password pair", Reaction.END, AccessDenied),
        ("DENIED Redis is running in protected mode", Reaction.END, AccessDenied),
        ("WRONGTYPE Operation against a key", Reaction.END, ServerFault),
        ("ERR anything", Reaction.END, ServerFault),
        ("", Reaction.END, ServerFault),
    ],
)
def test_answers(text: str, reaction: Reaction, error: type[ServerFault]) -> None:
    fault = of_reply(text, asked="h:1")
    assert (fault.reaction, fault.error, fault.text, fault.lost) == (reaction, error, text, False)


@pytest.mark.parametrize(
    ("text", "slot", "address"),
    [
        ("MOVED 3999 10.0.0.2:6381", 3999, "10.0.0.2:6381"),
        ("MOVED 0 :6381", 0, "asked:6381"),
        ("MOVED 1 ?:6381", 1, "asked:6381"),
        ("MOVED 5 fe80::1:6381", 5, "fe80::1:6381"),
        ("ASK 16383 node-2.example:7000", 16383, "node-2.example:7000"),
    ],
)
def test_redirections(text: str, slot: int, address: str) -> None:
    fault = of_reply(text, asked="asked:7")
    assert fault.reaction is (Reaction.ASK if text.startswith("ASK") else Reaction.MOVED)
    assert (fault.slot, fault.address) == (slot, address)


@pytest.mark.parametrize(
    ("exc", "reaction", "error"),
    [
        (theirs.ConnectionError("Error 111 connecting"), Reaction.WAIT, Unavailable),
        (theirs.TimeoutError("Timeout connecting"), Reaction.WAIT, Unavailable),
        (theirs.MaxConnectionsError("max number of clients"), Reaction.WAIT, Unavailable),
        (theirs.BusyLoadingError("loading the dataset"), Reaction.WAIT, Unavailable),
        (theirs.AuthenticationError("invalid username-password pair"), Reaction.END, AccessDenied),
        (theirs.NoPermissionError("no permissions"), Reaction.END, AccessDenied),
        (theirs.ResponseError("DB index is out of range"), Reaction.END, ServerFault),
        (theirs.ResponseError("unknown command 'HELLO'"), Reaction.END, ServerTooOld),
        (ConnectionResetError("reset"), Reaction.WAIT, Unavailable),
        (TimeoutError(), Reaction.WAIT, Unavailable),
        (ProtocolError("not RESP"), Reaction.WAIT, Unavailable),
    ],
)
@pytest.mark.parametrize("sent", [False, True])
def test_exceptions(exc: Exception, reaction: Reaction, error: type[ServerFault], sent: bool) -> None:
    fault = of_exception(exc, sent=sent)
    assert (fault.reaction, fault.error, fault.cause) == (reaction, error, exc)
    assert fault.text
    broken = isinstance(exc, theirs.ConnectionError | theirs.TimeoutError | OSError | ProtocolError)
    denied = isinstance(exc, theirs.AuthenticationError | theirs.BusyLoadingError)
    assert fault.lost is (sent and broken and not denied)


def test_a_bad_certificate_is_final() -> None:
    exc = theirs.ConnectionError("Error 1 connecting")
    exc.__context__ = ssl.SSLCertVerificationError("self-signed")
    assert of_exception(exc, sent=False).is_final


def test_a_password_that_a_server_quotes_is_hidden() -> None:
    exc = theirs.ResponseError("unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `me`, `pw9`")
    fault = of_exception(exc, sent=False, secrets=("pw9", None))
    assert fault.error is ServerTooOld
    assert "pw9" not in fault.text
    assert fault.cause is None
