"""All that can be wrong with an engine: one table, a row each. ``health()``, the log at opening, ``shardq doctor``, the
verdicts of ``top`` and the dashboard, the metric ``shardq_finding`` and the alert rules are views of it.

A look that finds something says its name and the values of its sentence; every sentence stands here. Cheap looks are
made by each ``health()``: those at counts and processes by ``health``, those at servers by ``servers``. Deep ones are
made by ``shardq doctor``, in ``doctor``. A new row also needs a fault that brings it, in ``tests/engine/faults.py``,
and a line of ``guide/findings.md``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, cast, get_args

import msgspec

from shardq.core.fleet.member import NOBODY_DISPATCHES, START_ONE

Severity = Literal["red", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)

EXAMPLES = 3
"""Findings of one name that are told; of the rest only the number is."""

FIX = ": `shardq doctor --fix`"
"""The end of a row's advice that the command carries out itself."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with an engine, or worth to know; as a string, what is wrong and what to do.

    >>> for finding in engine.health().findings:
    ...     print(finding.severity, finding.name, finding.text, finding.advice, finding.since)
    """

    name: str
    """The name of its row in the table of findings: it stays, the sentences may change."""
    severity: Severity
    """red: tasks are late, lost or refused; ``health()`` is false. warning: they may come to be. info: know it."""
    about: str = ""
    """The node, topic, key, process, schedule or table that it is about; empty: the engine."""
    text: str
    """What is wrong."""
    advice: str
    """What to do."""
    since: dt.datetime | None = None
    """The instant, in UTC, at which this process saw it first. None: it was there at the process's first look, so that
    nobody can tell.
    """

    def __str__(self) -> str:
        return f"{self.text}{'; ' if ': ' in self.text else ': '}{self.advice}" if self.advice else self.text


class Row(NamedTuple):
    """What can be wrong, and how it is told."""

    name: str
    look: Literal["cheap", "deep"]
    severities: tuple[Severity, ...]
    """The worst first; a look may choose another one of them."""
    check: str
    """The heading under which ``doctor`` tells it; of one that is no heading, what the finding is about is one."""
    text: str
    advice: str

    @property
    def fix(self) -> str:
        """What ``shardq doctor --fix`` does about it; empty where nothing can be mended without a risk."""
        return self.advice.removesuffix(FIX) if self.advice.endswith(FIX) else ""


WAITS = "topic {topic}: the oldest of {ready} has waited for {seconds:,.0f} s"


def _rows(table: str) -> dict[str, Row]:
    """Name → row, from lines of name | look | severities | check | text | advice."""
    found = {}
    for line in table.strip().splitlines():
        name, look, severities, check, text, advice = (cell.strip() for cell in line.split("|"))
        worst_first = tuple(cast("Severity", each) for each in severities.split())
        text = text.replace("WAITS", WAITS).replace("NOBODY_DISPATCHES", NOBODY_DISPATCHES)
        advice = advice.replace("START_ONE", START_ONE)
        found[name] = Row(name, cast("Literal['cheap', 'deep']", look), worst_first, check, text, advice)
    return found


TABLE: Mapping[str, Row] = _rows("""
unasked_server | cheap | warning | server | neither a url nor $SHARDQ_URL is given, so an embedded server of this \
user and machine is used, with its data in {path} | give the url of your server, or embedded:// to use this one; \
SHARDQ_EMBEDDED=never forbids it
other_versions | deep | warning | versions | this is shardq {version}, and processes of other versions run: {others} \
| bring all to one version
old_format | deep | warning | versions | the engine is stored in format {stored}, so that builds from before format \
{format} can use it | `shardq upgrade` raises it, when none of them runs any more
unseen_shards | cheap | red | coverage | {shards} could not be seen, the totals are without: {error} | see if that \
node runs, and can be reached from here
unseen_fleet | cheap | red warning | coverage | it can't be told who serves the shards: {error} | see if that node \
runs, and what its user may do
lost_slots | cheap | red | coverage | the cluster has declared the node {node} (master) failed, and no replica has \
taken over its slots {slots}: {away} is away | start that node again
failed_node | cheap | red | coverage | the cluster has declared the node {node} ({role}) failed | start it again, or \
remove it from the cluster (CLUSTER FORGET, on every other node)
unserved_slots | cheap | warning | coverage | {slots:,} slots of the cluster are served by no node: shards there \
can't be used | give them to a node (`CLUSTER ADDSLOTS`)
no_dispatcher | cheap | red warning | dispatchers | NOBODY_DISPATCHES | START_ONE
unserved_shards | cheap | red | dispatchers | {shards}: none of the {alive:,} dispatchers that live serves it | see \
their logs, and end one that hangs
failing_poller | cheap | red | dispatchers | {shards} can't be dispatched by this process: {error} | mend what the \
error names; the pollers try again by themselves
stuck_poller | cheap | red | dispatchers | {shards}: no step of this process's pollers for {seconds:,.0f} s | see \
what holds the process up, and restart it
unread_topology | cheap | red | dispatchers | {problem} | upgrade this process
overdue | cheap | red | tasks | {shards}: tasks are overdue, by up to {seconds:,.0f} s; either no dispatcher runs, or \
those that do can't keep up | `shardq run` starts one; `shardq top` shows servers that are busy
unserved_route | cheap | red | routes | topic {topic} is forwarded to {to}, but no running dispatcher serves it | see \
the logs of those that run, or start one (`shardq run`)
route | cheap | red warning | routes | topic {topic} can't be forwarded to {to}{by}: {error} | mend what the error \
names; its tasks are tried again
slow_route | cheap | red | routes | WAITS; it is forwarded to {to}, which does not keep up, or nobody serves it | see \
what that takes in a second (`shardq stats`), and that a dispatcher serves it
no_worker | cheap | red | topics | WAITS; no worker that runs serves the topic | start one that has a handler or a \
task for it
limit | cheap | red | topics | WAITS; its limit of {limit} lets no more through{to} | raise it, or end it (`shardq \
limit`)
held_places | cheap | red | topics | WAITS; tasks of topic {holder} hold the {places:,} places of the workers that \
serve it, the longest, {task}, for {running:,.0f} s | see what that one waits for, and give it a timeout
backlog | cheap | red | topics | WAITS; {workers} can't keep up | add workers, or raise their concurrency
deaf | cheap | red | topics | topic {topic}: ready tasks of {shards} wake nobody; the oldest has waited for \
{seconds:,.0f} s, and the process {process} waits for one all the time | it looks by itself within a minute; if this \
comes again, look for a process of the topic that stands still, and for a warning about SPUBLISH
stuck_key | cheap | red | topics | topic {topic}: a task of the key {key} has waited for {seconds:,.0f} s behind task \
{task}, which has been running for {running:,.0f} s | see what that one waits for, and give it a timeout
unknown_task | cheap | red | workers | topic {topic}: no worker that runs knows {what}; workers have given them back \
{count:,} times in {seconds:,.0f} s, and they wait | start a worker that has the function, or cancel them
worker | cheap | red | workers | {worker}: {problem} | see its log, and restart it if it does not go on
stuck_worker | cheap | red | workers | {worker} takes nothing more: each of its {concurrency:,} handlers has been \
running for longer than its timeout, or for ten minutes without one{longest} | see what it waits for, and give it a \
timeout
deaths | cheap | red | deaths | {tasks} died in the last {minutes:.0f} minutes{commonest} | see `shardq list --state \
dead --newest`
trimmed | cheap | red | deaths | dead tasks were removed {seconds:,.0f} s ago, before their time and for good, as \
more than dead_count were dead; {trimmed:,} in all by now | see `shardq list --state dead --newest`, and raise \
dead_count (`shardq configure`)
overdue_schedule | cheap | red | schedules | {schedules}: occurrences are overdue, and nobody has pushed them; either \
no dispatcher runs, or none of them can compute it | `shardq run` starts one; see the logs of those that run
unread_schedule | cheap | red | schedules | {schedules}: what is stored can't be read here; another version of shardq \
wrote it | upgrade, declare it anew, or remove it (`shardq every NAME --remove`)
failing_schedule | cheap | red | schedules | {problem} | mend what the error names, or remove it (`shardq every NAME \
--remove`)
outbox_stuck | cheap | red | outbox | an outbox relay of this process can't move rows of {table}: {problem} | mend \
what the error names; the rows wait in your database
outbox_unconfirmed | cheap | red | outbox | rows of the outbox {table} leave as soon as a server has answered, and a \
failover may lose their tasks: {problem} | bring the replicas back
outbox_missing | cheap | red | outbox | tasks of the outbox {table} may be missing: {problem} | have relays move the \
kept rows again, by that command
outbox_put_aside | cheap | red | outbox | {failed:,} rows of the outbox {table} were put aside | `shardq outbox \
failed` lists them, `shardq outbox retry` and `shardq outbox drop` retry and remove them
spool_broken | cheap | red | spool | {fault}; commands go to Redis only, while it can be reached | see the disk and \
the file
spool_waits | cheap | red | spool | {waiting:,} commands wait in the spool {path}{oldest}: {problem} | they are \
replayed when the error is gone
spool_refused | cheap | red | spool | {failed:,} commands of the spool {path} were refused | `shardq spool failed \
{path}` lists them, and retries or drops them
far | cheap | red | far | {by}{problem} | mend what the error names; what is there is loaded then
far_late | cheap | red | far | tasks that were due at {first:%Y-%m-%d %H:%M} UTC wait in the far store {database} \
still: no dispatcher loads them | see that one runs that has far=
far_unloaded | cheap | red | far | {dispatchers} can't load from the far store of this engine | give far= there, \
too
far_copies | cheap | red | far | the dispatchers {dispatchers} load from two databases, one a copy of the other: what \
is cancelled in one runs from the other | give all processes the same far=, and start those anew that had the other
far_own_ids | cheap | warning | far | {tasks:,} tasks wait in Redis that are due later than {seconds:,.0f} s: those \
with ids of your own do not go to the far store by engine.push | push them by shardq.outbox.push(…, id=…), whose relay \
puts them there
split_sentinels | cheap | red | sentinels | the sentinels disagree: {told} | look at those that are cut off from the \
others, or watch another service
few_sentinels | cheap | red | sentinels | {votes} of the {asked} sentinels of the URL tell a master, and a majority \
is more: this process can't know if its master was replaced, and what a replaced one takes is lost | start the others
second_master | cheap | red | sentinels | {rival} says that it is a master, and the sentinels name {master}: what a \
program still writes there is lost | end it, or see why the sentinels can't make it a replica, and set \
min-replicas-to-write
silent_sentinel | cheap | warning | sentinels | the sentinel {sentinel} tells no master: {why} | start it, or leave \
it out of the URL
unnamed_sentinels | cheap | warning | sentinels | the URL names {asked} of the service's {known} sentinels, and so no \
majority | name all of them
evicted | cheap | red warning | eviction | {node} has evicted keys since it started, and tasks of this engine may be \
among them (maxmemory-policy is {policy} now) | `shardq doctor --all` tells what is missing; this is said until the \
server is restarted, or told CONFIG RESETSTAT
evicts | cheap | warning | eviction | {node} evicts tasks without an error when it reaches its maxmemory of {bytes:,} \
bytes (maxmemory-policy {policy}) | set maxmemory-policy to noeviction
nearly_full | cheap | red | memory | {node} uses more than {part:.0%} of its maxmemory of {bytes:,} bytes, and when \
that is full it {then} | raise maxmemory, or see what holds so many tasks (`shardq topics`)
no_disk | cheap | warning | persistence | {node} keeps nothing on its disk, so a restart loses every task | set \
appendonly to yes
early_fsync | deep | info | persistence | {nodes} may answer WAITAOF before the disk has the write: with appendfsync \
everysec, durability='fsynced' and resizes wait until INFO shows that it has, for 1.2 seconds or longer | nothing; \
those take that much longer
silent_replica | cheap | red | replicas | the replica {replica} of {node} has confirmed nothing for {seconds} s: it \
hangs, or is cut off; a failover to it loses what it lacks | see its log and its network
new_replica | cheap | red | replicas | the replica {replica} of {node} is copying all its data, and can't stand in \
for it yet | wait; if it does so again and again, raise client-output-buffer-limit
clocks | cheap | red | clocks | the clock of {node} is {seconds:,.1f} s {ahead} that of {other} | run an NTP service \
on each machine
refused_info | cheap | warning | commands | settings that lose tasks, and what replicas have, can't be told: {error} \
| mend what the error names, or do without it
refused_wait | cheap | warning | commands | pushes with durability= are refused, and beside replicas no task is moved \
to another shard: {error} | mend what the error names, or do without it
refused_name | cheap | warning | commands | connections have no name in CLIENT LIST: {error} | mend what the error \
names, or do without it
refused_publish | cheap | warning | commands | {node} lets this process publish nothing, so what it pushes rings no \
poller and may be {seconds:g} s late: {error} | mend what the error names, or do without it
refused_subscribe | cheap | warning | commands | {node} lets this process hear nothing, so due tasks and changes are \
looked for every {ms:g} ms: {error} | mend what the error names, or do without it
held_resize | cheap | warning | tasks | {problem} | `shardq shards` shows how far the change is
few_clients | cheap | warning | clients | {node} takes {clients:,} clients, and may come to need {needed:,}, if this \
process has to serve every shard | raise its maxclients
few_files | cheap | warning | files | this process may have {allowed:,} files open, and may come to need {needed:,}, \
if it has to serve every shard (a connection for each, and for each server 1 to listen and up to 64 shared ones) | \
{remedy}
lost_shard | deep | red | epochs | {shards} was never opened, or its data was lost | tell it the topology, as the \
next command on it does: `shardq doctor --fix`
behind_shard | deep | red | epochs | {shards} missed the change to epoch {epoch} | tell it the topology, as the next \
command on it does: `shardq doctor --fix`
ahead_shard | deep | red | epochs | {shards} knows a newer topology than the one that is stored, which a failover may \
have lost | restore it from there, as any push does: `shardq doctor --fix`
strays | cheap | red | epochs | {shards}: out of use, and tasks or dedup windows are there that nobody looks for, as \
a server came back older | look for tasks there, too, and bring them home, as a dispatcher does when it starts, and \
each hour: `shardq doctor --fix`
misplaced | deep | red | places | shard {shard}: {wrong:,} of {ids:,} ids belong to another shard, like {examples}: \
they are dispatched, but no get, cancel or push finds them | move those of them that are scheduled or dead to where \
they belong, as a resize does: `shardq doctor --fix`
lost_task | deep | red | records | shard {shard}: {what} with a record in no list or set, like {examples}: nobody \
will ever get them | schedule them for now, so that they are dispatched at once: `shardq doctor --fix`
unlaned_task | deep | red | records | shard {shard}: {what} scheduled without its key knowing it, like {examples}: \
nobody will ever get them | have their keys know them, so that they are given when they are due: `shardq doctor \
--fix`
empty_id | deep | red | records | shard {shard}: {what} in a set without a record, like {examples}: their tasks are \
gone, by eviction or by hand | nothing; the ids are dropped when they are due, or trimmed
unread_field | deep | red | records | shard {shard}: {fields:,} fields of {key} can't be read, like {examples}: \
another program, or another version of shardq, has written them | upgrade, or remove them
unlooked | deep | red | of the look | {check}: it can't be looked at: {error} | mend what the error names, and look \
again
""")


def found(name: str, *, about: object = "", severity: Severity | None = None, **values: object) -> Finding:
    """Makes a finding of a row. ``severity``: if not the worst of the row."""
    row = TABLE[name]
    assert severity is None or severity in row.severities, "the row has it"
    return Finding(
        name=name,
        severity=severity or row.severities[0],
        about=str(about),
        text=row.text.format_map(values),
        advice=row.advice.format_map(values),
    )


def reds(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "red"]


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, then in the order of the table: some of each name, and how many more there are."""
    of_row: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in findings:
        of_row.setdefault((finding.name, finding.severity), []).append(finding)
    names = list(TABLE)
    keys = sorted(of_row, key=lambda key: (SEVERITIES.index(key[1]), names.index(key[0])))
    return [finding for key in keys for finding in _examples(of_row[key])]


