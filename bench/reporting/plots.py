"""The plots and their figures. Each function returns the plots that its input has figures for, perhaps none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.outcome import HIGHER_IS_BETTER, Outcome
from bench.reporting.drawing import Bar, Line, Range, bars, compact, lines, ranges
from bench.reporting.inputs import Figure, Nodes, Results, distinct, steps

OURS = "shardq"

PEER_COLUMNS = {
    "schedule_per_s": ("Tasks scheduled per second, one process", "Higher is better."),
    "drain_per_s": ("Due tasks handled per second, one worker process", "Higher is better."),
    "bytes_per_task": ("Server memory per pending task of 100 B, in bytes", "Lower is better."),
    "idle_commands_per_s": ("Server commands per second of an idle worker", "Lower is better."),
}

LEAST_MS = 0.1
"""The least lateness on a log scale. Less is drawn as this."""

POWERS_OF_TWO = (8_192, 16_384, 32_768)
"""The tables of a shard double here, among the fills that are measured."""


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    """The name of its file."""
    title: str
    caption: str
    svg: str


def limits(results: Results) -> list[Plot]:
    rows = []
    for suite, begins, label in (
        ("push", "push, one at a time", "push, one at a time ÷ SET"),
        ("push", "push_many", "push_many ÷ C client"),
        ("push", "push_iter", "push_iter ÷ C client"),
        ("dispatch", "dispatch of", "dispatch ÷ C client"),
        ("dispatch", "dispatch and forward", "dispatch, forward ÷ C client"),
    ):
        figure = results.first(suite, begins)
        if figure is not None and figure.ratio is not None:
            aim = re.search(r"aim: ≥ ([\d.]+)", figure.reference)
            note = f"{figure.value:,.0f} {figure.unit}; {figure.reference}"
            rows.append(Bar(label, figure.ratio, note, aim=float(aim[1]) if aim else None))
    if not rows:
        return []
    title = "Rate of the engine ÷ rate of the limit"
    caption = "Dashed lines mark the aim. The C client, redis-benchmark, sends the same script to the same server."
    return [Plot("limits", title, caption, bars(title, rows, written=lambda ratio: f"{ratio:.2f}"))]


def peers(found: Outcome) -> list[Plot]:
    plots = []
    for column, (title, better) in PEER_COLUMNS.items():
        rated = [(value, peer.name) for peer in found.peers if (value := peer.rows.get(column)) is not None]
        if rated:
            rated.sort(reverse=column in HIGHER_IS_BETTER)
            rows = [Bar(name, value, strong=name == OURS) for value, name in rated]
            plots.append(Plot(f"peers-{column.split('_')[0]}", title, better, bars(title, rows)))
    late = []
    for peer in found.peers:
        p50, p99 = peer.rows.get("lateness_p50_ms"), peer.rows.get("lateness_p99_ms")
        if p50 is not None and p99 is not None:
            late.append(Range(peer.name, (max(p50, 0.01), max(p99, 0.01)), strong=peer.name == OURS))
    if late:
        late.sort(key=lambda row: row.marks)
        title = "Lateness on an idle system in ms, from due to the handler"
        caption = "The dot is p50, the ring p99, on a log scale. Lower is better."
        plots.append(
            Plot(
                "peers-lateness",
                title,
                caption,
                ranges(title, late),
            )
        )
    return plots


def lateness(results: Results) -> list[Plot]:
    rows = []
    for figure in results.of("lateness", "flow", "burst", "expand"):
        shares = figure.percentiles
        if figure.unit == "ms" and {"p50", "p99", "max"} <= shares.keys():
            marks = tuple(max(shares[share], 0.01) for share in ("p50", "p99", "max"))
            rows.append(Range(_short(figure.name), marks, figure.reference, strong=figure.suite != "burst"))
    if not rows:
        return []
    title = "Lateness, and pauses of other callers, in ms"
    caption = "The dot is p50, the ring p99, the tick the longest. The scale is log. Grey: other callers in a burst."
    return [Plot("lateness", title, caption, ranges(title, rows))]


def _short(name: str) -> str:
    """Shortens a name so that it fits beside a plot."""
    name = re.sub(r", \d+% of what can be dispatched", "", name)
    for long, short in (
        ("due → handler of a worker (function)", "due → handler, function"),
        ("due → handler of a worker (coroutine)", "due → handler, coroutine"),
        ("due → claimed by a waiting consumer", "due → claimed"),
        (" tasks/s fall due", "/s fall due"),
        ("due → claimed while ", "due → claimed, "),
        ("meanwhile: a ", "in a burst: "),
        (" of another process", ""),
        (" shards: a push meanwhile", ": push"),
        (" shards: due → claimed meanwhile", ": due → claimed"),
        (" shards: the same on new shards", ": on new shards"),
    ):
        name = name.replace(long, short)
    return name


def memory(results: Results) -> list[Plot]:
    figures = results.curve("memory: tasks of a shard")
    if len(figures) < 2:
        return []
    points = [(float(figure.at["tasks"]), figure.value) for figure in figures]
    title = "Bytes of a pending task of 100 B against tasks of a shard"
    everything = [Line("everything", points)]
    svg = lines(title, everything, unit="bytes/task", x_unit="tasks of a shard", log="x", x_ticks=POWERS_OF_TWO)
    caption = "The labels are powers of two: tables double at them, or a little before."
    return [Plot("memory", title, caption, svg)]


def backlog(results: Results) -> list[Plot]:
    plots = []
    for work in ("push", "dispatch"):
        figures = results.curve(f"backlog: {work}")
        if len(figures) < 2:
            continue
        title = f"Server CPU per task: {work}"
        drawn = _by_shards(figures, "pending")
        svg = lines(title, drawn, unit="µs/task", x_unit="pending tasks", log="x", height=230)
        plots.append(Plot(f"backlog-{work}", title, "Each number of shards has a line.", svg))
    return plots


def _by_shards(figures: Sequence[Figure], across: str) -> list[Line]:
    return [
        Line(
            f"{shards:.0f} shards",
            [(float(figure.at[across]), figure.value) for figure in figures if figure.at["shards"] == shards],
        )
        for shards in distinct(float(figure.at["shards"]) for figure in figures)
    ]


def nodes(found: Nodes) -> list[Plot]:
    plots = []
    if found.measured:
        works = distinct(work for one in found.measured for work in one.work)
        drawn = [
            Line(work, [(one.masters, one.work[work].server_us) for one in found.measured if work in one.work])
            for work in works
        ]
        title = "Measured: CPU of all masters per task"
        caption = "A flat line means that another master adds its whole capacity."
        masters = [one.masters for one in found.measured]
        svg = lines(title, drawn, unit="µs/task", x_unit="masters", x_ticks=masters, height=230)
        plots.append(Plot("nodes", title, caption, svg))
    if found.model is not None and found.model.points:
        drawn = [
            Line(
                f"{shards} shards",
                [(point.nodes, point.tasks_per_s) for point in found.model.points if point.shards == shards],
                dashed=True,
            )
            for shards in distinct(point.shards for point in found.model.points)
        ]
        title = "Modelled, not measured: tasks per second by number of masters"
        svg = lines(title, drawn, unit="tasks/s", x_unit="masters", log="xy", x_ticks=[2**power for power in range(7)])
        plots.append(Plot("nodes-model", title, found.model.formula, svg))
    return plots


def expand(results: Results) -> list[Plot]:
    plots = []
    for figure in results.curve("expand"):
        old, new = (f"{float(figure.at[key]):.0f}" for key in ("shards", "to"))
        for part, title, unit, columns in (
            ("push", "how long a push took", "ms", {"push_max_ms": "longest", "push_p50_ms": "p50"}),
            ("late", "due → claimed", "ms", {"late_max_ms": "longest", "late_p50_ms": "p50"}),
            ("moved", "tasks moved", "tasks", {"moved": "moved"}),
        ):
            drawn = [
                Line(label, list(zip(figure.series["s"], figure.series[column], strict=True)), dots=False)
                for column, label in columns.items()
            ]
            full = f"{old} → {new} shards: {title}"
            event = (0.0, f"resize({new})" if part == "push" else "")
            svg = lines(full, drawn, unit=unit, x_unit="seconds", event=event, height=170)
            plots.append(Plot(f"expand-{old}-{new}-{part}", full, "", svg))
    return plots


def nodes_over_time(found: Nodes) -> list[Plot]:
    plots = []
    for name, title, event, columns in (
        (
            "nodes-failover",
            "A master killed under load: from due to ready",
            "killed",
            {
                "its shards, longest": steps(found.failover, "series_lost", "max_ms"),
                "all shards, p50": steps(found.failover, "series", "p50_ms"),
            },
        ),
        (
            "nodes-expand",
            "Shards added on a cluster under load: from due to ready",
            "resize()",
            {
                "longest": steps(found.expand, "series", "max_ms"),
                "p50": steps(found.expand, "series", "p50_ms"),
            },
        ),
    ):
        if not all(columns.values()):
            continue
        # a log scale, because seconds stand beside fractions of a millisecond
        drawn = [
            Line(label, [(s, max(late_ms, LEAST_MS)) for s, late_ms in points], dots=False)
            for label, points in columns.items()
        ]
        svg = lines(title, drawn, unit="ms", x_unit="seconds", log="y", event=(0.0, event), height=210)
        plots.append(Plot(name, title, "Tasks are shown at the instant at which they were due, on a log scale.", svg))
    return plots


def tile(figure: Figure | None, *, share: str = "") -> str:
    """Returns a figure in a few characters."""
    if figure is None:
        return "–"
    return compact(figure.percentiles.get(share, figure.value) if share else figure.value)
