"""The roles of the users of a server, as an ACL knows them: the scripts that a role runs, the commands that it sends
besides, and the keys that it writes. ``shardq acl`` prints them; an error of a refused user names the roles that may.

The server checks the commands inside a script, too; they are read from the script's text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shardq.core.scripts import script


@dataclass(frozen=True, slots=True)
class Role:
    scripts: frozenset[str]
    """The scripts that it runs."""
    commands: frozenset[str]
    """The commands that it sends besides, as an ACL names them."""
    writes: frozenset[str]
    """The keys that it writes, by their fields in ``ShardKeys`` and ``ControlKeys``; it reads all others."""
    looks_only: bool = False
    """True for a role that may not run the commands by which scripts note what they saw. They work without them."""

    def __or__(self, other: Role) -> Role:
        looks_only = self.looks_only and other.looks_only
        return Role(
            self.scripts | other.scripts, self.commands | other.commands, self.writes | other.writes, looks_only
        )

    @property
    def allowed(self) -> list[str]:
        """The commands to allow, sorted."""
        inner = (found for name in self.scripts for found in _INNER.findall(script(name, keyed=True).text))
        return sorted({*self.commands, *map(str.lower, inner)} - (_NOTING if self.looks_only else set()))


_NOTING = {"hset", "hdel"}

_INNER = re.compile(r"redis\.p?call\('([A-Z]+)'")


def _role(scripts: str, commands: str, writes: str = "") -> Role:
    return Role(frozenset(scripts.split()), frozenset(commands.split()), frozenset(writes.split()))


_CONNECTING = _role("", "client|setname select info cluster|slots cluster|myid asking role")
"""The same for a single server, for Sentinel (ROLE) and for a cluster (CLUSTER SLOTS and MYID, ASKING)."""

_READING = _CONNECTING | _role("learn", "hgetall hget hlen hscan spublish wait info")
# Every role but a viewer may meet a resharding and have to complete it: it puts tasks that are on their way where they
# go. So even a producer runs reserve, put and clear, and asks the replicas.
_EVERYBODY = _READING | _role(
    "open reserve put clear seal",
    "",
    "meta due task leased lease dead why ghost seen moved staged topics copy keys placed alarms rests holds gates",
)
# Lists of ready tasks, and who waits for them, are written by those who give tasks out, take them, or remove all.
_GIVING = _role("", "", "ready waiting looks")
# Only these create the engine, restore what a server lost of its topology, pause, route, limit, configure and resize.
_COMMANDING = _role("declare", "lpush ltrim", "topology settings edits changes")
_HEARING = _role("", "ssubscribe sunsubscribe ping")
_SETTLING = _role("claim settle extend", "", "limits ends")
_BY_ID = _role("get cancel cancel_tag reschedule", "", "ends")
# Who pauses or removes a schedule takes back what was pushed of it, and a worker declares those of its tasks.
_SCHEDULING = _role("schedules set_schedule push_unique cancel reschedule", "hkeys", "schedules ends")

_LOOKING = _role(
    "peek page page_ready page_lane forecast fleet get schedules tally check stock",
    "exists zcard zscan zrangebyscore time getrange hkeys hmget memory|usage cluster|nodes"
    " hrandfield zrandmember llen lrange pubsub|shardnumsub",
)

ROLES = {
    "producer": _EVERYBODY
    | _BY_ID
    # It notes what it cancelled by tag.
    | _role("push push_unique adopt schedules", "hkeys lpush ltrim", "changes"),
    "worker": _EVERYBODY
    | _GIVING
    | _HEARING
    | _SETTLING
    | _SCHEDULING
    | _role("wake permit release renew report fleet", "exists time zrangebyscore llen lrange", "workers reports"),
    # As forwarded topics go elsewhere, it is a consumer of these, too.
    "dispatcher": _EVERYBODY
    | _GIVING
    | _COMMANDING
    | _HEARING
    | _SETTLING
    | _SCHEDULING
    | _role("wake permit release renew get", "")
    | _role("heartbeat fleet dispatch forward trim retire peek", "exists llen rpush time zrangebyscore cluster|nodes")
    | _role("total history", "getrange", "members reports unreached history")
    | _role("take remember forget stock swept unmark", "hmget zrange zscan")
    | _role("lanes close open_lanes check restore", "zrangebylex"),
    "operator": _EVERYBODY
    | _GIVING
    | _COMMANDING
    | _BY_ID
    | _SCHEDULING
    | _LOOKING
    | _role("push adopt purge requeue restore unmark lanes hold remember", "zadd"),
    "viewer": replace(_READING | _LOOKING, looks_only=True),
}  # fmt: skip
"""Name → role."""

FSYNCED = _role("", "waitaof")
"""Not in a role: Redis 7.0 refuses a rule about a command that it does not know."""


def roles_of(name: str) -> list[str]:
    """The roles that run a script."""
    return [each for each, role in ROLES.items() if name in role.scripts]
