"""The costs that ``shardq plan`` goes by, taken from the figures of the report. ``bench.reporting`` writes them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.nodes.model import LIFE
from bench.reporting.inputs import Figure, Nodes, Results
from shardq.features.planning import Costs, Curve

BACKLOG_SHARDS = 16
SIZES_SHARDS = 16

DISPATCHED_PER_S = "dispatch of "
IDLE = "due → claimed by a waiting consumer"


def costs_of(results: Results, nodes: Nodes) -> Costs:
    """Raises LookupError when a figure is missing."""
    claims = [results_of(results, "consume", "claim(500) and ack: server CPU").value]
    claims += [each.value for each in results.of("fleet") if each.name.endswith(": server CPU")]
    claims += [each.work[LIFE[2]].server_us for each in nodes.measured]
    memory = _curve(results.curve("memory: bytes"), "bytes")
    usual = dict(memory)[100]
    return Costs(
        measured=f"{results.facts['server']}; {results.facts['machine']}; shardq at {results.facts['commit']}",
        push_one=results_of(results, "push", "push, one at a time: server CPU").value,
        push_many=_starting(results, "push", "push_many of ", ": server CPU").value,
        push=_backlog(results, "push"),
        dispatch=_backlog(results, "dispatch"),
        forward=_starting(results, "dispatch", "dispatch and forward of ", ": server CPU").value,
        claim=max(claims),
        push_by_bytes=_multiples(results.curve("sizes: push_many")),
        claim_by_bytes=_multiples(results.curve("sizes: claim + ack")),
        client_push_one=results_of(results, "push", "push, one at a time: client CPU").value,
        client_push_many=_starting(results, "push", "push_many of ", ": client CPU").value,
        client_dispatch=max(each.work["dispatch"].client_us for each in nodes.measured),
        client_work=max(
            each.value
            for each in results.of("consume")
            if each.name.startswith("worker") and each.name.endswith(": client CPU")
        ),
        memory=memory,
        memory_spread=max(each.value for each in results.curve("memory: tasks of a shard")) / usual,
        late=_late(results),
    )


def results_of(results: Results, suite: str, name: str) -> Figure:
    return _starting(results, suite, name, name)


def _starting(results: Results, suite: str, begins: str, ends: str) -> Figure:
    for figure in results.of(suite):
        if figure.name.startswith(begins) and figure.name.endswith(ends):
            return figure
    raise LookupError(f"the suite {suite} has no figure {begins!r}…{ends!r}")


def _backlog(results: Results, work: str) -> Curve:
    points = [each for each in results.curve(f"backlog: {work}") if each.at["shards"] == BACKLOG_SHARDS]
    return _curve(points, "pending")


def _curve(points: Sequence[Figure], by: str) -> Curve:
    if not points:
        raise LookupError(f"a curve by {by} is missing")
    return tuple(sorted((float(each.at[by]), each.value) for each in points))


def _multiples(points: Sequence[Figure]) -> Curve:
    """Rates by payload as multiples of the smallest payload's cost. Client and server work at a time, so where the
    client was the limit the server's true cost is less.
    """
    rates = _curve([each for each in points if each.at["shards"] == SIZES_SHARDS], "bytes")
    return tuple((size, rates[0][1] / rate) for size, rate in rates)


def _late(results: Results) -> tuple[tuple[float, float, float], ...]:
    dispatched = _starting(results, "dispatch", DISPATCHED_PER_S, "shards").value
    idle = results_of(results, "lateness", IDLE)
    points = [(0.0, idle.percentiles["p50"], idle.percentiles["p99"])]
    for each in results.curve("flow"):
        points.append((float(each.at["per_s"]) / dispatched, each.percentiles["p50"], each.percentiles["p99"]))
    return tuple(sorted(points))
