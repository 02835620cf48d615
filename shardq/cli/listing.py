"""list: the command that shows many tasks, and the options by which they and other commands choose tasks."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import click
import msgspec

from shardq import Engine
from shardq.cli.options import DUE, Given, Read, Whole, command, packed, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import looking
from shardq.cli.table import Table
from shardq.core.fleet.member import workers
from shardq.core.model.checks import check_key, check_tag
from shardq.core.model.ids import quoted_topic
from shardq.core.model.printable import printable
from shardq.core.model.quantities import Bound
from shardq.core.model.task import TaskInfo
from shardq.engine.around import Column, age, forms, instant, process
from shardq.features.listing import line
from shardq.features.listing.query import ENDED, MAX_LIMIT, STATES

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Filter:
    """The tasks that a user asks for."""

    topic: str | None = None
    state: str | None = None
    due: tuple[Bound, Bound] | None = None
    tag: str | None = None
    failed: bool = False
    key: str | None = None

    def __post_init__(self) -> None:
        if self.due is not None and self.state not in (None, "scheduled"):
            raise click.UsageError(f"--due goes with --state scheduled, or none: {self.state} tasks have no due time")
        if self.failed and self.state not in (None, "scheduled"):
            raise click.UsageError(
                f"--failed goes with --state scheduled, or none: no {self.state} task waits for a retry"
            )

    def __bool__(self) -> bool:
        given = (self.topic, self.state, self.due, self.tag, self.failed or None, self.key)
        return any(each is not None for each in given)

    def arguments(self, engine: Engine) -> dict[str, Any]:
        """The arguments of an engine's command. Lengths of time count from the server's now."""
        due = self.due
        if due is not None and any(isinstance(bound, float) for bound in due):
            now = engine.forecast("hour").now

            def at(bound: Bound) -> dt.datetime | None:
                return now + dt.timedelta(seconds=bound) if isinstance(bound, float) else bound

            try:
                due = at(due[0]), at(due[1])
            except OverflowError:
                raise click.UsageError("--due: that is before the year 1 or after the year 9999") from None
        failed = self.failed or None
        found = {"topic": self.topic, "state": self.state, "due": due, "tag": self.tag, "failed": failed}
        found["key"] = self.key
        return {name: value for name, value in found.items() if value is not None}

    def of(self, what: str) -> str:
        """
        >>> Filter("mail", None, (None, 0.0)).of("tasks")
        "scheduled tasks of the topic 'mail', due ..0s"
        """
        state = self.state or ("scheduled" if self.due is not None or self.failed else "")
        text = f"{state} {what}" if state else what
        if self.topic is not None:
            text += f" of the topic {quoted_topic(self.topic)}"
        if self.key is not None:
            text += f" with the key {self.key!r}"
        if self.tag is not None:
            text += f" with the tag {self.tag!r}"
        if self.failed:
            text += " that wait for a retry"
        if self.due is not None:
            text += f", due {_shown(self.due[0])}..{_shown(self.due[1])}"
        return text


def _checked_key(key: str) -> str:
    check_key(key)
    return key


def _checked_tag(tag: str) -> str:
    check_tag(tag)
    return tag


_topic = click.option("--topic", metavar="TOPIC", help="Only tasks of this topic; '' is the default topic.")
_key = click.option(
    "--key", type=Read("key", _checked_key), help="Only tasks with this key. Without --topic, this looks at every task."
)
_tag = click.option(
    "--tag",
    type=Read("tag", _checked_tag),
    help="Only tasks with this tag. Tags have no index, so this looks at every task.",
)


def filter_options(states: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Adds --topic, --key and --tag, and with ``states`` --state, --failed and --due. The command is given a
    ``filter``.
    """
    due = click.option(
        "--due",
        type=DUE,
        help="Only scheduled ones due in this time, by lengths of time from now or instants: 0..1h, -10m.., "
        "..0 (due already), 2030-01-31T00:00:00Z..",
    )
    failed = click.option("--failed", is_flag=True, help="Only tasks that failed and wait for a retry.")
    more = (click.option("--state", type=click.Choice(states), help="Only tasks in this state."), failed, due)
    return packed("filter", Filter, _topic, _key, _tag, *(more if states else ()))


