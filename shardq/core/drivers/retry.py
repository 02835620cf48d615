"""The retries of one call: what to send next, where, when, and when to give up. No I/O.

Both drivers carry a ``RetryingCall``: they send what ``packed()`` returns, report each fault to ``failed_with()`` and
do what the ``RetryStep`` says. Retries are bounded by time, never by number. That time is the user's: of a command that
takes several calls, each gets what the ones before have left of it.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.drivers.faults import OVERDUE, ErrorReply, Fault, Reaction
from shardq.core.layout.keys import shard_named
from shardq.core.locks import raised_by_handler
from shardq.core.roles import roles_of
from shardq.errors import (
    AccessDenied,
    OutOfMemory,
    ReadOnly,
    ServerFault,
    ServerTooOld,
    ShardqError,
    Unanswered,
    Unavailable,
)

K = TypeVar("K")
T = TypeVar("T")

ASKING = b"*1\r\n$6\r\nASKING\r\n"
# The first backoff is about the time that a slot's handover or a reconnect takes on a local network ...
FIRST_PAUSE_S = 0.005
# ... and the longest keeps the delay after a failover small, and 64 pollers at some 1,000 tries a second.
LONGEST_PAUSE_S = 0.1
# A try after a fault of our own side begins with that much of its time left, or half of it: what it meets in less would
# be blamed on a node that was never asked before.
LAST_TRY_S = 1.0
# More redirections in a row mean that two nodes point at each other: from then on there is a backoff between them.
REDIRECTS_AT_ONCE = 5
# The most keys that an error names where it can't tell which of them is of another type.
MOST_KEYS = 12

_LINE = re.compile(r"user_script:(\d+)")
_KEY = re.compile(r"KEYS\[(\d+)\]")


Deadline = float | Callable[[K], float] | None
"""The end of the caller's time for all calls, or for the call of each key, asked for when it is pulled and when the
caller was away. None: the timeout begins now.
"""


class Spare(NamedTuple):
    """When calls are given up although they have time: what other nodes have answered is worth more than waiting."""

    until: float
    worth: Callable[[Any], bool] | None = None
    """True for an answer after which the rest is waited for until then only. None: so it is from the beginning."""

    def is_worth(self, answer: Any) -> bool:
        return not isinstance(answer, ShardqError) and (self.worth is None or self.worth(answer))


class RetryStep(NamedTuple):
    """The step before a call is sent again."""

    backoff_s: float = 0.0
    refresh: bool = False  # learn the slot map again
    moved: tuple[int, str] | None = None  # this slot is served by this node now
    doubted: str = ""  # the node where the fault was met: the last one to ask for the map


class Journal(Protocol):
    """Notes what servers have acknowledged."""

    def note(self, call: Command[Any], result: Any, *, packed: bytes, sent: float, node: str) -> None: ...


class RetryingCall(Generic[T]):
    """One call until its answer. Invariant: once the call is ``in_doubt``, only its ``after_loss()`` form is sent."""

    __slots__ = (
        "_again_until", "_began", "_in_full", "_last", "_retry_for_s", "_tries", "address", "answers", "call",
        "deadline", "key", "request", "sent", "sent_at",
    )  # fmt: skip

    def __init__(
        self,
        call: Command[T],
        *,
        timeout: float,
        deadline: float | None = None,
        key: Any = None,
    ) -> None:
        """``deadline``: the end of the caller's ``timeout``, which began before this call if others went before it.
        Without it, this call has all of the timeout.
        """
        # A look at the clock less for most calls.
        now = time.monotonic() if deadline is None or call.retry_for_s is not None else deadline - timeout
        self.call: Command[T] = call  # the call as the caller gave it
        self.key: Any = key  # the caller's key for it, where it is one of many
        self.request: Command[T] = call  # the call as it is sent now
        self.deadline: float = now + timeout if deadline is None else deadline
        if call.retry_for_s is not None and call.within_s is not None:
            self.deadline = min(self.deadline, now + call.within_s)
        self.address: str | None = None  # the node of the next try, if a node said ASK; else the slot map says
        self.answers: int = 1  # the number of answers of the next try; the last one counts
        self.sent: bytes = b""  # the bytes of the try in flight
        self.sent_at: float = now  # the time at which they were made
        self._in_full = False
        self._tries = 0
        self._last: Fault | None = None  # the fault of the last try
        self._retry_for_s = timeout if call.retry_for_s is None else min(call.retry_for_s, timeout)
        self._began = now
        self._again_until = min(self.deadline, now + self._retry_for_s)

    def bound(self, deadline: float) -> None:
        """Ends this call at another time."""
        self.deadline = deadline
        self._again_until = min(deadline, self._began + self._retry_for_s)

    def packed(self) -> bytes:
        """The bytes of the next try; with an ``address``, ASKING goes first and has an answer of its own."""
        data = self.request.packed_in_full() if self._in_full else self.request.packed()
        self.sent = data if self.address is None else ASKING + data
        self.sent_at = time.monotonic()
        return self.sent

    def result(self, answer: Any, address: str, journal: Journal | None) -> T:
        """Decodes the answer of a node to the last try, and tells the journal, if there is one."""
        try:
            result = self.request.decode(answer)
        except ShardqError:
            raise
        except Exception as exc:
            if raised_by_handler(exc):
                raise
            raise unreadable(self.request, exc, address) from exc
        if journal is not None:
            journal.note(self.request, result, packed=self.sent, sent=self.sent_at, node=address)
        return result

    def finished(self, answer: Any) -> None:
        """Decodes an answer that came for a caller that was interrupted meanwhile."""
        if not isinstance(answer, (Fault, ErrorReply)):
            try:
                self.request.decode(answer)
            except Exception as exc:
                if raised_by_handler(exc):
                    raise

    def failed_with(self, fault: Fault, *, now: float, node: str, chance: float) -> RetryStep:
        """Decides what follows a fault met at ``node``. Raises when the call is over.

        ``chance`` is a random number in [0, 1): it spreads the backoffs of many callers.
        """
        if fault is OVERDUE:
            fault = self._last or fault
        self._last = fault
        if fault.lost:
            self.call.in_doubt = True
            self.request = self.request.after_loss()
            self._in_full = False
        if fault.reaction is Reaction.IN_FULL and not self._in_full and now < self.deadline:
            self._in_full = True
            return RetryStep()
        self.address, self.answers = None, 1
        self._tries += 1
        waits = fault.reaction in (Reaction.WAIT, Reaction.PAUSE)
        backoffs = self._tries - (0 if waits else REDIRECTS_AT_ONCE)
        pause = backoff_s(backoffs, chance)
        # No try begins past the deadline: its answer would come too late.
        until = self._again_until
        if fault.reaction is Reaction.PAUSE:
            until -= min(LAST_TRY_S, self._retry_for_s / 2)
        if fault.reaction in (Reaction.END, Reaction.IN_FULL) or now + pause >= until:
            raise self._over(fault, now, node) from fault.cause
        if fault.reaction is Reaction.ASK:
            self.address, self.answers = fault.address, 2
            return RetryStep(pause)
        if fault.reaction is Reaction.PAUSE:
            return RetryStep(pause)
        moved = (fault.slot, fault.address) if fault.reaction is Reaction.MOVED else None
        return RetryStep(pause, refresh=True, moved=moved, doubted=node)

    def _over(self, fault: Fault, now: float, node: str) -> ShardqError:
        if fault.reaction is Reaction.IN_FULL and not self._in_full:  # its time is over before the script was sent
            fault = dataclasses.replace(fault, reaction=Reaction.WAIT, error=Unavailable)
        error = self._told(fault, node)
        for each in (error, error.last) if isinstance(error, Unanswered) else (error,):
            if isinstance(each, ServerFault):
                each.node = node
                each.tried_s = now - self._began
        return error

    def _told(self, fault: Fault, node: str) -> ShardqError:
        verb = _verb(self.call)
        if fault.text.startswith("WRONGTYPE"):
            fault = dataclasses.replace(fault, advice=_of_another_type(self.call, fault.text))
        if fault.error is AccessDenied and isinstance(self.call, Call) and (roles := roles_of(verb)):
            may = f"users of the role {' or '.join(roles)} may do this"
            fault = dataclasses.replace(fault, advice=f"{may}; {fault.advice}" if fault.advice else may)
        error = fault.error(explained(fault, node, f"{verb} was not done", self._retry_for_s))
        if self.call.in_doubt:
            unanswered = Unanswered(
                f"{verb} was sent to {node}, its answer was lost, and no later try within "
                f"{self._retry_for_s:.3g} s was answered either (last: {fault.text}); it may or may not have "
                "happened: look, or repeat it where that is safe"
            )
            unanswered.last = error
            return unanswered
        return error


def unreadable(request: Command[Any], exc: Exception, node: str) -> ServerFault:
    """The error of an answer that can't be decoded: it tells of what is stored, and anybody may have stored that."""
    error = ServerFault(
        f"{node}: the answer to {_verb(request)} can't be read: {type(exc).__name__}: {exc!s:.200}; another program, "
        "or another version of shardq, has written what it tells of: look at the keys of this engine"
    )
    error.node = node
    return error