def _examples(same: list[Finding]) -> Iterator[Finding]:
    yield from same[:EXAMPLES]
    if len(same) > EXAMPLES:
        name = same[0].name
        text = f"{len(same) - EXAMPLES:,} more of this kind ({name}), {len(same):,} in all"
        yield msgspec.structs.replace(same[0], text=text, about="", advice="", since=None)


NAMED = 5
"""The most shards, schedules and processes that a sentence names; it counts the others."""


def named(some: Sequence[int]) -> str:
    """Some shards, as a sentence names them.

    >>> named([3]), named(range(8))
    ('shard 3', 'shards 0, 1, 2, 3, 4 and 3 more')
    """
    return f"shard{'' if len(some) == 1 else 's'} {listed(map(str, some))}"


def listed(some: Iterable[str]) -> str:
    """The first of some words, and how many more there are."""
    words = list(some)
    return ", ".join(words[:NAMED]) + (f" and {len(words) - NAMED:,} more" if len(words) > NAMED else "")


class FirstSeen:
    """Knows when this process saw each finding first, without a look between that did not."""

    def __init__(self) -> None:
        self._seen: Mapping[tuple[str, str], dt.datetime | None] | None = None

    def dated(self, findings: Iterable[Finding], at: dt.datetime) -> list[Finding]:
        """The findings of a look, with their instants."""
        first, before = self._seen is None, self._seen or {}
        told = list(findings)
        self._seen = {key: before.get(key, None if first else at) for key in ((each.name, each.about) for each in told)}
        return [msgspec.structs.replace(each, since=self._seen[each.name, each.about]) for each in told]
