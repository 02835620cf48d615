"""What went wrong with one try, and what it means: the one table of server errors and redis-py's exceptions.

Whatever stands between a call and its answer becomes a ``Fault`` here; ``patience`` decides what follows.
No I/O.
"""

from __future__ import annotations

import dataclasses
import enum
import ssl

import redis.exceptions as theirs

from shardq.drivers.slots import located
from shardq.errors import (
    AccessDenied,
    OutOfMemory,
    ReadOnly,
    ServerFault,
    ServerTooOld,
    Unavailable,
)


class ErrorReply:
    """An error that the server answered, as a value: what our reader makes of it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"ErrorReply({self.text!r})"


class Reaction(enum.Enum):
    """What a fault asks for."""

    IN_FULL = "send the same again at once, with the text of the script"
    MOVED = "note who serves the slot now, and send there at once"
    ASK = "send this once to the node named, after ASKING"
    WAIT = "pause, learn the slot map again, and send again until the deadline"
    END = "tell the caller now"


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One try that got no answer to use."""

    reaction: Reaction
    error: type[ServerFault]
    """Raised when nothing better follows."""
    text: str
    lost: bool = False
    """It was sent and may have been executed."""
    slot: int = -1
    address: str = ""
    """Of MOVED and ASK: the slot and who serves it."""
    cause: BaseException | None = None

    def before_sending(self) -> Fault:
        """The same, of a call that certainly was not executed."""
        return dataclasses.replace(self, lost=False)

    @property
    def is_final(self) -> bool:
        """Trying again can't help."""
        return self.reaction is Reaction.END


_WAIT_UNAVAILABLE = (Reaction.WAIT, Unavailable)
_END_DENIED = (Reaction.END, AccessDenied)

# By the first word of the answer. Those that ask to wait were refused before anything was executed.
# When you add a word here: the table in tests/drivers/test_faults.py, and the tree in errors.py.
_BY_WORD: dict[str, tuple[Reaction, type[ServerFault]]] = {
    "NOSCRIPT": (Reaction.IN_FULL, ServerFault),
    "MOVED": (Reaction.MOVED, Unavailable),
    "ASK": (Reaction.ASK, Unavailable),
    "TRYAGAIN": _WAIT_UNAVAILABLE,  # the slot is being moved
    "CLUSTERDOWN": _WAIT_UNAVAILABLE,
    "MASTERDOWN": _WAIT_UNAVAILABLE,
    "LOADING": _WAIT_UNAVAILABLE,
    "BUSY": _WAIT_UNAVAILABLE,  # a script of somebody runs for too long
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

# What a script may not do is answered with a plain ERR, in the words of Redis 7.0 and of those after it.
_DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")


def of_reply(text: str, *, asked: str) -> Fault:
    """The fault that an error answered by ``asked`` is."""
    word, _, rest = text.partition(" ")
    reaction, error = _BY_WORD.get(word, (Reaction.END, ServerFault))
    if reaction in (Reaction.MOVED, Reaction.ASK):
        slot, _, where = rest.partition(" ")
        host, _, port = where.partition(" ")[0].rpartition(":")
        return Fault(reaction, error, text, slot=int(slot), address=located(host, int(port), asked=asked))
    if any(sign in text for sign in _DENIED_IN_SCRIPT):
        return Fault(Reaction.END, AccessDenied, text)
    return Fault(reaction, error, text)


def of_exception(exc: Exception, *, sent: bool, secrets: tuple[str | None, ...] = ()) -> Fault:
    """The fault behind an exception of redis-py, of the reader or a socket; ``sent``: the call had gone out.

    An old server quotes what it does not understand, the password in it: ``secrets`` never reach the text.
    """
    text = " ".join(str(exc).split()) or type(exc).__name__
    cause: BaseException | None = exc
    for secret in filter(None, secrets):
        if secret in text and isinstance(exc, theirs.ResponseError):
            text, cause = text.replace(secret, "***"), None
    if _untrusted(exc):
        return Fault(Reaction.END, Unavailable, f"its certificate is not trusted: {text}", cause=cause)
    match exc:
        case theirs.BusyLoadingError():
            return Fault(Reaction.WAIT, Unavailable, f"LOADING {text}", cause=cause)
        case theirs.AuthenticationError() | theirs.NoPermissionError():
            return Fault(Reaction.END, AccessDenied, text, cause=cause)
        case theirs.ConnectionError() | theirs.TimeoutError() | OSError():
            return Fault(Reaction.WAIT, Unavailable, text, lost=sent, cause=cause)
        case theirs.ResponseError() if text.lower().startswith("unknown command") and "HELLO" in text:
            return Fault(Reaction.END, ServerTooOld, f"it does not know HELLO ({text})", cause=cause)
        case theirs.RedisError():
            known = of_reply(text, asked="")
            return Fault(known.reaction, known.error, text, cause=cause)
        case _:  # the bytes that came were no Redis protocol
            text = f"not a Redis server's answer: {text}"
            return Fault(Reaction.WAIT, Unavailable, text, lost=sent, cause=cause)


def timed_out(seconds: float) -> Fault:
    """No answer came for so long."""
    return Fault(Reaction.WAIT, Unavailable, f"no answer for {seconds:.3g} s", lost=True)


def unserved(slot: int) -> Fault:
    """The slot map names nobody for a slot."""
    return Fault(Reaction.WAIT, Unavailable, f"no node of the cluster serves slot {slot}")


def exhausted(address: str, bound: int) -> Fault:
    """Every pooled connection is in use by other threads."""
    return Fault(Reaction.WAIT, Unavailable, f"all {bound} connections to {address} are in use")


def unconnected(seconds: float) -> Fault:
    """Somebody dials the node, and nothing has come of it for so long."""
    return Fault(Reaction.WAIT, Unavailable, f"not connected after {seconds:.3g} s")


def dropped(address: str) -> Fault:
    """The slot map names this node no more: whoever wants a connection to it asks the map again."""
    return Fault(Reaction.WAIT, Unavailable, f"{address} serves no slots any more")


def _untrusted(exc: BaseException | None) -> bool:
    while exc is not None:
        if isinstance(exc, ssl.SSLCertVerificationError):
            return True
        exc = exc.__cause__ or exc.__context__
    return False
