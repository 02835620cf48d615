"""The counters of a forwarded topic's sender in one process: in ``stats()``, and in the process's report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

CircuitState = Literal["closed", "open", "half-open"]


class SinkStats(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of what a process has sent of a forwarded topic to its sink, since the route was set or the process
    started.

    >>> for sink in engine.stats().sinks:
    ...     print(sink.topic, sink.to, sink.circuit, sink.sent, sink.failed, sink.retried, sink.buried, sink.error)
    """

    topic: str
    to: str
    """The URL, without its secrets."""
    circuit: CircuitState = "closed"
    """``open``: the sink is down, and nothing is sent for a moment; ``half-open``: a few tasks are tried."""
    sent: int = 0
    """Tasks that the sink has taken."""
    failed: int = 0
    """Tries that it has not taken, for whatever reason."""
    retried: int = 0
    """Those of them that count as an attempt of the task, which is tried again later."""
    buried: int = 0
    """Tasks that are dead: the sink refused them for good, or they had no attempt left."""
    error: str = ""
    """Why the circuit is not closed; empty while it is."""


def together(reports: Iterable[SinkStats]) -> tuple[SinkStats, ...]:
    """One for each topic, of what several processes have sent of it: the worse circuit, and the sums of the counters.

    >>> one, other = (SinkStats(topic="mail", to="nats://n", sent=sent) for sent in (2, 3))
    >>> together([one, other])[0].sent
    5
    """
    added: dict[str, SinkStats] = {}
    for sink in reports:
        known = added.get(sink.topic)
        added[sink.topic] = sink if known is None else _added(known, sink)
    return tuple(sink for _, sink in sorted(added.items()))


def _added(one: SinkStats, other: SinkStats) -> SinkStats:
    worse = other if one.circuit == "closed" else one
    sums = {name: getattr(one, name) + getattr(other, name) for name in ("sent", "failed", "retried", "buried")}
    return msgspec.structs.replace(worse, **sums)
