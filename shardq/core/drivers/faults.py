"""The one table of faults: errors of servers, sockets and TLS, and what each means for a call. No I/O.

Whatever stands between a call and its answer becomes a ``Fault`` here; ``retry`` decides what follows.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import os
import re
import ssl

from hiredis import ProtocolError

from shardq.core.drivers import descriptors
from shardq.core.drivers.settings import host_of, located
from shardq.errors import AccessDenied, OutOfMemory, ReadOnly, ServerFault, ShardqError, TooManyOpenFiles, Unavailable


class ErrorReply:
    """An error that the server answered, as a value. Our reader makes it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text: str = text

    def __repr__(self) -> str:
        return f"ErrorReply({self.text!r})"


class Reaction(enum.Enum):
    """The reaction that a fault asks for."""

    IN_FULL = "send the same again at once, with the text of the script"
    MOVED = "note who serves the slot now, and send there at once"
    ASK = "send this once to the node named, after ASKING"
    WAIT = "pause, learn the slot map again, and send again until the deadline"
    PAUSE = "pause, and send again until the deadline: the servers are well"
    END = "tell the caller now"


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """The reason why one try got no usable answer."""

    reaction: Reaction
    error: type[ShardqError]  # raised when nothing better follows
    text: str
    advice: str = dataclasses.field(default="", kw_only=True)
    """Advice to the user, where the kind of error does not say it."""
    lost: bool = False  # true if the call was sent and may have been executed
    slot: int = -1
    address: str = ""  # the slot and the node named by MOVED or ASK
    cause: BaseException | None = None
    mute: bool = dataclasses.field(default=False, kw_only=True)
    """True if the server took the connection and said nothing: it may expect TLS, or may not."""
    is_other_node: bool = dataclasses.field(default=False, kw_only=True)
    """True if the server is not the node of the cluster that was at its address before."""

    def before_sending(self) -> Fault:
        """The same fault, of a call that certainly was not executed."""
        return dataclasses.replace(self, lost=False)

    @property
    def is_final(self) -> bool:
        """True if trying again can't help."""
        return self.reaction is Reaction.END

    @property
    def is_loading(self) -> bool:
        """True if the server runs, and is still reading its data."""
        return self.text.startswith("LOADING")


_WAIT_UNAVAILABLE = (Reaction.WAIT, Unavailable)
_END_DENIED = (Reaction.END, AccessDenied)

# By the first word of the answer. Those that ask to wait were refused before anything was executed.
# When you add a word here: the table in tests/drivers/test_error_translation.py, and the tree in errors.py.
_BY_WORD: dict[str, tuple[Reaction, type[ServerFault]]] = {
    "NOSCRIPT": (Reaction.IN_FULL, ServerFault),
    "MOVED": (Reaction.MOVED, Unavailable),
    "ASK": (Reaction.ASK, Unavailable),
    "TRYAGAIN": _WAIT_UNAVAILABLE,  # the slot is being moved
    "CLUSTERDOWN": _WAIT_UNAVAILABLE,
    "MASTERDOWN": _WAIT_UNAVAILABLE,
    "LOADING": _WAIT_UNAVAILABLE,
    "BUSY": _WAIT_UNAVAILABLE,  # a script, ours or not, runs for too long
    "UNKILLABLE": _WAIT_UNAVAILABLE,
    "NOREPLICAS": _WAIT_UNAVAILABLE,  # fewer than min-replicas-to-write
    "UNBLOCKED": _WAIT_UNAVAILABLE,  # became a replica
    "READONLY": (Reaction.WAIT, ReadOnly),
    "MISCONF": (Reaction.WAIT, ReadOnly),  # can't save to its disk
    "OOM": (Reaction.END, OutOfMemory),
    "NOPERM": _END_DENIED,
    "NOAUTH": _END_DENIED,
    "WRONGPASS": _END_DENIED,
    "DENIED": _END_DENIED,  # protected mode
}

# A command that a script may not use is answered with a plain ERR, in the words of Redis 7.0 and of later ones.
_DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")
# A server that has a command renamed or switched off, or is a proxy without it, answers a plain ERR, too, and quotes
# what was sent: of EVAL that is a whole script.
_UNKNOWN = re.compile(r"ERR (unknown command ['`][^'`]*['`]|Unknown (?:Redis )?command called from script)")
_UNPERMITTED = re.compile(r"to run the '([^']+)' command")
_LINE = "`shardq acl` prints the line with all that it needs"

