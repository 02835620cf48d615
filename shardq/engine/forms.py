"""The JSON forms of tasks, topics, stats and health: what commands print with ``--json``, and the lines that they read.
No I/O.

A form is a struct. Most of its fields are those of the value that it shows, so what is added there is shown here.
``tests/cli/test_forms.py`` holds the schema of all forms, and compares it with what the commands of a real engine
print. The form of a task is in ``features/listing/line.py``, those that ``import`` reads in ``features/transfer``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from types import GenericAlias
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from shardq.core.fleet.lateness import Lateness
from shardq.core.fleet.member import Member
from shardq.core.layout.words import UNENCODABLE
from shardq.core.model.task import Outcome, Receipt, State
from shardq.engine.findings import Finding
from shardq.engine.health import Health
from shardq.engine.stats import ScheduleStats, ShardStats, Stats, TopicStats
from shardq.features.listing.line import Fields, TaskForm, fields_of, form
from shardq.features.schedules import Schedule
from shardq.features.transfer.lines import PushLine, RestoreLine

_fields = fields_of
_form = partial(form, module=__name__)


def _filled(form: Any, source: object, **others: Any) -> Any:
    """A form with the fields of a value; ``others``: those that it has not, or that look otherwise."""
    names = [name for name in form.__struct_fields__ if name not in others]
    return form(**{name: getattr(source, name) for name in names}, **others)


# ---- tasks

ReceiptForm: Any = _form("ReceiptForm", {"id": str, "outcome": Outcome, "state": State | None}, {"line": int})
"""A push, or a line of ``import``: what became of it."""

GoneForm: Any = _form("GoneForm", {"id": str, "state": Literal["gone"]})
"""A task that is not there any more."""


def receipt(pushed: Receipt, *, line: int | UnsetType = UNSET) -> Any:
    return ReceiptForm(id=str(pushed), outcome=pushed.outcome, state=pushed.state, line=line)


def gone(id: str) -> Any:
    return GoneForm(id=id, state="gone")


# ---- schedules

_PAYLOAD: Fields = {"payload": Any, "payload_base64": str, "payload_repr": str}
"""One of them: bytes that are no text are in base64. What JSON can't say, such as an extension of MessagePack, is as
Python writes it.
"""

ScheduleForm: Any = _form("ScheduleForm", _fields(Schedule, "payload"), _PAYLOAD)
"""A schedule, as ``every`` prints it."""


def payload(value: Any) -> dict[str, Any]:
    """The one of the three fields that a payload has."""
    if not isinstance(value, bytes):
        try:
            msgspec.json.encode(value)
        except UNENCODABLE:
            return {"payload_repr": repr(value)}
        return {"payload": value}
    try:
        return {"payload": value.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(value).decode()}


def schedule(shown: Schedule) -> Any:
    return _filled(ScheduleForm, shown, **dict.fromkeys(_PAYLOAD, UNSET) | payload(shown.payload))


# ---- topics

_COUNTS = ("scheduled", "held", "retrying", "ready", "leased", "dead", "dispatched", "forwarded", "died")


def _counted(fields: Fields) -> dict[str, Any]:
    """The same fields; counts may be null, as where no shard could be read."""
    return {name: type | None if name in _COUNTS else type for name, type in fields.items()}


def _unread(form: Any, stats: Stats) -> dict[str, None]:
    """The counts of a form, as null if no shard could be read."""
    return dict.fromkeys([name for name in _COUNTS if name in form.__struct_fields__] if stats.is_blind else [])


TopicForm: Any = _form("TopicForm", _counted(_fields(TopicStats)))
"""A topic in the stats."""

TopicLine: Any = _form("TopicLine", {"topic": str} | _counted(_fields(TopicStats)))
"""The same, as ``topics`` prints it."""


def topics(stats: Stats, of: Mapping[str, TopicStats]) -> dict[str, Any]:
    """These topics of the stats."""
    return {name: _filled(TopicForm, each, **_unread(TopicForm, stats)) for name, each in of.items()}


def topic(stats: Stats, name: str, found: TopicStats) -> Any:
    return _filled(TopicLine, found, topic=name, **_unread(TopicLine, stats))


# ---- the fleet

LatenessForm: Any = _form("LatenessForm", {"tasks": int, **dict.fromkeys(("p50_ms", "p99_ms", "max_ms"), int | None)})
"""A histogram by its quantiles."""

HISTOGRAMS = ("dispatch_lateness", "pickup_lateness", "key_wait")

MemberForm: Any = _form(
    "MemberForm",
    _fields(Member) | dict.fromkeys(HISTOGRAMS, GenericAlias(dict, (str, LatenessForm))),
)
"""A process, as ``fleet`` prints it."""


def lateness(found: Lateness) -> Any:
    return _filled(LatenessForm, found, tasks=found.count)


def member(found: Member) -> Any:
    histograms = {name: getattr(found, name) for name in HISTOGRAMS}
    shown = {name: {topic: lateness(each) for topic, each in by.items()} for name, by in histograms.items()}
    return _filled(MemberForm, found, **shown)


# ---- health and stats

_VERDICT: Fields = {
    "ok": bool | None,
    "severity": Literal["ok", "route", "engine"] | None,
    "reasons": list[str],
    "warnings": list[str],
    "findings": list[Finding],
}

VerdictForm: Any = _form("VerdictForm", _VERDICT)
"""The verdict of ``health``; ``ok`` and ``severity`` are null if none can be told."""

MendableForm: Any = _form("MendableForm", _fields(Finding) | {"fix": str | None})
"""A finding of ``doctor``, and what --fix does about it."""

CheckForm: Any = _form("CheckForm", {"check": str, "ok": bool, "findings": GenericAlias(list, (MendableForm,))})
"""A check of ``doctor``."""

ShardForm: Any = _form("ShardForm", _fields(ShardStats, "lateness", "poller", "poller_error", "poller_idle"))
SchedulesForm: Any = _form("SchedulesForm", _fields(ScheduleStats, "pushed"))

StatsForm: Any = _form(
    "StatsForm",
    _VERDICT
    | _counted(_fields(Stats, "lateness", "dispatchers", "connections", "failing_routes", "relays"))
    | {"topics": GenericAlias(dict, (str, TopicForm)), "shards": GenericAlias(list, (ShardForm,))}
    | {"schedules": SchedulesForm | None},
)
"""The verdict with its stats, as ``stats`` prints them: without the fields that only a process with pollers or relays
can fill. The command has none.
"""

ServingForm: Any = _form(
    "ServingForm",
    {"name": str, "shards": int, "polling": list[int], "failing": list[int], "dispatchers": int}
    | {"ok": bool, "reasons": list[str]}
    | dict.fromkeys(("scheduled", "held", "ready", "leased", "dead", "dispatched"), int)
    | {"lateness": LatenessForm},
)
"""What ``run`` prints again and again."""


def verdict(health: Health) -> Any:
    return _filled(VerdictForm, health)


def no_verdict(why: str) -> Any:
    return VerdictForm(ok=None, severity=None, reasons=[f"it can't be told: {why}"], warnings=[], findings=[])


def check(name: str, fixes: Mapping[Finding, str | None]) -> Any:
    """A check of ``doctor``. ``fixes``: finding → what --fix does about it."""
    findings = [_filled(MendableForm, finding, fix=fix) for finding, fix in fixes.items()]
    return CheckForm(check=name, ok=all(each.severity == "info" for each in fixes), findings=findings)


def stats(health: Health, topics_shown: Mapping[str, TopicStats], *, totals: bool = False) -> Any:
    """``totals``: without the single shards."""
    seen = health.stats
    return _filled(
        StatsForm,
        seen,
        **{name: getattr(health, name) for name in _VERDICT},
        **_unread(StatsForm, seen),
        topics=topics(seen, topics_shown),
        shards=[] if totals else [_filled(ShardForm, shard) for shard in seen.shards],
        schedules=None if seen.schedules is None else _filled(SchedulesForm, seen.schedules),
    )


def serving(health: Health) -> Any:
    seen = health.stats
    return _filled(
        ServingForm,
        seen,
        shards=len(seen.shards),
        polling=[shard.shard for shard in seen.shards if shard.poller != "elsewhere"],
        failing=[shard.shard for shard in seen.shards if shard.poller == "failing"],
        dispatchers=len(seen.dispatchers),
        ok=health.ok,
        reasons=health.reasons,
        lateness=lateness(seen.lateness),
    )


FORMS = (
    *(TaskForm, ReceiptForm, GoneForm, PushLine, RestoreLine, ScheduleForm),
    *(TopicLine, MemberForm, VerdictForm, CheckForm, StatsForm, ServingForm),
)
"""All of them; the others are parts."""