def _verb(request: Command[Any]) -> str:
    return request.script.name if isinstance(request, Call) else _shown(request.words[0])


def _of_another_type(call: Command[Any], text: str) -> str:
    """Names the key that another program has written: the server tells the line of the script that met it."""
    if not isinstance(call, Call):
        return _look_at(_shown(call.words[1]) if len(call.words) > 1 else "a key of this engine")
    found = _LINE.search(text)
    lines = call.script.text.splitlines()
    line = lines[int(found[1]) - 1] if found and int(found[1]) <= len(lines) else ""
    named = [call.keys[int(number) - 1] for number in _KEY.findall(line) if int(number) <= len(call.keys)]
    keys = " or ".join(dict.fromkeys(named)) or f"one of {', '.join(call.keys[:MOST_KEYS])}"
    shard = shard_named(call.keys[0]) if call.keys else None
    return _look_at(keys if shard is None else f"{keys} of shard {shard}")


def _look_at(keys: str) -> str:
    return f"another program has written {keys}: look at it (TYPE, in redis-cli), then rename or delete it"


def backoff_s(tries: int, chance: float) -> float:
    """The backoff after so many tries: it doubles, and is between half and the whole of its length."""
    if tries <= 0:
        return 0.0
    whole: float = min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 10), LONGEST_PAUSE_S)
    return whole * (0.5 + chance / 2)


def explained(fault: Fault, node: str, what: str, timeout_s: float) -> str:
    """The message of the error that a fault ends in: what was wrong, and what to do."""
    error = fault.error
    if fault.reaction is not Reaction.END and issubclass(error, (Unavailable, ReadOnly)):
        what = f"{what} within {timeout_s:.3g} s"
    usual: dict[type[ShardqError], str] = {
        Unavailable: "check that the server runs and can be reached from here",
        ReadOnly: "check that the master can save to its disk, and that the address is not a replica's",
        OutOfMemory: "raise its maxmemory, or let consumers drain it",
        AccessDenied: "check the user, the password and the ACL",
        ServerTooOld: "shardq needs Redis 7.0 or newer, or Valkey",
    }
    advice = fault.advice or usual.get(error)
    if fault.is_loading:
        advice = "the server is loading its data: try again later, or with a longer timeout"
    return f"{node}: {what}: {fault.text}" + (f"; {advice}" if advice else "")


def _shown(word: str | bytes | int | float) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)
