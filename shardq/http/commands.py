"""Commands over HTTP on many tasks, by their ids or by a filter, and on topics."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shardq.core.layout.topology import Limit, TopicSettings
from shardq.core.model.checks import shown_instant
from shardq.core.model.task import Outcome
from shardq.errors import InvalidOption, ShardqError
from shardq.features.listing.bulk import BulkResult
from shardq.http.exchange import Answer, Ask, Route, path_topic
from shardq.http.problems import Refusal, refusal_of
from shardq.http.tasks import Filter, due_in

MOST_IDS = 1000

AT_ONCE = 100
"""Commands by ids that are under way together."""

LONGEST_S = 10.0
"""A command on many tasks ends after the page under way when it has taken so long; send it again for the rest."""

Ids = Annotated[list[str], Meta(max_length=MOST_IDS)]


class ManyBody(Filter, kw_only=True, forbid_unknown_fields=True):
    """The tasks: by their ids, up to 1,000, or by a filter, all of which has to match."""

    ids: Ids | UnsetType = UNSET
    everything: bool = False
    """True for all tasks."""
    reason: str | None = None
    """Tasks that died of it, or whose last attempt failed of it, as pages group them."""
    dry_run: bool = False
    """Counts, and changes nothing."""


class MovedBody(ManyBody, kw_only=True, forbid_unknown_fields=True):
    """The same, with another due time: one of both."""

    delay: float | str | None = None
    at: float | str | None = None


class ManyForm(msgspec.Struct, kw_only=True):
    """What became of a command on many tasks."""

    matched: int
    done: int
    others: dict[Outcome, int]
    """Outcome → the number of tasks that were not done."""
    running: list[str]
    """The ids of those that a worker has."""
    more: bool
    """True if there may be others: send the same again."""


_FILTER = [name for name in ManyBody.__struct_fields__ if name != "ids"]


class _Late(Exception):
    """It has taken long enough."""


def _on_many(verb: Literal["cancel", "reschedule", "requeue"]) -> Callable[[Ask, Any, None], Awaitable[Answer]]:
    async def command(ask: Ask, body: Any, query: None) -> Answer:
        due = due_in(body) if isinstance(body, MovedBody) and verb == "reschedule" else {}
        if body.ids is UNSET:
            return await _by_filter(ask, verb, body, due)
        defaults = ManyBody()
        if wrong := [name for name in _FILTER if getattr(body, name) != getattr(defaults, name)]:
            raise InvalidOption(f"ids were given, and {', '.join(wrong)}, too; give ids alone, or a filter")
        return await _by_ids(ask, verb, body.ids, due)

    command.__doc__ = f"{verb.capitalize()}s tasks by their ids, or all that match a filter. It stops after 10 seconds."
    return command


async def _by_filter(ask: Ask, verb: str, body: ManyBody, due: Mapping[str, Any]) -> Answer:
    topic = None if body.topic is UNSET else body.topic
    ask.check("operator", topic)
    until, so_far = time.monotonic() + LONGEST_S, BulkResult(matched=0, done=0)

    def progress(found: BulkResult) -> None:
        nonlocal so_far
        so_far = found
        if time.monotonic() >= until:
            raise _Late

    options: dict[str, Any] = {"reason": body.reason, "dry_run": body.dry_run, "progress": progress, **due}
    filter = body.options() | {"everything": body.everything}
    more = False
    if verb == "requeue":
        filter["state"] = body.state or "dead"
    try:
        so_far = await getattr(ask.engine, f"{verb}_all")(topic, **options, **filter)
    except _Late:
        more = True
    except ShardqError as exc:
        raise _partly(exc, so_far.done) from exc
    return Answer(
        ManyForm(
            matched=so_far.matched,
            done=so_far.done,
            others=dict(so_far.others),
            running=list(so_far.running),
            more=more,
        )
    )


async def _by_ids(ask: Ask, verb: str, ids: list[str], due: Mapping[str, Any]) -> Answer:
    for id in ids:
        ask.check_id(("producer", "operator"), id)
    until, counts, running = time.monotonic() + LONGEST_S, Counter[Outcome](), list[str]()
    command: Callable[..., Awaitable[Outcome]] = getattr(ask.engine, verb)
    matched = 0
    for begin in range(0, len(ids), AT_ONCE):
        if begin and time.monotonic() >= until:
            break
        some = ids[begin : begin + AT_ONCE]
        answers = await asyncio.gather(*(command(id, **due) for id in some), return_exceptions=True)
        for id, answer in zip(some, answers, strict=True):
            if isinstance(answer, Outcome):
                matched += 1
                counts[answer] += 1
                running += [id] if answer is Outcome.RUNNING else []
        if (failure := next((each for each in answers if isinstance(each, BaseException)), None)) is not None:
            if not isinstance(failure, ShardqError):
                raise failure
            raise _partly(failure, matched) from failure
    done = sum(number for outcome, number in counts.items() if outcome)
    others = {outcome: number for outcome, number in counts.items() if not outcome}
    return Answer(ManyForm(matched=matched, done=done, others=others, running=running, more=matched < len(ids)))


def _partly(exc: ShardqError, done: int) -> Refusal:
    """The answer to a command that met this after some tasks: they are done, so it is not as if nothing was."""
    refusal = refusal_of(exc)
    if done and refusal.status == 503:
        refusal.status = 504
        refusal.detail += f"; {done:,} were dealt with before that: send the same again for the rest"
    return refusal


# ---- topics


class TopicQuery(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    """(default) is the default topic."""


class TopicBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings to change; null ends one. Limits are set together: one that is left out ends if another is given."""

    rate: float | UnsetType | None = UNSET
    concurrency: int | UnsetType | None = UNSET
    per_key: int | UnsetType | None = UNSET
    per_key_rate: float | UnsetType | None = UNSET
    on_failure: Literal["wait", "skip"] | UnsetType | None = UNSET
    pause: bool | dt.datetime | UnsetType = UNSET
    """True, false, or the instant at which it ends by itself."""
    done_age: float | UnsetType | None = UNSET


