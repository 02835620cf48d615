"""The table of translations: every error code of a server and every kind of exception."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import pytest
from hiredis import ProtocolError

from shardq.core.drivers.conversations import handshake
from shardq.core.drivers.faults import (
    ErrorReply,
    Fault,
    Reaction,
    of_connecting,
    of_exception,
    of_reply,
    of_resolving,
    of_tls,
)
from shardq.core.drivers.settings import Settings
from shardq.errors import (
    AccessDenied,
    OutOfMemory,
    ReadOnly,
    ServerFault,
    ServerTooOld,
    TooManyOpenFiles,
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


@pytest.mark.parametrize("exc", [ConnectionResetError("reset"), TimeoutError(), ProtocolError("not RESP")])
@pytest.mark.parametrize("sent", [False, True])
def test_exceptions(exc: Exception, sent: bool) -> None:
    fault = of_exception(exc, sent=sent)
    assert (fault.reaction, fault.error, fault.cause) == (Reaction.WAIT, Unavailable, exc)
    assert fault.text
    assert fault.lost is sent


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (TimeoutError(), "nobody took the connection in time"),
        (TimeoutError("timed out"), "nobody took the connection in time"),
        (FileNotFoundError(errno.ENOENT, "x"), "No such file or directory"),
        (OSError("the name has no address"), "the name has no address"),
    ],
)
def test_nobody_listens(exc: OSError, text: str) -> None:
    fault = of_connecting(exc)
    assert (fault.reaction, fault.error, fault.text, fault.lost) == (Reaction.WAIT, Unavailable, text, False)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EMFILE, "this process has no file descriptor left for a connection: it may have "),
        (errno.ENFILE, "this system has no file descriptor left for a connection"),
    ],
)
def test_no_descriptor_is_left(number: int, text: str) -> None:
    """Which is no fault of the server's, nor of the name servers'."""
    exc = OSError(number, os.strerror(number))
    for fault in (of_connecting(exc), of_resolving(exc, "redis.example:1")):
        assert (fault.reaction, fault.error, fault.lost) == (Reaction.PAUSE, TooManyOpenFiles, False)
        assert fault.text.startswith(text)
        assert fault.advice.startswith("raise ")


@pytest.mark.parametrize(
    ("exc", "told"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "the name servers did not answer in time"),
    ],
)
def test_a_name_that_is_not_found(exc: OSError, told: str) -> None:
    fault = of_resolving(exc, "redis.example:1")
    assert (fault.reaction, fault.text) == (Reaction.WAIT, f"the host redis.example was not found: {told}")


@pytest.mark.parametrize(
    ("exc", "final"),
    [
        (ssl.SSLCertVerificationError("self-signed"), True),
        (ConnectionResetError("reset"), False),
        (TimeoutError("timed out"), False),
    ],
)
def test_tls(exc: OSError, final: bool) -> None:
    if isinstance(exc, ssl.SSLCertVerificationError):
        exc.verify_code, exc.verify_message = 18, "self-signed"
    fault = of_tls(exc)
    assert (fault.is_final, fault.mute, fault.lost) == (final, not final, False)


@pytest.mark.parametrize(
    ("text", "told", "advice"),
    [
        ("ERR unknown command 'INFO', with args beginning with: 'x'", "unknown command 'INFO'", "rename-command"),
        ("ERR unknown command `INFO`, with args beginning with: `x`", "unknown command `INFO`", "rename-command"),
        ("ERR Unknown command called from script f", "Unknown command called from script", "rename-command"),
        ("NOPERM User me has no permissions to run the 'client|setname' command", "", "its user +client|setname; "),
        ("NOPERM No permissions to access a channel", "", "its user the channels &shardq:"),
        ("NOPERM No permissions to access a key", "", "its user the keys ~shardq:"),
        ("ERR ACL failure in script: User me has no permissions to run the 'set' command", "", "its user +set; "),
        ("ERR The user executing the script can't run this command or subcommand", "", "every command that the script"),
    ],
)
def test_what_an_acl_or_a_server_lacks_is_named_and_no_argument_is_quoted(text: str, told: str, advice: str) -> None:
    fault = of_reply(text, asked="h:1")
    assert (fault.error, fault.text) == (AccessDenied, told or text)
    assert advice in fault.advice


# ---- on a new connection


def answered(url: str, *answers: object) -> Fault | None:
    """What a hand-shake comes to, when it is answered like this."""
    settings = Settings.from_url(url)
    steps = handshake(settings, settings.login, protocol=settings.protocol, sentinel=False)
    next(steps)
    try:
        for answer in answers:
            steps.send(answer)
    except StopIteration as end:
        fault: Fault | None = end.value
        return fault
    raise AssertionError("the hand-shake goes on")


def test_a_handshake_that_succeeds() -> None:
    assert answered("redis://h", {b"proto": 3}, b"OK") is None
    assert answered("redis://h", {b"proto": 3}, ErrorReply("NOPERM no CLIENT for you")) is None
    assert answered("redis://h/1", {b"proto": 3}, b"OK") is None


@pytest.mark.parametrize(
    ("text", "reaction", "error"),
    [
        ("LOADING Redis is loading the dataset in memory", Reaction.WAIT, Unavailable),
        ("ERR max number of clients reached", Reaction.WAIT, Unavailable),
        ("NOPERM no permissions to run the 'hello' command", Reaction.END, AccessDenied),
        ("WRONGPASS invalid username-password pair or user is disabled.", Reaction.END, AccessDenied),
        ("NOAUTH HELLO must be called with the client already authenticated", Reaction.END, AccessDenied),
        ("DENIED Redis is running in protected mode", Reaction.END, AccessDenied),
        ("NOPROTO unsupported protocol version", Reaction.END, ServerTooOld),
        ("ERR unknown command 'HELLO'", Reaction.END, ServerTooOld),
    ],
)
def test_a_handshake_that_is_refused(text: str, reaction: Reaction, error: type[ServerFault]) -> None:
    fault = answered("redis://h", ErrorReply(text))
    assert fault is not None
    assert (fault.reaction, fault.error, fault.lost) == (reaction, error, False)


def test_a_password_that_a_server_quotes_is_hidden() -> None:
    text = "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `me`, `pw9-and-th"
    fault = answered("redis://me:pw9-and-the-rest@h", ErrorReply(text))
    assert fault is not None
    assert fault.error is ServerTooOld
    assert "pw9" not in repr(fault)
    fault = answered("redis://me:pw9@h", ErrorReply("ERR what is pw9"))
    assert fault is not None
    assert "pw9" not in repr(fault)


def test_only_a_connection_that_said_nothing_is_mute() -> None:
    lost = of_exception(ConnectionResetError("reset"), sent=True)
    fault = answered("redis://h", lost)
    assert fault is not None
    assert (fault.mute, fault.lost) == (True, False)
    fault = answered("rediss://h", lost)  # TLS came about
    assert fault is not None
    assert (fault.mute, fault.lost) == (False, False)