def _shown(bound: Bound) -> str:
    if bound is None:
        return ""
    return f"{bound:%Y-%m-%dT%H:%M:%S%z}" if isinstance(bound, dt.datetime) else f"{bound:g}s"


TABLE = 100
"""Tasks shown without --limit and --all."""

NEXT = 10
"""Tasks shown by --next, likewise."""

REASON = 120
"""Characters of a reason that are shown: it is a program's message, of any length."""

PAYLOAD = 60
"""Characters of a payload that are shown."""

_WHEN = {"scheduled": "due (UTC)", "held": "due (UTC)", "leased": "lease ends (UTC)", "dead": "died (UTC)"}
_WHEN |= {"done": "done (UTC)", "cancelled": "cancelled (UTC)"}
_WHY = {"leased": "held by", "dead": "reason", "done": "by", "cancelled": "last failure"}


@command("List tasks by topic, state and due time.", name="list")
@filter_options((*STATES, *ENDED))
@click.option(
    "--holder", metavar="NAME", help="Only tasks leased by the consumer or worker of this name, or the worker HOST:PID."
)
@click.option("--newest", is_flag=True, help="Only dead tasks, the latest deaths first.")
@click.option(
    "--next", "soonest", is_flag=True, help="Only scheduled tasks: those due next, and the beginning of their payloads."
)
@click.option("--no-payload", is_flag=True, help="Leave the payloads out of --next and --json: they may be private.")
@click.option("--limit", type=Whole(1), help=f"At most N tasks. Default: {TABLE}; {NEXT} with --next.")
@click.option("--all", "every", is_flag=True, help="All that match, however many.")
@shared
def list_tasks(
    given: Given,
    filter: Filter,
    *,
    holder: str | None,
    newest: bool,
    soonest: bool,
    no_payload: bool,
    limit: int | None,
    every: bool,
) -> None:
    """List the tasks that match, over all shards: scheduled ones by due time, leased ones by the end of their
    lease, dead ones by the time of their death, the earliest first (--newest: the latest); ready ones in the order
    of their lists. Without --state: first scheduled, then ready, leased and dead ones. With --key and no --state: what
    is leased, what is ready, and what waits, in the order in which it will run; --state dead for its dead ones.

    --state done and --state cancelled list what is kept of ended tasks, the latest first, by --topic and --key alone;
    `shardq configure --done-age 1h` has it kept.

    It reads page by page, and no call looks at more than 1,000 tasks of a shard. It may take a while to find a rare
    topic among many tasks; Ctrl-C ends it.

    example:
      shardq list --topic mail
      shardq list --next                               (the ten that are due next)
      shardq list --next --limit 50 --topic mail --no-payload
      shardq list --failed                             (failed, and will be tried again)
      shardq list --state dead --newest --limit 20     (the latest deaths)
      shardq list --state scheduled --due ..0          (due already, and waiting)
      shardq list --due 2030-01-31T00:00:00Z..2030-02-01T00:00:00Z
      shardq list --holder shop-worker                 (its leased tasks)
      shardq list --topic webhook --key customer-7     (in the order in which they run)
      shardq list --topic mail --state done            (what was done, as far back as it is kept)
      shardq list --state dead --all --json | jq -r .reason | sort | uniq -c
    """
    if every and limit is not None:
        raise click.UsageError("give --limit N, or --all for all that match")
    state, waits = filter.state, filter.due is not None or filter.failed
    if holder is not None and (state not in (None, "leased") or waits):
        raise click.UsageError("--holder goes with --state leased, or none: no consumer holds other tasks")
    if newest and (state not in (None, "dead") or waits or holder is not None):
        raise click.UsageError("--newest goes with --state dead, or none: it is for the latest deaths")
    if soonest and (state not in (None, "scheduled") or holder is not None or newest):
        raise click.UsageError("--next goes with --state scheduled, or none: no other task has a due time to come")
    most = None if every else limit or (NEXT if soonest else TABLE)
    with looking(given) as engine:
        # as `shardq fleet` names them
        members = workers(engine.fleet()) if state in (None, "leased") else ()
        names = {each.name: process(each) for each in members}
        holder = next((name for name, shown in names.items() if shown == holder), holder)
        query = filter.arguments(engine) | {"holder": holder, "newest": newest}
        query["decode"] = not given.json
        if soonest:
            query["state"] = "scheduled"
        tasks = _walk(engine, query, MAX_LIMIT if most is None else min(most + 1, MAX_LIMIT))
        if given.json:
            for task in islice(tasks, most):
                tell(line.task(task, is_private=no_payload))
            more = False
        elif soonest:
            columns = _next_columns(engine.forecast("hour").now, no_payload=no_payload)
            more = _print(tasks, most, columns)
        else:
            shown = state or ("leased" if holder else "scheduled" if waits else "dead" * newest)
            more = _print(tasks, most, _columns(shown, names))
        if state in ENDED and not given.json:
            complain(_reach(engine))
    if more:
        sys.stdout.flush()
        complain(f"there are more than these {most:,}: --limit N shows more, --all all of them")


