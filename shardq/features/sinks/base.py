"""What a sink is: opened, given messages, and closed, by threads (``Sink``) or in an event loop (``AsyncSink``); what
it answers; and its circuit.

A sink of your own is a class in a file of its own, named by the scheme of its URLs in the entry points of your package:

    [project.entry-points."shardq.sinks"]
    kafka = "shop.kafka:KafkaSink"

``KafkaSink(url)`` checks the URL, and raises ``shardq.errors.InvalidUrl`` with what is allowed; it connects in
``open``.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Sized
from typing import Any
from urllib.parse import quote

import msgspec

from shardq.core.consumer.policy import DEFAULT, Backoff
from shardq.core.drivers.settings import host_of
from shardq.core.drivers.sockets import resolve
from shardq.core.fleet.report import CircuitState
from shardq.core.layout.lanes import key_of
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.egress import Egress, is_of_link

BATCH = 256
SEND_S = 10.0
"""How long a sink may be silent before it counts as down."""

FIRST_S = 0.25
LONGEST_S = 10.0
"""The longest pause of a sink that is down: the most that tasks wait after it has come back."""

ASKED_S = 3600.0
"""The longest pause that a sink may ask for."""

_VISIBLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")

NO_MAXLEN = "maxlen= is for streams of Redis; leave it out"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One task, as sinks get it: what a list here would get, and what goes with it where there is room."""

    id: str
    """The task's id, TOPIC/UNIQUE: the key by which the other side knows a task that is sent again."""
    topic: str
    payload: Any
    """The bytes as the codec made them."""
    codec: str
    """``json``, ``msgpack``, ``raw``, or ``own``."""
    headers: Mapping[str, str]
    attempt: int
    """1, and one more after each try that counted."""
    failures: int = 0
    """The attempts that have failed: those that ended with a process are not among them."""
    url: str | None = None
    """The URL that the task was pushed with: for webhooks."""

    @property
    def key(self) -> str | None:
        """The key that the task was pushed with; None without one."""
        return key_of(self.id)

    @property
    def ascii_id(self) -> str:
        """The id for a header: each blank, %, and character beyond ASCII is percent-encoded."""
        return quote(self.id, safe=_VISIBLE)

    @property
    def content_type(self) -> str:
        return f"application/{self.codec if self.codec in ('json', 'msgpack') else 'octet-stream'}"


class Sent(msgspec.Struct, frozen=True):
    """The sink has the task, and keeps it."""


class Refused(msgspec.Struct, frozen=True):
    """The sink will never take this task: it is buried, with the reason."""

    reason: str


class Failed(msgspec.Struct, frozen=True):
    """The sink has not taken this task now. If it took others meanwhile, or this task has failed beside others before,
    that is the task's own failure: an attempt, retried with backoff. Otherwise the sink is down.
    """

    reason: str
    again_s: float = 0.0
    """The least time before the next attempt, up to an hour."""


class Unsent(msgspec.Struct, frozen=True):
    """The sink could not be asked, or asks to wait: no fault of the task, and no attempt. It is down for a moment."""

    reason: str
    again_s: float = 0.0
    """The least time before it wants to be asked again."""


Result = Sent | Refused | Failed | Unsent

SENT = Sent()


class SinkBase(ABC):  # noqa: B024  its two kinds have other methods each
    """The receiver of the messages of one topic: what all have in common."""

    batch: int = BATCH
    """Messages on their way at a time, at most."""
    max_attempts: int | None = None
    """The attempts of a task that brings no limit of its own; None: the engine's."""
    counts_outages: bool = False
    """True if each failure counts as an attempt, also while the sink is down."""
    backoff: Backoff = DEFAULT
    """The pauses between the attempts of a task."""
    addresses: Sequence[str] = ()
    """HOST:PORT (without brackets), or the path of a socket, of each server in the URL. Where ``__init__`` sets none,
    they are read from the part before the path.
    """
    made_of: str = ""
    """The URL with its secrets."""
    is_named: bool = False
    """True if the process was told where it may send, and that this is there."""
    egress: Egress = Egress()
    """Where this process may send."""
    advice: str = ""
    """Said when a topic is forwarded to it."""

    def put_left(self) -> None:
        """Asks for the left end of a list. Raises InvalidOption where there is none."""
        raise InvalidOption("side='left' is for lists; leave it out")

    def trim(self, maxlen: int) -> None:
        """Asks for a stream of about so many entries. Raises InvalidOption where there is none."""
        raise InvalidOption(NO_MAXLEN)

    def check_ip(self, ip: str) -> None:
        """Raises InvalidUrl for an address of the link, where clouds have their metadata, unless the URL has it and
        ``sinks=`` names it. To be called for each address before it is connected to.
        """
        if is_of_link(ip) and not (self.is_named and ip in map(host_of, self.addresses)):
            raise InvalidUrl(
                "it leads to a link-local address, where clouds keep what their machines must not tell; if you mean "
                "that, write the address itself in the URL and in sinks="
            )


