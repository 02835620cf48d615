"""Traffic as the servers see it: calls of scripts, and wake-ups of waiting processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from redis.client import PubSub

from shardq import Engine
from tests.support.servers import Servers, keys_of


def script_calls(servers: Servers) -> int:
    """Scripts run for clients, by all masters, since they started."""
    return sum(
        int(stats[command]["calls"])
        for stats in servers.ask_all("INFO", "commandstats")
        for command in ("cmdstat_evalsha", "cmdstat_eval")
        if command in stats
    )


def commands_run(servers: Servers) -> int:
    """Those of all masters since they started, with those of scripts."""
    return sum(int(stats["calls"]) for said in servers.ask_all("INFO", "commandstats") for stats in said.values())


def waiting(servers: Servers, name: str, shards: int, topic: str = "") -> set[str]:
    """The processes whose names are in the waiting set of every shard."""
    names = [
        {name.decode() for name in servers.ask(keys.slot, "ZRANGE", keys.waiting(topic), 0, -1)}
        for keys in keys_of(name, shards)
    ]
    return set.intersection(*names)


def unfinished(servers: Servers, name: str, shards: int) -> int:
    """Tasks of the default topic in any state but dead, counted without a script."""
    count = 0
    for keys in keys_of(name, shards):
        # at one instant: a task that goes back from one to another must not be missed in both
        with servers.master(keys.slot).pipeline(transaction=True) as look:
            look.zcard(keys.due)
            look.llen(keys.ready(""))
            look.zcard(keys.leased)
            count += sum(look.execute())
    return count


class WakeUps:
    """Subscribes to the wake-up channels of processes."""

    def __init__(self, subscriptions: list[PubSub]) -> None:
        self._subscriptions = subscriptions
        self.heard: list[str] = []
        """The process of each wake-up."""

    def look(self) -> Self:
        """Reads what has come since the last look."""
        for subscription in self._subscriptions:
            while message := self._next(subscription):
                if message["type"] == "smessage":
                    self.heard.append(message["channel"].decode().rpartition("/")[2])
        return self

    @staticmethod
    def _next(subscription: PubSub) -> Any:
        return subscription.get_sharded_message(timeout=0.01)


@contextmanager
def wake_ups(servers: Servers, engine: Engine, processes: set[str]) -> Iterator[WakeUps]:
    """Collects every wake-up of these processes during the block."""
    with ExitStack() as stack:
        by_master: dict[Any, list[str]] = {}
        for keys in keys_of(engine.name, engine.topology.shards):
            by_master.setdefault(servers.master(keys.slot), []).extend(map(keys.wake, processes))
        subscriptions = []
        for master, channels in by_master.items():
            subscription = stack.enter_context(master.pubsub())
            for channel in channels:
                # one by one: the channels of two slots can't share a command
                subscription.ssubscribe(channel)
                assert subscription.get_sharded_message(timeout=30.0)["type"] == "ssubscribe"
            subscriptions.append(subscription)
        yield WakeUps(subscriptions)