def _reach(engine: Engine) -> str:
    """Says how far back the list of ended tasks goes."""
    if not engine.topology.ends_rule:
        return "it is not kept what becomes of tasks: `shardq configure --done-age 1h` has it kept from then on"
    since = engine.stats(shards=False).ends_since
    return f"kept since {instant(since)} (UTC)" if since else "no task has ended since it is kept"


def _next_columns(now: dt.datetime, *, no_payload: bool) -> list[Column[TaskInfo]]:
    columns = [
        Column[TaskInfo]("due (UTC)", _when, rank=1, text=True),
        Column("in", partial(_left, now=now)),
        Column("id", lambda task: task.id, text=True),
    ]
    return columns if no_payload else [*columns, Column("payload", _payload, rank=2, text=True)]


def _columns(state: str, names: Mapping[str, str]) -> list[Column[TaskInfo]]:
    columns = [Column[TaskInfo]("id", lambda task: task.id, text=True)]
    if not state:
        columns.append(Column("state", lambda task: task.state, text=True))
    if state != "ready":
        columns.append(Column(_WHEN.get(state, "when (UTC)"), _when, rank=1, text=True))
    columns.append(Column("attempts", lambda task: str(task.failures + task.lapses + (state == "done")), rank=2))
    if state == "done":
        columns.append(Column("took", lambda task: "" if task.seconds is None else f"{task.seconds:,.3f} s", rank=3))
    # of scheduled and ready tasks few have failed
    optional = state in ("scheduled", "ready")
    title = "reason" if optional else _WHY.get(state, "reason, or held by")
    columns.append(Column(title, partial(_why, names=names), text=True, optional=optional))
    return columns


def _print(tasks: Iterator[TaskInfo], most: int | None, columns: list[Column[TaskInfo]]) -> bool:
    """Prints tables, each as soon as it is full. Returns True if there are more tasks than ``most``."""
    table, left, none = Table(*columns), most, True
    while rows := list(islice(tasks, MAX_LIMIT if left is None else min(left, MAX_LIMIT))):
        table.print(rows)
        none = False
        if left is not None:
            left -= len(rows)
            if not left:
                return next(tasks, None) is not None
    if none:
        say("none")
    return False


def _when(task: TaskInfo) -> str:
    at = task.due or task.deadline or task.died or task.ended
    return instant(at) if at else ""


def _why(task: TaskInfo, names: Mapping[str, str]) -> str:
    if task.holder is not None:
        return names.get(task.holder, task.holder)
    if task.ended is not None:
        return task.failure or ""
    # the last line of a traceback is the error
    return (task.reason or "").strip().rpartition("\n")[2][:REASON]


def _walk(engine: Engine, query: dict[str, Any], limit: int) -> Iterator[TaskInfo]:
    """All tasks that match, page by page."""
    page = engine.tasks(**query, limit=limit)
    yield from page
    while page.cursor is not None:
        page = engine.tasks(**query, limit=limit, cursor=page.cursor)
        yield from page


def _left(task: TaskInfo, *, now: dt.datetime) -> str:
    """The time until the task is due."""
    return "overdue" if task.due is None or task.due <= now else age((task.due - now).total_seconds())


def _payload(task: TaskInfo) -> str:
    """The beginning of a payload on one line."""
    [(field, value)] = forms.payload(task.payload).items()
    if not isinstance(value, str):
        value = msgspec.json.encode(value).decode()
    text = printable(f"base64 {value}" if field == "payload_base64" else value[: PAYLOAD + 1])
    return text if len(text) <= PAYLOAD else f"{text[: PAYLOAD - 3]}..."
