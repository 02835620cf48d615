"""Tasks over HTTP, one at a time: pushed, looked at, cancelled and rescheduled by their ids; and listed."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from shardq.core.layout import destinations
from shardq.core.model.ids import shown_topic
from shardq.core.model.quantities import due_range, instant, seconds
from shardq.core.model.task import Outcome, State, Task
from shardq.core.producer.durable import Durability
from shardq.engine.around import EngineAccess, forms
from shardq.errors import BadInput, InvalidOption
from shardq.features.listing import line
from shardq.features.listing.query import Due
from shardq.features.transfer.lines import PUSH_FIELDS, options_of, payload_in
from shardq.http.exchange import Answer, Ask, Route, path_topic
from shardq.http.problems import Refusal

_PAYLOAD: list[Any] = [
    ("payload", msgspec.Raw | UnsetType, UNSET),
    ("payload_base64", bytes | UnsetType, UNSET),
]
"""One of them: JSON, which is stored byte for byte, or bytes that are none."""

LineBody: Any = msgspec.defstruct(
    "LineBody", [*_PAYLOAD, *PUSH_FIELDS], module=__name__, kw_only=True, forbid_unknown_fields=True
)
"""A task to push, as a line of ``push-file`` has it."""

TaskBody: Any = msgspec.defstruct(
    "TaskBody", [("durability", Durability | None, None)], bases=(LineBody,), module=__name__, kw_only=True
)
"""The same, alone."""

_OPTION_NAMES = tuple(name for name, _, _ in PUSH_FIELDS)

STATUSES = {Outcome.KEPT: 200, Outcome.SEEN: 200, Outcome.SPOOLED: 202}
"""Outcome of a push → its status; of all others 201."""


class IdQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The address of a task: ids have slashes and colons, which proxies change in a path."""

    id: str
    """The whole id, as the push answered it."""


class DueBody(msgspec.Struct, forbid_unknown_fields=True):
    """Another due time: one of both."""

    delay: float | str | None = None
    """Seconds from now, or text such as 5m."""
    at: float | str | None = None
    """2030-01-31T12:00:00Z, or seconds since 1970."""


class OutcomeForm(msgspec.Struct):
    """What became of a command."""

    id: str
    outcome: Outcome


# ---- pushing


def task_in(ask: Ask, body: Any) -> Task:
    """The task of a body, or of a line. Raises BadInput and Refusal."""
    fields: dict[str, Any] = {}
    for name in _OPTION_NAMES:
        if (value := getattr(body, name)) is not None:
            fields[name] = value
    if body.payload is not UNSET:
        try:
            fields["payload"] = payload_in(body.payload, EngineAccess(ask.engine).options.codec)
        except msgspec.MsgspecError as exc:
            raise InvalidOption(f"the payload can't be read by a worker in Python: {exc}") from None
        if body.payload_base64 is not UNSET:
            raise InvalidOption("payload and payload_base64 were given; give one of them")
    elif body.payload_base64 is not UNSET:
        fields["payload"] = body.payload_base64
    else:
        raise InvalidOption("a task needs a payload: any JSON, or payload_base64 for bytes")
    if ask.trace:
        fields["headers"] = ask.trace | fields.get("headers", {})
    try:
        task = Task(**options_of(fields))
    except ValueError as exc:  # of a time
        raise exc if isinstance(exc, BadInput) else InvalidOption(str(exc)) from None
    ask.check("producer", task.topic)
    if task.url is not None:
        _check_hook(ask, task.topic)
    return task


def _check_hook(ask: Ask, topic: str) -> None:
    """A producer may not have requests sent anywhere: only a topic that an operator has made for it has URLs."""
    engine = EngineAccess(ask.engine)
    route = engine.cache.topology.settings_of(topic).route if engine.has_opened else None
    if route is None or not destinations.is_of_urls(route.to):
        raise Refusal(
            403,
            f'"url" is not possible: the topic {shown_topic(topic)!r} is not forwarded to webhook://; an operator does '
            f"that with `shardq forward {topic} webhook://`",
        )


async def push(ask: Ask, body: Any, query: None) -> Answer:
    """Pushes a task. With an `id` of your own it may be sent again until it is answered; without one, a request that is
    sent again after a lost answer may push a second task.
    """
    if body.url is not None:
        await ask.know_routes()
    task = task_in(ask, body)
    if body.payload_base64 is not UNSET:
        receipt = await EngineAccess(ask.engine).push_bytes(task, body.durability)
    else:
        receipt = await EngineAccess(ask.engine).push(task, body.durability)
    return Answer(forms.receipt(receipt), STATUSES.get(receipt.outcome, 201))


# ---- by id


async def get(ask: Ask, body: None, query: IdQuery) -> Answer:
    """Returns a task, or what is kept of one that has ended."""
    ask.check_id(("producer", "worker", "viewer"), query.id)
    found = await ask.engine.get(query.id, decode=False, ended=True)
    if found is None:
        raise gone()
    return Answer(line.task(found))


