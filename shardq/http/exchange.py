"""One request and its answer, as the handlers of the API see them, and the rows of the table of routes.

A handler is ``async def push(ask, body, query) -> Answer``. Its row says who may call it, and of which forms the body,
the query and the answer are; they are checked before the handler runs.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from shardq.core.model.ids import DEFAULT_TOPIC, shown_topic, topic_of
from shardq.engine.around import EngineAccess
from shardq.features.transfer.lines import UNREADABLE
from shardq.http.bounds import Body, Room
from shardq.http.problems import Refusal
from shardq.http.tokens import Caller, Role

if TYPE_CHECKING:
    from starlette.types import Receive

    from shardq import AsyncEngine
    from shardq.http.claims import Work

JSON = b"application/json"
NDJSON = b"application/x-ndjson"

FRESH_S = 1.0
"""What is known of routes is not older, where URLs are to be pushed."""

TURNS = 8
"""Batches whose lines are read and pushed at one time: a line takes ten times its bytes then. Others keep theirs as
they came.
"""

LOOP_TURNS = 5
"""Turns of the loop until the end of a connection, which is there to be read, has been told to the request."""

_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATE = re.compile(rb"[\x20-\x7e]{1,512}")


@dataclass(slots=True)
class Gateway:
    """What all requests of one application share."""

    engine: AsyncEngine
    room: Room
    """For the bodies of all requests."""
    refreshed_at: float = float("-inf")
    """When the topology was read."""
    batches: int = 0
    """Batches that are read now."""
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TURNS))
    """Those of batches whose lines are pushed now."""
    turn_ended_at: float = float("-inf")
    """When the last of them was over."""
    work: Work | None = None
    """What it does for workers, from the first of their calls on."""


@dataclass(slots=True)
class Ask:
    """One request."""

    gateway: Gateway
    caller: Caller
    request_id: str
    headers: dict[bytes, bytes]
    """Name in small letters → value."""
    receive: Receive
    """Gives ``http.disconnect`` once the body was read and the client has gone."""
    stream: Body | None = None
    """The body, piece by piece, for rows with ``streams``."""
    trace: dict[str, str] = field(init=False)
    """The trace of the request as headers of the tasks that it pushes; empty if there is none."""

    @property
    def engine(self) -> AsyncEngine:
        return self.gateway.engine

    def __post_init__(self) -> None:
        self.trace = self._traced()

    def _traced(self) -> dict[str, str]:
        parent = self.headers.get(b"traceparent")
        if parent is None or _TRACE.fullmatch(parent) is None:
            return {}
        state = self.headers.get(b"tracestate", b"")
        found = {"traceparent": parent.decode()}
        return found | {"tracestate": state.decode()} if _TRACE_STATE.fullmatch(state) else found

    async def know_routes(self) -> None:
        """Learns where topics are forwarded to, as it is by now or was a second ago."""
        if time.monotonic() - self.gateway.refreshed_at >= FRESH_S:
            await EngineAccess(self.engine).refresh()
            self.gateway.refreshed_at = time.monotonic()

    def check(self, role: Role | Collection[Role], topic: str | None) -> None:
        """Raises Refusal unless the token has the role, or one of these, for this topic; None: for every topic."""
        if not self.caller.may(role, topic):
            roles = role if isinstance(role, str) else " or ".join(role)
            what = "every topic: name one" if topic is None else f"the topic {shown_topic(topic)!r}"
            raise Refusal(403, f"the token {self.caller.name!r} is not one of a {roles} for {what}")

    def check_id(self, role: Role | Collection[Role], id: str) -> None:
        """The same, for the topic of an id."""
        self.check(role, topic_of(id))


class Answer(NamedTuple):
    """The answer to a request."""

    value: Any
    """A form, which is encoded; bytes go as they are."""
    status: int = 200
    media: bytes = b""
    """The type of the answer, if it is not that of the route."""
    headers: Mapping[str, str] = MappingProxyType({})
    undo: Callable[[], Awaitable[object]] | None = None
    """Called if the client goes before all of the answer is on its way."""


Handler = Callable[[Ask, Any, Any], Awaitable[Answer]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    """Fields of the query stand in it in braces, as /v1/topics/{topic}."""
    roles: tuple[Role, ...]
    """One of them is needed; none: a token will do."""
    handler: Handler
    answer: Any
    """The type of the answer's value; several, if it has lines of these types."""
    codes: tuple[int, ...] = (200,)
    """The statuses of answers that are no problem."""
    problems: tuple[int, ...] = ()
    """Those of problems, besides the ones that any row may answer."""
    body: Any = None
    """The type of the body; None: there is none."""
    query: Any = None
    """The struct of the query; None: there is none."""
    media: bytes = JSON
    """The type of body and answer."""
    most_bytes: int | None = None
    """The size of the body; None: that of a task, with the engine's largest payload."""
    streams: bool = False
    """True if the handler reads the body itself."""

    @property
    def is_read(self) -> bool:
        """True if nothing is changed: it is allowed read-only."""
        return self.method == "GET"

    @property
    def answers(self) -> tuple[Any, ...]:
        return self.answer if isinstance(self.answer, tuple) else (self.answer,)

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]


async def client_gone(receive: Receive) -> None:
    """Returns when the client has gone. The body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def told_soon(gone: asyncio.Future[None]) -> bool:
    """True if the client is known to have gone."""
    for _ in range(LOOP_TURNS):
        if gone.done():
            break
        await asyncio.sleep(0)
    return gone.done()


def query_in(text: bytes, path: dict[str, str], form: Any) -> Any:
    """The fields of a query, and of the path, as this struct. Raises Refusal."""
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, strict_parsing=bool(text), errors="strict")
    except ValueError:
        raise Refusal(
            400, "the query is not understood; write ?name=value&name=value, in percent-encoded UTF-8"
        ) from None
    fields = dict(pairs)
    if len(fields) < len(pairs) or not fields.keys().isdisjoint(path):
        raise Refusal(400, "a field of the query is given twice; give each once")
    if form is None:
        if fields:
            raise Refusal(400, f"this address has no query; leave out {', '.join(sorted(fields))!r:.200}")
        return None
    try:
        return msgspec.convert(fields | path, form, strict=False)
    except msgspec.ValidationError as exc:
        raise Refusal(400, f"the query is not as it should be: {exc}") from None


def body_in(data: bytes, form: Any) -> Any:
    """The body as this type. Raises Refusal."""
    try:
        return msgspec.json.decode(data.decode(), type=form)
    except UNREADABLE as exc:
        raise Refusal(400, told(exc, "body")) from None


def told(exc: Exception, what: str) -> str:
    """What is wrong with a body, or a line of one."""
    if isinstance(exc, RecursionError):
        return f"the {what} is nested too deeply"
    if isinstance(exc, UnicodeDecodeError):
        return f"the {what} is not UTF-8: {exc.reason} at byte {exc.start}"
    if isinstance(exc, msgspec.ValidationError):
        return f"the {what} is not as it should be: {exc}"
    if isinstance(exc, msgspec.MsgspecError):
        return f"the {what} is not JSON: {exc}"
    return str(exc)


def path_topic(name: str) -> str:
    """The topic of an address: ``(default)`` is the default one."""
    return "" if name == DEFAULT_TOPIC else name