# OpenSSL's words when the first bytes of the peer are those of another protocol.
_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
# The server's words when it wants a client's certificate, or another one.
_ALERTS = (
    "HANDSHAKE_FAILURE",
    "NO_CERTIFICATE",
    "BAD_CERTIFICATE",
    "UNSUPPORTED_CERTIFICATE",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_REQUIRED",
    "UNKNOWN_CA",
)
_OTHER_NAME = "write a host that it names, or check_hostname=no"
# By OpenSSL's code: X509_V_ERR_HOSTNAME_MISMATCH, ..._IP_ADDRESS_MISMATCH, and ..._CERT_HAS_EXPIRED.
_BY_VERIFY_CODE = {62: _OTHER_NAME, 64: _OTHER_NAME, 10: "renew it, or set this machine's clock"}

_FULL = (
    "raise its maxclients (CONFIG SET maxclients): each process has a connection for every shard that it polls, one to "
    "listen, and up to 64 more"
)


def of_reply(text: str, *, asked: str) -> Fault:
    """The fault behind an error that the node ``asked`` answered."""
    word, _, rest = text.partition(" ")
    reaction, error = _BY_WORD.get(word, (Reaction.END, ServerFault))
    if reaction in (Reaction.MOVED, Reaction.ASK):
        slot, _, where = rest.partition(" ")
        host, _, port = where.partition(" ")[0].rpartition(":")
        return Fault(reaction, error, text, slot=int(slot), address=located(host, int(port), asked=asked))
    if "max number of clients" in text:
        return Fault(Reaction.WAIT, Unavailable, text, advice=_FULL)
    if any(sign in text for sign in (*_DENIED_IN_SCRIPT, "NOPERM")):
        return Fault(Reaction.END, AccessDenied, text, advice=f"allow its user {_missing(text)}; {_LINE}")
    if unknown := _UNKNOWN.match(text):
        advice = (
            "a proxy in between may not pass it on, or one of the server's rename-command lines took it away: shardq "
            "needs it there, under its own name"
        )
        return Fault(Reaction.END, AccessDenied, unknown[1], advice=advice)
    return Fault(reaction, error, text)


def _missing(text: str) -> str:
    """The rule that a user's ACL lacks, as an ACL writes it."""
    if found := _UNPERMITTED.search(text):
        return f"+{found[1].lower()}"
    if "channel" in text:
        return "the channels &shardq:{NAME:* and &shardq:{NAME}:*"
    if "key" in text:
        return "the keys ~shardq:{NAME:* and ~shardq:{NAME}:*, and the lists that are forwarded to"
    return "every command that the script runs"