async def cancel(ask: Ask, body: None, query: IdQuery) -> Answer:
    """Cancels a task that nobody works on."""
    ask.check_id(("producer", "operator"), query.id)
    return answer_of(query.id, await ask.engine.cancel(query.id))


async def reschedule(ask: Ask, body: DueBody, query: IdQuery) -> Answer:
    """Gives a task that nobody works on another due time."""
    ask.check_id(("producer", "operator"), query.id)
    return answer_of(query.id, await ask.engine.reschedule(query.id, **due_in(body)))


def due_in(body: Any) -> dict[str, Any]:
    """The due time of a body, as the engine takes it."""
    try:
        return {
            "delay": seconds(body.delay) if isinstance(body.delay, str) else body.delay,
            "at": instant(body.at) if isinstance(body.at, str) else body.at,
        }
    except ValueError as exc:
        raise InvalidOption(str(exc)) from None


def gone() -> Refusal:
    return Refusal(404, "no task has this id; an id includes the topic, as in mail/order-42", code="gone")


def answer_of(id: str, outcome: Outcome) -> Answer:
    """The answer to a command on one task. Raises Refusal if it was not done."""
    if outcome or outcome is Outcome.SPOOLED:
        return Answer(OutcomeForm(id, outcome), 202 if outcome is Outcome.SPOOLED else 200)
    if outcome is Outcome.GONE:
        raise gone()
    if outcome is Outcome.UNKNOWN:
        raise Refusal(504, "the answer was lost, so it is unknown if it was done; send it again", code="unknown")
    refusal = Refusal(409, f"the task is {outcome}; nothing was changed", code=str(outcome))
    refusal.more = {"id": id, "state": "leased" if outcome is Outcome.RUNNING else str(outcome)}
    raise refusal


# ---- lists


class Filter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """By what tasks are chosen. All that is given has to match."""

    topic: str | UnsetType = UNSET
    """(default) is the default topic in an address, and an empty text in a body."""
    state: State | None = None
    due: str | None = None
    """FROM..TO, each an instant, or nothing: 2030-01-31T00:00:00Z..2030-02-01T00:00:00Z"""
    tag: str | None = None
    key: str | None = None
    failed: bool = False
    """Only those that failed and wait for another attempt."""

    def options(self) -> dict[str, Any]:
        """All but the topic, as the engine takes it. Raises InvalidOption."""
        return {
            "state": self.state,
            "due": _due_bounds(self.due),
            "tag": self.tag,
            "key": self.key,
            "failed": self.failed,
        }


class ListQuery(Filter, kw_only=True, forbid_unknown_fields=True):
    """A page of those that match."""

    holder: str | None = None
    newest: bool = False
    """Of dead tasks: the latest deaths first."""
    limit: int = 100
    cursor: str | None = None
    """The cursor of the page before."""


class ListForm(msgspec.Struct):
    """A page of tasks."""

    tasks: list[line.TaskForm]
    cursor: str | None
    """For the next page; null at the end. A page may be short, or empty, before it."""
    since: dt.datetime | None
    """Of tasks that have ended: all ends since then are kept."""


def _due_bounds(text: str | None) -> Due | None:
    """The instants of FROM..TO. Raises InvalidOption."""
    if text is None:
        return None
    try:
        begin, end = due_range(text)
    except ValueError as exc:
        raise InvalidOption(str(exc)) from None
    if isinstance(begin, float) or isinstance(end, float):
        raise InvalidOption(f"due={text!r:.80} has lengths of time; give instants, as 2030-01-31T00:00:00Z..")
    return begin, end


async def tasks(ask: Ask, body: None, query: ListQuery) -> Answer:
    """Lists tasks: scheduled ones first, by due time, then held, ready, leased and dead ones."""
    topic = None if query.topic is UNSET else path_topic(query.topic)
    ask.check(("viewer", "worker"), topic)
    page = await ask.engine.tasks(
        topic,
        **query.options(),
        holder=query.holder,
        newest=query.newest,
        limit=query.limit,
        cursor=query.cursor,
        decode=False,
    )
    return Answer(ListForm([line.task(each) for each in page], page.cursor, page.since))


ROUTES = (
    Route(
        method="POST",
        path="/v1/tasks",
        roles=("producer",),
        handler=push,
        body=TaskBody,
        answer=forms.ReceiptForm,
        codes=(201, 200, 202),
        problems=(409,),
    ),
    Route(
        method="GET",
        path="/v1/tasks",
        roles=("viewer", "worker"),
        handler=tasks,
        query=ListQuery,
        answer=ListForm,
    ),
    Route(method="GET", path="/v1/task", roles=(), handler=get, query=IdQuery, answer=line.TaskForm, problems=(404,)),
    Route(
        method="DELETE",
        path="/v1/task",
        roles=("producer", "operator"),
        handler=cancel,
        query=IdQuery,
        answer=OutcomeForm,
        codes=(200, 202),
        problems=(404, 409),
    ),
    Route(
        method="PATCH",
        path="/v1/task",
        roles=("producer", "operator"),
        handler=reschedule,
        query=IdQuery,
        body=DueBody,
        answer=OutcomeForm,
        codes=(200, 202),
        problems=(404, 409),
    ),
)
