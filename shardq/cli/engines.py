"""engines: the command that lists the engines of a server, and removes one."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass

import click

from shardq import Engine
from shardq.cli.options import Given, command, sharing
from shardq.cli.output import complain, say, set_up_logging, tell
from shardq.cli.table import show
from shardq.core.calls.control import find_keys, remove_key
from shardq.core.drivers.sync import Driver
from shardq.core.layout.formats import WrittenBeforeFirst
from shardq.core.layout.keys import control_keys, engine_named, patterns, topologies
from shardq.core.layout.slots import SLOTS
from shardq.core.model.checks import check_name
from shardq.engine.around import STATS_TIMEOUT_S, Column, EngineAccess, View, age, connected, counted
from shardq.errors import ShardqError


@dataclass(frozen=True, slots=True)
class Found:
    """An engine of a server. What could not be read is None."""

    name: str
    shards: int | None = None
    tasks: int | None = None
    processes: int | None = None
    age: float | None = None
    """In seconds."""
    trouble: str = ""
    is_of_before: bool = False
    """True if a build of before the first release has written it: nothing of it is read."""


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


COLUMNS = (
    Column[Found]("name", lambda each: each.name, text=True),
    Column[Found]("shards", lambda each: _number(each.shards)),
    Column[Found]("tasks", lambda each: _number(each.tasks)),
    Column[Found]("processes", lambda each: _number(each.processes)),
    Column[Found]("age", lambda each: age(each.age)),
)


@command("The engines on a server; removes one.")
@click.option("--remove", metavar="NAME", help="Remove this engine with all of its tasks.")
@click.option("--yes", is_flag=True, help="Remove it without a question.")
@sharing(url="The server. Default: $SHARDQ_URL, else an embedded server of this user.")
def engines(given: Given, remove: str | None, yes: bool) -> int:
    """List the engines on a server: their shards, tasks in all states, live dispatchers and workers, and age. A
    misspelt name creates an engine of its own, which stays until you remove it.

    --remove asks first, and refuses while a dispatcher or a worker of the engine lives. Programs that only push are not
    seen: stop them before, or they create the engine again. Tasks in a far store, and lists to which tasks were
    forwarded, stay. What a build of before the first release has written is removed without being read: end all of its
    processes before.

    The command looks through all keys of the server, by SCAN. No role of `shardq acl` may do that: run it as the
    server's administrator, or as a user with +scan and, for --remove, with +unlink on the keys of the engine.

    example:
      shardq engines
      shardq engines --remove ordres
      shardq engines --json | jq -r 'select(.tasks == 0 and .processes == 0).name'
    """
    set_up_logging(verbose=given.verbose)
    if yes and remove is None:
        raise click.UsageError("--yes goes with --remove NAME")
    url = EngineAccess(Engine(given.engine_url)).options.url
    with connected(EngineAccess(Engine(url, timeout=STATS_TIMEOUT_S)).options) as driver:
        if remove is not None:
            return _remove(given, driver, url, remove, yes=yes)
        found = [_look(url, name) for name in sorted(names(driver))]
    shown = ("name", "shards", "tasks", "processes", "age")
    show(given, View(COLUMNS, found), lambda each: {field: getattr(each, field) for field in shown})
    for each in found:
        if each.trouble:
            complain(f"{each.name}: {each.trouble}")
    return 1 if any(each.trouble for each in found) else 0


def names(driver: Driver, until: float = math.inf) -> set[str]:
    """The engines of a server; those that are found ``until`` then, by the monotonic clock."""
    return set(filter(None, map(engine_named, _scan(driver, topologies(), until))))


def _look(url: str | None, name: str) -> Found:
    try:
        with Engine(url, name=name, timeout=STATS_TIMEOUT_S) as engine:
            stats, fleet, topology = engine.stats(), engine.fleet(), engine.topology
            tasks = None if stats.is_blind else stats.scheduled + stats.held + stats.ready + stats.leased + stats.dead
            since = max(0.0, time.time() - topology.created / 1000)
            return Found(name, topology.shards, tasks, len(fleet), since)
    except WrittenBeforeFirst as exc:
        return Found(name, trouble=str(exc), is_of_before=True)
    except ShardqError as exc:
        return Found(name, trouble=str(exc))


def _remove(given: Given, driver: Driver, url: str | None, name: str, *, yes: bool) -> int:
    check_name(name)
    if not _keys_of(driver, name):
        raise ShardqError(f"there is no engine named {name!r} there; `shardq engines` lists those that are")
    found = _look(url, name)
    if found.trouble and not found.is_of_before:
        raise ShardqError(f"it can't be told whether processes of {name!r} live: {found.trouble}")
    if found.processes:
        raise ShardqError(
            f"{name!r} has dispatchers or workers that live ({found.processes:,}): stop them first; "
            f"`shardq fleet --name {name}` lists them"
        )
    if not yes:
        if not (sys.stdin and sys.stdin.isatty()):
            raise click.UsageError("there is no terminal to ask for confirmation on: add --yes")
        tasks = "its tasks" if found.tasks is None else counted(found.tasks, "task")
        if not click.confirm(f"Remove the engine {name!r} with {tasks}?", err=True):
            say("nothing removed")
            return 1
    # The topology last: what is interrupted is still listed, and can be removed.
    topology = control_keys(name).topology
    for key in _keys_of(driver, name) - {topology}:
        driver.call(remove_key(key))
    driver.call(remove_key(topology))
    if given.json:
        tell({"removed": name})
    else:
        say(f"the engine {name!r} is removed")
    return 0


def _keys_of(driver: Driver, name: str) -> set[str]:
    return {key for pattern in patterns(name) for key in _scan(driver, pattern)}


def _scan(driver: Driver, pattern: str, until: float = math.inf) -> list[str]:
    """The keys of all masters that match; those that are found ``until`` then."""
    keys: list[str] = []
    for slots in driver.slot_groups(range(SLOTS)).values():
        cursor = 0
        while True:
            cursor, some = driver.call(find_keys(slots[0], cursor, pattern))
            keys += some
            if not cursor or time.monotonic() > until:
                break
    return keys
