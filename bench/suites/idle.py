"""The cost of an engine with nothing to do: 64 shards full of tasks that are due much later, and their pollers.

INFO counts all commands, also those inside scripts. MONITOR shows which of them are the heartbeat's, by the script to
which they belong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.figures import Figure
from bench.loads import FAR_S, spread_tasks
from bench.monitor import Monitor
from bench.stand import Stand, Suite
from shardq.core.dispatcher.poller import LONGEST_SLEEP_S
from shardq.core.scripts import script

SHARDS = 64

SETTLE_S = 2.0
"""The time after the start in which every poller makes its first step and goes to sleep."""

NOT_ITS = {"info", "config|resetstat", "config|set", "monitor", "replconf"}
"""Commands of the measurement itself, and of replication."""


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(5_000, 100_000, 1_000_000)
    # two sleeps of the pollers: a shorter look may see none of their steps, or all
    seconds = stand.pick(3.0, 2 * LONGEST_SLEEP_S)
    with stand.engine(shards=SHARDS) as engine:
        stand.say(f"pushing {count:,} tasks into {SHARDS} shards")
        engine.push_many(spread_tasks(count, at_least_s=FAR_S))
        engine.start()
        time.sleep(SETTLE_S)
        stand.say(f"watching it idle for {seconds:.0f} s")
        stand.reset_stats()
        with Monitor(stand.masters) as monitor, stand.metering() as spent:
            time.sleep(seconds)
        commands = sum(calls for name, calls in stand.commands().items() if name not in NOT_ITS)
    heartbeats = _inside(monitor, script("heartbeat").sha)
    about = f"idle, {SHARDS} shards, {count:,} pending"
    yield Figure(
        f"{about}: commands of each shard",
        (commands - heartbeats) / seconds / SHARDS,
        "a second",
        reference="as INFO counts, but for the heartbeat; aim: ≤ 0.25",
    )
    yield Figure(f"{about}: commands of the heartbeat", heartbeats / seconds, "a second", reference="aim: ≤ 2.5")
    yield Figure(f"{about}: CPU of the process", 100 * spent.client_s / seconds, "% of a core", reference="aim: < 2")
    yield Figure(f"{about}: CPU of the servers", 100 * spent.server_s / seconds, "% of a core")


SUITE = Suite("idle", "what 64 shards with nothing to do cost", _measure)


def _inside(monitor: Monitor, sha: str) -> int:
    """Returns the number of commands of one script, the EVALSHA itself included."""
    count, ours = 0, False
    for command in monitor.executed():
        if not command.in_script:
            ours = command.words[0].upper() == b"EVALSHA" and command.words[1] == sha.encode()
        count += ours
    return count