def of_exception(exc: Exception, *, sent: bool) -> Fault:
    """The fault behind an exception of a socket or of the reader; ``sent``: the call had gone out."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    if isinstance(exc, ssl.SSLError):
        alert = _of_alert(exc, sent=sent)
        if alert is not None:
            return alert
    if not isinstance(exc, OSError):  # the bytes that came were no Redis protocol
        text = f"not a Redis server's answer: {text}"
    return Fault(Reaction.WAIT, Unavailable, text, lost=sent, cause=exc)


def unasked(answer: object, address: str) -> Fault:
    """The fault of an answer to no call: servers that are full, or protected, say so and close."""
    if isinstance(answer, ErrorReply):
        return of_reply(answer.text, asked=address)
    return of_exception(ProtocolError("an answer came that nobody asked for"), sent=True)


def of_resolving(exc: OSError, address: str) -> Fault:
    """The fault of a host whose name was not resolved."""
    # getaddrinfo gives other reasons then
    shortage = exc if descriptors.scarce(exc) else descriptors.shortage()
    if shortage is not None:
        return of_shortage(shortage)
    told = "the name servers did not answer in time" if isinstance(exc, TimeoutError) else exc.strerror or str(exc)
    return Fault(Reaction.WAIT, Unavailable, f"the host {host_of(address)} was not found: {told}", cause=exc)


def of_connecting(exc: OSError) -> Fault:
    """The fault of a connection that was not made."""
    if descriptors.scarce(exc):
        return of_shortage(exc)
    if isinstance(exc, TimeoutError):
        text = "nobody took the connection in time"
    else:
        text = os.strerror(exc.errno) if exc.errno else str(exc)
    return Fault(Reaction.WAIT, Unavailable, text, cause=exc)


def of_provider(exc: Exception) -> Fault:
    """The fault of a provider that gave no credentials."""
    told = "no answer in time" if isinstance(exc, TimeoutError) else f"{type(exc).__name__}: {exc}"
    return Fault(Reaction.WAIT, AccessDenied, f"the provider of credentials fails: {told}", cause=exc)


def of_shortage(exc: OSError) -> Fault:
    """The fault of a process, or a system, that has no file descriptor left for a connection."""
    if exc.errno == errno.ENFILE:
        text, advice = "this system has no file descriptor left for a connection", "raise its limit (fs.file-max)"
    else:
        text = (
            "this process has no file descriptor left for a connection: "
            f"it may have {descriptors.allowed():,} files open"
        )
        advice = descriptors.REMEDY
    return Fault(Reaction.PAUSE, TooManyOpenFiles, text, advice=advice, cause=exc)


def of_tls(exc: Exception) -> Fault:
    """The fault of a TLS handshake that failed."""
    reason: str = getattr(exc, "reason", None) or ""
    if isinstance(exc, ssl.SSLCertVerificationError):
        advice = _BY_VERIFY_CODE.get(exc.verify_code, "name the file of the authority that signed it with ca=")
        text = f"its certificate is not trusted: {exc.verify_message or exc}"
        return Fault(Reaction.END, Unavailable, text, advice=advice, cause=exc)
    if reason in _NO_TLS:
        text = f"it does not speak TLS ({reason.replace('_', ' ').lower()})"
        advice = "check the host and the port in the URL, or use the scheme without TLS"
        return Fault(Reaction.END, Unavailable, text, advice=advice, cause=exc)
    if isinstance(exc, TimeoutError):
        return Fault(Reaction.WAIT, Unavailable, "no answer to the TLS handshake in time", cause=exc, mute=True)
    fault = of_exception(exc, sent=False)
    if isinstance(exc, ConnectionError | ssl.SSLEOFError):
        text = f"the server closed the connection in the TLS handshake ({fault.text})"
        return dataclasses.replace(fault, text=text, mute=True)
    return fault


def _of_alert(exc: ssl.SSLError, *, sent: bool) -> Fault | None:
    """The fault of a certificate that the server refused by a TLS alert, or misses."""
    alert = (exc.reason or "").partition("ALERT_")[2]
    if alert not in _ALERTS:
        return None
    text = f"it does not accept our certificate, or misses one ({alert.replace('_', ' ').lower()})"
    advice = "name a certificate that its authority signed, with cert= and key= in the URL"
    return Fault(Reaction.END, Unavailable, text, lost=sent, advice=advice, cause=exc)


def timed_out(seconds: float) -> Fault:
    """The fault of a server that gave no answer for so long."""
    return Fault(Reaction.WAIT, Unavailable, f"no answer for {seconds:.3g} s", lost=True)


OVERDUE = Fault(
    Reaction.WAIT,
    Unavailable,
    "its time was over before it could be sent",
    advice="what came before it took all of the time: look at `shardq health`, or set a longer timeout",
)
"""The fault of a try that was not made: the caller's time is over. What was met before is told instead, if there is
anything.
"""


TELLING_S = 0.05
"""The shortest wait for a connection that tells anything: what an attempt takes in a network that is well."""


def unserved(slot: int) -> Fault:
    """The fault of a slot for which the slot map names no node."""
    return Fault(Reaction.WAIT, Unavailable, f"no node of the cluster serves slot {slot}")


def exhausted(address: str, bound: int) -> Fault:
    """The fault of a pool whose connections are all in use by other threads."""
    return Fault(Reaction.WAIT, Unavailable, f"all {bound} connections to {address} are in use")


def unconnected(seconds: float) -> Fault:
    """The fault of a wait for another caller's attempt to connect, which took so long. A few ms, the last of the
    caller's time, say nothing of the server.
    """
    if seconds < TELLING_S:
        return OVERDUE
    return Fault(Reaction.WAIT, Unavailable, f"not connected after {seconds:.3g} s")


def dropped(address: str) -> Fault:
    """The fault of a pool that was closed because the slot map names its node no more: the map is asked again."""
    return Fault(Reaction.WAIT, Unavailable, f"{address} serves no slots any more")
