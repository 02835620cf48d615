"""acl: the command that prints the least rules a user of the server needs, by role. The tests create users by them.

The server checks the commands inside a script, too; they are read from the script's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import click

from shardq.cli.options import Given, command, shared
from shardq.cli.output import complain, say, tell
from shardq.core.layout.destinations import key_of
from shardq.core.layout.keys import patterns
from shardq.core.model.checks import check_name
from shardq.core.scripts import script


@dataclass(frozen=True, slots=True)
class Role:
    scripts: frozenset[str]
    """The scripts that it runs."""
    commands: frozenset[str]
    """The commands that it sends besides, as an ACL names them."""
    looks_only: bool = False
    """True for a role without the commands by which its scripts note what they saw: they do without."""

    def __or__(self, other: Role) -> Role:
        looks_only = self.looks_only and other.looks_only
        return Role(self.scripts | other.scripts, self.commands | other.commands, looks_only)

    @property
    def allowed(self) -> list[str]:
        """The commands to allow, sorted."""
        inner = (found for name in self.scripts for found in _INNER.findall(script(name).text))
        return sorted({*self.commands, *map(str.lower, inner)} - (_NOTING if self.looks_only else set()))


_NOTING = {"hset", "hdel"}

_INNER = re.compile(r"redis\.p?call\('([A-Z]+)'")


def _role(scripts: str, commands: str) -> Role:
    return Role(frozenset(scripts.split()), frozenset(commands.split()))


_CONNECTING = _role("", "client|setname select info cluster|slots cluster|myid asking role")
"""The same for a single server, for Sentinel (ROLE) and for a cluster (CLUSTER SLOTS and MYID, ASKING)."""

_READING = _CONNECTING | _role("", "eval evalsha hgetall hget hlen hscan spublish wait info")
# Every role but a viewer may meet a resharding and have to complete it: it puts tasks that are on their way where they
# go. So even a producer runs reserve, put and clear, and asks the replicas.
_EVERYBODY = _READING | _role("declare open reserve put clear seal", "")
_HEARING = _role("", "ssubscribe sunsubscribe ping")
_SETTLING = _role("claim settle extend", "")
_BY_ID = _role("get cancel cancel_tag reschedule", "")
# Who pauses or removes a schedule takes back what was pushed of it, and a worker declares those of its tasks.
_SCHEDULING = _role("schedules set_schedule push_unique cancel reschedule", "hkeys")

_LOOKING = _role(
    "peek page page_ready forecast fleet get schedules",
    "exists zcard zrangebyscore time getrange hkeys hmget memory|usage cluster|nodes"
    " hrandfield zrandmember hstrlen zmscore lpos llen lrange pubsub|shardnumsub",
)

ROLES = {
    "producer": _EVERYBODY | _BY_ID | _SCHEDULING | _role("push push_unique", ""),
    "worker": _EVERYBODY
    | _HEARING
    | _SETTLING
    | _SCHEDULING
    | _role("wake permit release renew report fleet", "exists time zrangebyscore"),
    # As forwarded topics go elsewhere, it is a consumer of these, too.
    "dispatcher": _EVERYBODY
    | _HEARING
    | _SETTLING
    | _SCHEDULING
    | _role("wake permit release renew get", "")
    | _role("heartbeat fleet dispatch forward trim peek", "exists llen lpush rpush time zrangebyscore cluster|nodes")
    | _role("history", "getrange")
    | _role("take remember forget stock swept unmark", "hmget zrange zscan"),
    "operator": _EVERYBODY
    | _BY_ID
    | _SCHEDULING
    | _LOOKING
    | _role("push purge requeue restore unmark", "zadd lpush ltrim"),
    "viewer": replace(_READING | _LOOKING, looks_only=True),
}  # fmt: skip
"""Name → role."""

ALL = "all"

_NOT_IN_RULES = re.compile(r"[\s\x00]")
_GLOB = re.compile(r"([*?\[\]\\])")


FSYNCED = _role("", "waitaof")
"""Not in a role: Redis 7.0 refuses a rule about a command that it does not know."""


def rules(roles: Iterable[str], *, name: str, lists: Iterable[str] = (), fsynced: bool = False) -> list[str]:
    """The words of ACL SETUSER after the user's name. They leave its passwords as they are.

    ``lists``: the lists and streams here that topics are forwarded to. ``fsynced``: True adds what
    durability="fsynced" needs, and who moves tasks on a server with an append-only file.
    """
    role = reduce(or_, [ROLES[each] for each in (ROLES if ALL in roles else roles)] + [FSYNCED] * fsynced)
    names = patterns(name)
    # a rule can't have a blank; ? matches any character in its place
    escaped = [_NOT_IN_RULES.sub("?", _GLOB.sub(r"\\\1", key_of(each))) for each in lists]
    return [
        "on",
        *("resetkeys", *(f"~{pattern}" for pattern in (*names, *escaped))),
        *("resetchannels", *(f"&{pattern}" for pattern in names)),
        *("-@all", *(f"+{command}" for command in role.allowed)),
    ]


@command("Print the least ACL for a role.")
@click.argument("roles", metavar="ROLE...", nargs=-1, required=True, type=click.Choice([*ROLES, ALL]))
@click.option("--user", metavar="USER", help="The user on the server. Default: the engine's name and the roles.")
@click.option(
    "--to",
    "lists",
    metavar="NAME",
    multiple=True,
    help="A list here, or stream:NAME, that topics are forwarded to; may be repeated.",
)
@click.option(
    "--fsynced", is_flag=True, help="Allow WAITAOF, for --durability fsynced and for moves; Redis 7.2, Valkey."
)
@shared
def acl(given: Given, roles: tuple[str, ...], user: str | None, lists: tuple[str, ...], fsynced: bool) -> None:
    """Print the ACL SETUSER line for a user of the server that may do what the ROLEs need with the engine of that
    name, and nothing else. No server is asked.

    The line gives the user its commands, keys and channels in place of those that it had, and leaves its passwords: a
    new user has none, and can't be used before it gets one. On a cluster give it to every node, replicas included.

    example:
      shardq acl producer --name orders
      shardq acl producer worker --name orders --user shop
      shardq acl dispatcher --name delays --to mail-queue | redis-cli
      redis-cli ACL SETUSER delays-dispatcher '>a long password'

    roles:
      producer    pushes; looks for, cancels and reschedules tasks by id;
                  cancels by tag
      worker      claims and settles tasks
      dispatcher  `shardq run`, engine.start(): moves tasks when they are due,
                  forwards them, moves them between shards
      operator    dashboard, stats, health, doctor, fleet, topics, shards,
                  resize, list, peek, forecast, get, cancel, reschedule, requeue,
                  purge, pause, resume, limit, configure, upgrade, forward
      viewer      a dashboard with --read-only, stats, health, fleet, topics,
                  shards, list, peek, forecast, get: it can change nothing
      all         all of these
    """
    name = given.engine_name
    check_name(name)
    user = user or "-".join((name, *dict.fromkeys(roles)))
    if _NOT_IN_RULES.search(user):
        raise click.UsageError(f"--user {user!r}: the name of a user has no blanks")
    if lists and not {"dispatcher", ALL} & set(roles):
        raise click.UsageError("--to goes with the role dispatcher, which puts tasks on that list")
    if fsynced and set(roles) == {"viewer"}:
        raise click.UsageError("--fsynced goes with every role but viewer, which writes nothing")
    words = rules(roles, name=name, lists=lists, fsynced=fsynced)
    if given.json:
        tell({"user": user, "rules": words})
    else:
        say(" ".join(("ACL", "SETUSER", user, *words)))
        complain(f"give it a password, if it has none: ACL SETUSER {user} '>a long password'")
