"""acl: the command that prints the least rules a user of the server needs, by role. The tests create users by them.

A server lets a user run a script only on keys that the user may write, and then checks each command inside by itself.
So EVAL and EVALSHA have a selector of their own, for all keys of the engine; and every other command writes the keys of
the role alone, and reads the rest (``%R~``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from operator import or_

import click

from shardq.cli.options import Given, command, shared
from shardq.cli.output import complain, say, tell
from shardq.core.layout.destinations import key_of
from shardq.core.layout.keys import field_patterns, patterns
from shardq.core.model.checks import check_name
from shardq.core.roles import FSYNCED, ROLES

ALL = "all"

_NOT_IN_RULES = re.compile(r"[\s\x00()]")
"""A rule ends at a blank, and a selector at a parenthesis."""
_GLOB = re.compile(r"([*?\[\]\\])")


def rules(roles: Iterable[str], *, name: str, lists: Iterable[str] = (), fsynced: bool = False) -> list[str]:
    """The words of ACL SETUSER after the user's name. They leave its passwords as they are.

    ``lists``: the lists and streams here that topics are forwarded to. ``fsynced``: True adds what
    durability="fsynced" needs, and who moves tasks on a server with an append-only file.
    """
    role = reduce(or_, [ROLES[each] for each in (ROLES if ALL in roles else roles)] + [FSYNCED] * fsynced)
    names = patterns(name)
    # ? matches any character in the place of one that a rule can't have
    escaped = ["~" + _NOT_IN_RULES.sub("?", _GLOB.sub(r"\\\1", key_of(each))) for each in lists]
    scripts_of = [*(f"~{pattern}" for pattern in names), *escaped, "+eval", "+evalsha"]
    return [
        *("on", "clearselectors", "resetkeys"),
        *(f"%R~{pattern}" for pattern in names),
        *(f"~{pattern}" for pattern in field_patterns(name, role.writes)),
        *escaped,
        *("resetchannels", *(f"&{pattern}" for pattern in names)),
        *("-@all", *(f"+{command}" for command in role.allowed)),
        f"({' '.join(scripts_of)})",
    ]


@command("Print the smallest ACL for a role.")
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
    """Print the ACL SETUSER line for a server's user with the rights that the ROLEs need on this engine, and no
    others. No server is asked.

    The line replaces the user's commands, keys and channels, and keeps its passwords. A new user has no password,
    and can't log in until you give it one. On a cluster, run the line on every node, replicas included.

    example:
      shardq acl producer --name orders
      shardq acl producer worker --name orders --user shop
      shardq acl dispatcher --name delays --to mail-queue | redis-cli
      redis-cli ACL SETUSER delays-dispatcher '>a long password'

    roles:
      producer    pushes; looks for, cancels and reschedules tasks by id;
                  cancels by tag; the first key needs an operator's limit
      worker      claims and settles tasks; declares and removes schedules
      dispatcher  `shardq run`, engine.start(): creates the engine, so start
                  `shardq run --create` first; moves tasks when they are due,
                  forwards them, moves them between shards
      operator    the dashboard, stats, health, doctor, fleet, topics, keys,
                  shards, resize, list, peek, forecast, get, cancel,
                  reschedule, requeue, purge, pause, resume, hold, limit,
                  configure, upgrade, forward
      viewer      serve --read-only, stats, health, fleet, topics, keys,
                  shards, list, peek, forecast, get: it can change nothing
      all         all of these

    `shardq serve` needs producer, worker and operator; its tokens say who may
    do what. No role may run `shardq engines`, which looks through all keys of
    the server.
    """
    name = given.engine_name
    check_name(name)
    user = user or "-".join((name, *dict.fromkeys(roles)))
    if re.search(r"[\s\x00]", user):
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