class Sink(SinkBase):
    """A sink whose client blocks. A thread has it at a time."""

    def check_names(self, timeout_s: float) -> None:
        """Looks the names of the URL up, and checks the addresses. A name without any is for ``open`` to tell."""
        deadline = time.monotonic() + timeout_s
        for address in self.addresses:
            with contextlib.suppress(OSError):
                resolve(address, deadline, self.check_ip)

    def open(self) -> None:
        """Connects. Called before the first ``send``, and again after ``close``. What it raises means: it is down."""

    @abstractmethod
    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        """Sends a batch. Returns a result for each message, in their order. What it raises counts as ``Unsent`` for
        all.
        """

    def interrupt(self) -> None:
        """Ends a ``send`` that takes long, as the process ends. The only method that another thread calls."""

    def close(self) -> None:
        """Disconnects: the process ends, or the sink is down. No message is on its way then. Again, it does nothing."""


class AsyncSink(SinkBase):
    """A sink whose client is for asyncio: a slow answer holds up its own message alone. Its coroutines run in the one
    event loop that all such sinks of a process share, and no names are looked up before: it calls ``check_ip``.
    """

    connections: int = 8
    """Calls of ``send`` under way at a time, at most. ``batch`` counts also the messages that wait for one."""

    async def open(self) -> None:
        """Called before the first ``send``, and again after ``close``. What it raises means: it is down."""

    @abstractmethod
    async def send(self, message: Message) -> Result:
        """Sends a message. Returns its result.

        It may raise ``shardq.Retry``, ``Bury``, ``Snooze`` or ``Hold``: these mean what they mean in a worker's
        handler, and that the sink works. Anything else that it raises counts as ``Unsent``, and never as an attempt.
        It is cancelled when the process ends and it takes too long.
        """

    async def close(self) -> None:
        """Disconnects: the process ends, or the sink is down. No message is on its way then. Again, it does nothing."""


class Circuit:
    """Tells whether a sink may be asked, and when. Closed while the sink works. Opened by a failure for a pause, which
    doubles with each failure in a row, with jitter; then half-open: one try decides. No I/O.
    """

    def __init__(self) -> None:
        self.error: str = ""
        self._failures = 0
        self._until = 0.0

    @property
    def state(self) -> CircuitState:
        if not self._failures:
            return "closed"
        return "open" if self.pause_s() else "half-open"

    def pause_s(self) -> float:
        """The time until the sink may be asked."""
        return max(0.0, self._until - time.monotonic()) if self._failures else 0.0

    def failed(self, error: str, again_s: float = 0.0) -> None:
        """Opens it, at least for so long as the sink asks for, up to an hour."""
        self.error = error
        pause = min(LONGEST_S, FIRST_S * 2.0 ** min(self._failures, 20)) * random.uniform(0.5, 1.0)
        self._failures += 1
        self._until = time.monotonic() + max(pause, min(again_s, ASKED_S))

    def worked(self) -> None:
        self.error, self._failures = "", 0


def shut_down(sock: socket.socket | None) -> None:
    """Ends what another thread waits for on this socket."""
    if sock is not None:
        with contextlib.suppress(OSError):  # it is closed already
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # a TLS socket's own forgets its state


_ONE = "one of Sent(), Refused(reason), Failed(reason), Unsent(reason)"


def checked(sink: Sink, results: object, count: int) -> list[Result]:
    """The results, each of which is one. Raises what is wrong with all of them."""
    if not isinstance(results, Sequence) or len(results) != count:
        size = f" of {len(results)}" if isinstance(results, Sized) else ""
        said = f"{type(sink).__name__}.send returned {_named(results)}{size} for {count} messages"
        raise TypeError(f"{said}; return a list with {_ONE} for each")
    return [as_result(sink, result) for result in results]


def as_result(sink: SinkBase, answer: object) -> Result:
    """The answer, or the failure of a task whose answer is none."""
    if isinstance(answer, Result):
        return answer
    return Failed(f"{type(sink).__name__}.send answered {_named(answer)} for this task; answer {_ONE}")


def _named(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
