"""Says if a process lives and serves: the answers to ``/livez`` and ``/readyz``. No I/O: what it judges is known here.

An outage of the servers is no reason to restart a process: it tries again by itself. So a process lives while its
threads run, and is ready while they get through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from shardq.dispatcher.poller import STUCK_S
from shardq.engine.base import EngineBase
from shardq.engine.parts import dispatcher_of, is_open, processors_of

Duty = Literal["pollers", "worker", "relay"]
"""The work for which a process was started."""


def not_alive(engine: EngineBase) -> Iterator[str]:
    """The reasons why only a new process would help, a sentence each."""
    dispatcher = dispatcher_of(engine)
    for shard, report in (dispatcher.reports() if dispatcher else {}).items():
        if report.state == "stopped":
            yield f"the poller of shard {shard} has ended"
        elif report.state != "failing" and report.idle_s > STUCK_S:
            yield f"the poller of shard {shard} has completed no step for {report.idle_s:,.0f} s"
    for processor in processors_of(engine):
        for reason in processor.ended:
            yield f"worker: {reason}"


def not_ready(engine: EngineBase, duty: Duty) -> Iterator[str]:
    """The reasons why the process does not serve now, a sentence each."""
    if not is_open(engine):
        yield "not connected yet, or stopping: the number of shards is not known"
        return
    if duty == "pollers":
        dispatcher = dispatcher_of(engine)
        if dispatcher is None:
            yield "no pollers run: they are starting, or stopping"
            return
        for shard, report in dispatcher.reports().items():
            if report.state == "failing":
                yield f"shard {shard} can't be dispatched: {report.error}"
            elif report.state == "starting":
                yield f"the poller of shard {shard} has not completed its first step"
    elif duty == "relay":
        relays = [relay.stats() for relay in list(engine.relays)]
        if not relays:
            yield "no outbox relay runs: it is starting, or stopping"
        for relay in relays:
            if relay.problem:
                yield f"rows of the outbox {relay.table} can't be moved: {relay.problem}"
    else:
        processors = [processor for processor in processors_of(engine) if processor.at_work]
        if not processors:
            yield "no worker runs: it is starting, or stopping"
        for processor in processors:
            yield from processor.problems
