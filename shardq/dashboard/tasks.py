"""The lists of tasks, one task with its commands, and by reason those that are dead or wait for a retry."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shardq import Engine, Stats
from shardq.core.model.ids import DEFAULT_TOPIC
from shardq.core.model.printable import printable, quoted
from shardq.core.model.quantities import Bound, due_range, expiry
from shardq.core.model.task import Outcome, State, TaskInfo
from shardq.core.producer.commands_by_id import Verb
from shardq.dashboard.formats import fitting, line, lines, named, shown
from shardq.dashboard.links import link_of
from shardq.dashboard.snapshots import Caller
from shardq.dashboard.web import Form, action, dashboard_of, done, newest, page, path_of, rendered
from shardq.engine.around import counted, instant
from shardq.errors import BadInput, InvalidOption, PayloadNotDecodable
from shardq.features.listing.bulk import STATES as STATES_OF
from shardq.features.listing.query import ENDED, STATES, TaskPage, grouped

LIMIT = 30
"""Tasks of a page: 80 kB are enough for them, whatever is in them."""

REASON = 6_000
"""Bytes of a reason, as the page has them: the end of a traceback says most."""

LATEST = 600
"""Tasks that are read to group their reasons: those that died last, or are tried again first."""

READS = 4
"""The most pages of them that are read: one ends early where tasks are large, or of a rare topic."""

GROUPS = 40
"""Groups that are shown."""

TOPICS = 3
"""Topics that are named for a reason."""

LOOKS = 33
"""The most pages that are read to find tasks of a name: some thousand tasks."""

NAMED = 3
"""Ids that a question names."""

VERBS: Mapping[str, tuple[State, ...]] = {
    "cancel": tuple(state for state in STATES_OF["cancel"] if state != "dead"),
    "requeue": STATES_OF["requeue"],
    "reschedule": STATES_OF["reschedule"],
    "remove": ("dead",),
}
"""The commands of the pages, and the states of the tasks for which they are offered. A dead task is removed: nothing of
it is yet to come, that could be cancelled.
"""

METHODS: Mapping[str, Verb] = {"remove": "cancel"}
"""The methods of the engine that have another name than the command."""

NO_TASK = "There is no such task: it is done, was cancelled, or was never pushed."

NO_END = (
    "There is no such task, and no end of it is kept: it was never pushed, or what is kept does not go back so far."
)
"""The same of an engine that keeps ends."""

_LONGEST = 200
"""Characters of a field: no filter that is possible has more."""

_WHEN = {
    "scheduled": "due",
    "held": "due",
    "leased": "lease ends",
    "dead": "died",
    "done": "done",
    "cancelled": "cancelled",
}

_SAID = {
    Outcome.CANCELLED: "was cancelled",
    Outcome.REQUEUED: "was requeued: it runs again, with all its attempts",
    Outcome.MOVED: "was rescheduled",
    Outcome.RUNNING: "was left alone: a worker has it",
    Outcome.GONE: "is gone: it is done, was cancelled, or was never pushed",
    Outcome.UNKNOWN: "is gone, or was dealt with just now: the answer was lost",
    Outcome.SPOOLED: "will be dealt with when Redis can be reached again",
}


# ---- lists


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """The filter of a list: the fields of its form, which are the query of its address, too. "": all match."""

    topic: str = ""
    state: str = ""
    due: str = ""
    """FROM..TO, as in ``shardq list --due``."""
    holder: str = ""
    failed: str = ""
    """Anything: only those that wait for a retry."""
    tag: str = ""
    name: str = ""
    """A part of the task's name, which is in its payload: pages are read and searched."""
    key: str = ""

    @classmethod
    def of(cls, field: Callable[[str], str | None]) -> TaskFilter:
        return cls(*(printable((field(name) or "").strip()[:_LONGEST]) for name in cls.__slots__))

    @property
    def fields(self) -> dict[str, str]:
        """The query of its address."""
        return {name: word for name in self.__slots__ if (word := getattr(self, name))}

    async def dated(self, call: Caller) -> TaskFilter:
        """The same with instants in place of lengths of time: these count from the servers' now, and a cursor is good
        for the same instants only.
        """
        if not self.due:
            return self
        bounds = self._range()
        has_lengths = any(isinstance(bound, float) for bound in bounds)
        now = (await call(lambda engine: engine.forecast("hour"))).now if has_lengths else dt.datetime.now(dt.UTC)
        begin, end = (_word(bound, now) for bound in bounds)
        return replace(self, due=f"{begin}..{end}")

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``engine.tasks``; it has to be ``dated``. Raises InvalidOption."""
        if self.name and self.state in ENDED:
            raise InvalidOption(
                f"the task name {quoted(self.name)} was given with state={quoted(self.state)}: names are in payloads, "
                "which are not kept of such tasks; leave it out"
            )
        return {
            "topic": topic_named(self.topic),
            "state": self.state or None,
            "due": self._range() if self.due else None,
            "holder": self.holder or None,
            "failed": bool(self.failed),
            "tag": self.tag or None,
            "key": self.key or None,
        }

    def sentence(self) -> str:
        """
        >>> TaskFilter(topic="mail", due="..2030-01-01T00:00:00Z").sentence()
        'scheduled tasks of the topic mail, due ..2030-01-01T00:00:00Z'
        """
        waits = self.due or self.failed
        text = f"{self.state or ('scheduled' if waits else 'leased' if self.holder else 'all')} tasks"
        text += " that wait for a retry" if self.failed else ""
        text += f" of the topic {self.topic}" if self.topic else ""
        text += f" of the key {self.key}" if self.key else ""
        text += f" with the tag {self.tag}" if self.tag else ""
        text += f", due {self.due}" if self.due else ""
        return text + (f", held by {self.holder}" if self.holder else "")

    def _range(self) -> tuple[Bound, Bound]:
        try:
            return due_range(self.due)
        except ValueError as exc:
            raise InvalidOption(f"due: {exc}") from None


def topic_named(word: str) -> str | None:
    """The topic; None for all."""
    return None if not word else "" if word == DEFAULT_TOPIC else word


def _word(bound: Bound, now: dt.datetime) -> str:
    if bound is None:
        return ""
    try:
        at = now + dt.timedelta(seconds=bound) if isinstance(bound, float) else bound
    except OverflowError:
        raise InvalidOption("due: that is before the year 1 or after the year 9999") from None
    return at.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Tab(NamedTuple):
    """A state beside the others, above a list."""

    title: str
    tasks: str
    """"" where it is not known: nobody counts by key, tag or name."""
    address: str
    is_current: bool


async def tabs_of(request: Request, filter: TaskFilter, current: str) -> list[Tab]:
    """The states, with the counts of the topic that is listed, or of all."""
    snapshot = (await newest(request))["snapshot"]
    kept = {name: word for name in ("topic", "key", "tag", "name") if (word := getattr(filter, name))}
    topology = dashboard_of(request).engine.topology

    def count(state: str) -> str:
        if snapshot is None or filter.tag or filter.name or filter.key:
            return ""
        return _count_of(snapshot.stats, topic_named(filter.topic), state)

    queries: dict[str, dict[str, str]] = {"all": {}, "scheduled": {"state": "scheduled"}, "retrying": {"failed": "1"}}
    queries |= {state: {"state": state} for state in STATES}
    if snapshot is not None and not snapshot.stats.held and current != "held":
        del queries["held"]
    tabs = [
        Tab(title, count(title), link_of("/tasks", **query, **kept), title == current)
        for title, query in queries.items()
    ]
    if topology.ends_rule or current in ENDED:
        # what is kept of these has neither tags nor a payload, and nobody counts it
        known = {name: word for name, word in kept.items() if name in ("topic", "key")}
        tabs += [Tab(state, "", link_of("/tasks", state=state, **known), state == current) for state in ENDED]
    return tabs


def _count_of(stats: Stats, topic: str | None, state: str) -> str:
    """A count as views show it, with ~ where it is an estimate."""
    states = STATES if state == "all" else (state,)
    if topic is None:
        is_estimate = state == "retrying" and stats.is_retrying_estimated
        return stats.shown(sum(getattr(stats, each) for each in states), mark="~" if is_estimate else "")
    if (seen := stats.topics.get(topic)) is None:
        return stats.shown(0)
    is_estimate = any(each in seen.estimated for each in states)
    return stats.shown(sum(getattr(seen, each) for each in states), mark="~" if is_estimate else "")


async def tasks(request: Request) -> Response:
    """The tasks that match, page by page."""
    filter, call = TaskFilter.of(request.query_params.get), dashboard_of(request).call
    cursor, found, wrong = request.query_params.get("cursor"), TaskPage(), ""
    try:
        filter = await filter.dated(call)
        query = filter.arguments() | {"newest": filter.state == "dead", "limit": LIMIT, "cursor": cursor}
        found = await (_named(call, filter.name, query) if filter.name else call(lambda engine: engine.tasks(**query)))
    except BadInput as exc:
        wrong = str(exc)
    state = filter.state or ("scheduled" if filter.due else "leased" if filter.holder else "all")
    states = {task.state for task in found}
    listed = filter.state if filter.state or not found else found[0].state if len(states) == 1 else ""
    return rendered(
        request,
        "tasks.html",
        400 if wrong else 200,
        filter=filter,
        tasks=found,
        tabs=[] if wrong else await tabs_of(request, filter, "retrying" if filter.failed else state),
        when=_WHEN.get(listed, "when"),
        now=dt.datetime.now(dt.UTC),
        is_first=cursor is None,
        verbs=[] if wrong else _verbs(filter),
        marks={verb: mark.title for verb, mark in MARKS.items() if states.intersection(mark.states)},
        listed=listed,
        has_keys=not wrong and dashboard_of(request).engine.topology.is_keyed,
        ends=ends_kept(request, filter, found) if filter.state in ENDED and not wrong else "",
        wrong=wrong,
    )


def ends_kept(request: Request, filter: TaskFilter, found: TaskPage) -> str:
    """Says since when ends are kept, and of which topic none are."""
    topology, topic = dashboard_of(request).engine.topology, topic_named(filter.topic)
    if not topology.ends_rule:
        return "What becomes of tasks is not kept. To have it kept from now on, run: shardq configure --done-age 1h."
    if topic is not None and not topology.ends_age_ms(topic):
        return f"Of the topic {filter.topic} no ends are kept: by its done_age, or as it goes to a list or a stream."
    since = instant(found.since) if found.since else ""
    return f"Ends are kept since {since} UTC." if since else "No task has ended since ends are kept."


async def _named(call: Caller, name: str, query: dict[str, Any]) -> TaskPage:
    """The next tasks of a name, as far as some pages have any. They are all of one state, but those of a key."""
    found = TaskPage(cursor=query["cursor"])

    def read(engine: Engine) -> TaskPage:
        return engine.tasks(**query | {"limit": LIMIT - len(found), "cursor": found.cursor})

    for _ in range(LOOKS):
        page = await call(read)
        if found and page and page[0].state != found[0].state and not query["key"]:
            break
        found += [task for task in page if name in named(task.payload)]
        found.cursor = page.cursor
        if found.cursor is None or len(found) == LIMIT:
            break
    return found


def _verbs(filter: TaskFilter) -> list[str]:
    """The commands that can be given for all tasks of the list."""
    state = filter.state or ("scheduled" if filter.due or filter.failed else "")
    if filter.holder or filter.name:
        return []
    return [verb for verb, states in VERBS.items() if state in states or (not state and states != ("dead",))]


# ---- the marked tasks of a list


class Mark(NamedTuple):
    """An action on marked tasks."""

    title: str
    act: str
    """With {} for the tasks."""
    done: str
    states: tuple[str, ...]
    """Those that allow it."""
    call: Callable[[str, Engine], Outcome]


MARKS = {
    "run": Mark("Run now", "Run {} now", "due now", ("scheduled",), lambda id, engine: engine.reschedule(id, delay=0)),
    "requeue": Mark("Requeue", "Requeue {}", "requeued", VERBS["requeue"], lambda id, engine: engine.requeue(id)),
    "cancel": Mark("Cancel", "Cancel {}", "cancelled", VERBS["cancel"], lambda id, engine: engine.cancel(id)),
    "remove": Mark("Remove", "Remove {}", "removed", VERBS["remove"], lambda id, engine: engine.cancel(id)),
}


def _marked(form: Form) -> tuple[Mark, list[str]]:
    verb, ids = form.text("verb"), list(map(unquote, form.all("id")))  # quoted, for their length and their blanks
    if verb not in MARKS:
        raise InvalidOption(f"verb={quoted(verb)} is not possible; use one of {', '.join(MARKS)}")
    if not ids:
        raise InvalidOption("no task is marked: mark at least one in the list, then press the button again")
    return MARKS[verb], ids


def _ask_marked(form: Form) -> tuple[str, str]:
    mark, ids = _marked(form)
    act = mark.act.format(counted(len(ids), "task"))
    names = ", ".join(line(id, 60) for id in ids[:NAMED])
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"{act}? {names}{more}", act


async def marked(request: Request, form: Form) -> Response:
    """Gives each marked task the command of the button."""
    mark, ids = _marked(form)
    outcomes = Counter([await dashboard_of(request).change(partial(mark.call, id)) for id in ids])
    said = f"{sum(count for outcome, count in outcomes.items() if outcome)} of {counted(len(ids), 'task')} {mark.done}"
    for outcome, count in outcomes.items():
        said += f", {count} left alone: {outcome}" if not outcome else ""
    return done(request, f"{said}.", back=link_of("/tasks", **TaskFilter.of(form.text).fields))


# ---- one task


async def task(request: Request) -> Response:
    """All that is known of a task, its payload, and the commands that its state allows."""
    call, id = dashboard_of(request).call, request.query_params.get("id", "")
    undecodable = ""
    try:
        found = await call(lambda engine: engine.get(id, ended=True))
    except PayloadNotDecodable as exc:
        undecodable = str(exc)
        found = await call(lambda engine: engine.get(id, decode=False))
    if found is None:
        raise HTTPException(404, NO_END if dashboard_of(request).engine.topology.ends_rule else NO_TASK)
    return rendered(
        request,
        "task.html",
        task=found,
        payload=shown(found.payload),
        undecodable=undecodable,
        reason=fitting(lines((found.reason or "")[-REASON:]), REASON, end=True),
        verbs=[verb for verb, states in VERBS.items() if found.state in states],
        now=dt.datetime.now(dt.UTC),
    )


def due_of(form: Form, field: str) -> dict[str, Any]:
    """The new due time in a form: ``delay=`` or ``at=`` of a command. Raises InvalidOption."""
    try:
        due = expiry(form.text(field))
    except ValueError as exc:
        raise InvalidOption(f"the new due time: {exc}") from None
    return {"at": due} if isinstance(due, dt.datetime) else {"delay": due}


async def command(request: Request, form: Form) -> Response:
    """Gives a task the command that the address ends in."""
    id, verb = _id(form), path_of(request).rpartition("/")[2]
    due = due_of(form, "due") if verb == "reschedule" else {}
    method = METHODS.get(verb, verb)
    outcome: Outcome = await dashboard_of(request).call(lambda engine: getattr(engine, method)(id, **due))
    said = _SAID.get(outcome, f"was left alone: it is {outcome}")
    if verb == "remove" and outcome is Outcome.CANCELLED:
        said = "was removed"
    ended = outcome in (Outcome.CANCELLED, Outcome.GONE, Outcome.UNKNOWN)
    return done(request, f"{printable(id)} {said}.", back="/tasks" if ended else link_of("/tasks/one", id=id))


def _id(form: Form) -> str:
    return "".join(form.all("id")[:1])  # not text(): an id may begin with a blank


# ---- reasons


async def dead(request: Request) -> Response:
    """The reasons of the last deaths, and the way to requeue or remove those tasks."""
    return await _by_reason(request, "/dead", newest=True)


async def retries(request: Request) -> Response:
    """The reasons why tasks wait for another attempt, and the way to run them now or to remove them."""
    return await _by_reason(request, "/retries", failed=True)


async def _by_reason(request: Request, path: str, **query: bool) -> Response:
    word = TaskFilter.of(request.query_params.get).topic
    tasks, is_whole = await _first(dashboard_of(request).call, topic_named(word), query)
    groups = grouped(tasks)
    if "failed" in query:
        groups.sort(key=lambda group: group.first or dt.datetime.max.replace(tzinfo=dt.UTC))
    return rendered(
        request,
        "reasons.html",
        path=path,
        failed="failed" in query,
        topic=word,
        tabs=await tabs_of(request, TaskFilter(topic=word), "retrying" if "failed" in query else "dead"),
        now=dt.datetime.now(dt.UTC),
        read=len(tasks),
        is_whole=is_whole,
        groups=groups[:GROUPS],
        others=max(0, len(groups) - GROUPS),
        named=TOPICS,
    )


async def _first(call: Caller, topic: str | None, query: dict[str, Any]) -> tuple[list[TaskInfo], bool]:
    """The first tasks of the query, and True if these are all."""
    found: list[TaskInfo] = []
    cursor: str | None = None

    def read(engine: Engine) -> TaskPage:
        return engine.tasks(topic=topic, **query, limit=LATEST - len(found), cursor=cursor)

    for _ in range(READS):
        page = await call(read)
        found += page
        cursor = page.cursor
        if cursor is None or len(found) == LATEST:
            break
    return found, cursor is None


routes: list[Route] = [
    page("/tasks", tasks),
    page("/tasks/one", task),
    action(
        "/tasks/cancel",
        command,
        ask=lambda form: (f"Cancel the task {printable(_id(form)[:200])}? It is removed for good.", "Cancel the task"),
    ),
    action(
        "/tasks/remove",
        command,
        ask=lambda form: (f"Remove the dead task {printable(_id(form)[:200])} for good?", "Remove the task"),
    ),
    action("/tasks/marked", marked, ask=_ask_marked),
    action("/tasks/requeue", command),
    action("/tasks/reschedule", command),
    page("/dead", dead),
    page("/retries", retries),
]