class TopicForm(msgspec.Struct, kw_only=True):
    """The settings of a topic."""

    topic: str
    changed: bool
    rate: float | None
    concurrency: int | None
    per_key: int | None
    per_key_rate: float | None
    on_failure: str | None
    paused: bool
    paused_until: dt.datetime | None
    done_age: float | None


class PurgedForm(msgspec.Struct):
    topic: str
    removed: int


async def change(ask: Ask, body: TopicBody, query: TopicQuery) -> Answer:
    """Changes settings of a topic, for the whole fleet: its pause, its limits, and how long ended tasks are kept."""
    topic = path_topic(query.topic)
    ask.check("operator", topic)
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not UNSET}
    if not given:
        raise InvalidOption(f"give a setting to change: {', '.join(TopicBody.__struct_fields__)}")
    changed = await ask.engine.configure(topics={topic: given})
    settings: TopicSettings = changed.get(topic) or ask.engine.topology.settings_of(topic)
    limit = settings.limit or Limit()
    until = settings.paused_until
    return Answer(
        TopicForm(
            topic=topic,
            changed=topic in changed,
            rate=limit.rate,
            concurrency=limit.concurrency,
            per_key=limit.per_key,
            per_key_rate=limit.per_key_rate,
            on_failure=limit.on_failure,
            paused=settings.paused,
            paused_until=shown_instant(until) if until else None,
            done_age=settings.done_age,
        )
    )


async def purge(ask: Ask, body: None, query: TopicQuery) -> Answer:
    """Removes all tasks of a topic that nobody works on: scheduled, ready and dead."""
    topic = path_topic(query.topic)
    ask.check("operator", topic)
    return Answer(PurgedForm(topic, await ask.engine.purge(topic)))


def _bulk(verb: Literal["cancel", "reschedule", "requeue"]) -> Route:
    return Route(
        method="POST",
        path=f"/v1/tasks:{verb}",
        roles=("producer", "operator"),
        handler=_on_many(verb),
        body=MovedBody if verb == "reschedule" else ManyBody,
        answer=ManyForm,
    )


ROUTES = (
    _bulk("cancel"),
    _bulk("reschedule"),
    _bulk("requeue"),
    Route(
        method="PATCH",
        path="/v1/topics/{topic}",
        roles=("operator",),
        handler=change,
        body=TopicBody,
        query=TopicQuery,
        answer=TopicForm,
    ),
    Route(
        method="POST",
        path="/v1/topics/{topic}:purge",
        roles=("operator",),
        handler=purge,
        query=TopicQuery,
        answer=PurgedForm,
    ),
)
