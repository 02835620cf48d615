"""The sections on runs in which servers and programs are broken on purpose, and on hours under a steady load."""

from __future__ import annotations

from collections import Counter
from html import escape

from bench.chaos import VIOLATIONS, Chaos, Counts, Series, Soak
from bench.reporting import tables
from bench.reporting.drawing import Line, lines
from bench.reporting.plots import Plot

GROUNDS = ("aof", "sentinel", "cluster")

MOST_POINTS = 150
"""Points of a line; each is the median of those beside it."""

MOST_LINES = 4
"""Of a plot: the largest ones."""

MB = 1 << 20

ALLOWED = {
    "a failover or a restart took it back": "a failover took back what its replica did not have; of a master that was "
    "cut off, all that it took meanwhile",
    "its lease ran out": "its lease ran out: its program was killed, stopped, cut off or slow",
    "it was retried": "its program gave it back as failed",
    "given back": "given back unhandled, or the answer that gave it was lost, or a failover took its end back",
}

PLOTS = (
    ("rss", "Memory of processes (RSS)", "MB", MB),
    ("used memory", "Memory of servers (used_memory)", "MB", MB),
    ("script memory", "Memory of scripts in servers (used_memory_vm_total)", "MB", MB),
    ("lateness p50", "From due to claimed, median of a sample", "ms", 1),
    ("lateness p99", "From due to claimed, 99th percentile of a sample", "ms", 1),
    ("threads", "Threads of processes", "threads", 1),
    ("descriptors", "Open descriptors of processes", "descriptors", 1),
    ("entries", "Entries of keys, by their kind", "entries", 1),
)


def faults(found: Chaos) -> str:
    """A row for each kind of fault, the most frequent first."""
    by_ground = [found.faults_of.get(ground, {}) for ground in GROUNDS]
    rows = [
        [escape(kind), *(f"{counts.get(kind, 0):,}" for counts in by_ground), f"{count:,}"]
        for kind, count in _sorted(found.faults)
    ]
    rows.append(["all", *(f"{sum(counts.values()):,}" for counts in (*by_ground, found.faults))])
    return tables.table(("fault", *GROUNDS, "in all"), rows, right=(1, 2, 3, 4))


def _sorted(counts: Counts) -> list[tuple[str, int]]:
    return Counter(counts).most_common()


def outcome(found: Chaos) -> str:
    """What became of the tasks."""
    undecided = sum(each.undecided for each in found.rounds)
    rows = [
        ["rounds", f"{len(found.rounds):,}", f"{found.took_s / 60:,.0f} minutes"],
        ["tasks", f"{found.tasks:,}", f"{found.deliveries:,} deliveries"],
        ["faults", f"{sum(found.faults.values()):,}", "counted where their effect was seen"],
        ["undecided", f"{undecided:,}", "ids whose histories allow too many orders to be judged"],
    ]
    rows[3:3] = [[kind, f"{found.violations_of(kind):,}", escape(what)] for kind, what in VIOLATIONS.items()]
    rows += [["lost, as allowed", f"{count:,}", escape(ALLOWED.get(why, why))] for why, count in _sorted(found.lost)]
    rows += [
        ["doubled, as allowed", f"{count:,}", escape(ALLOWED.get(why, why))] for why, count in _sorted(found.doubled)
    ]
    if found.unjudged:
        why = "forwarded into a list of the engine's own cluster, which a failover took back"
        rows.append(["not judged", f"{found.unjudged:,}", escape(why)])
    return tables.table(("what", "tasks", ""), rows, right=(1,))


def counted(counts: Counts, head: str) -> str:
    rows = [[escape(what), f"{count:,}"] for what, count in _sorted(counts)]
    return tables.table((head, "times"), rows, right=(1,)) if rows else ""


def soaked(found: Soak) -> list[Plot]:
    plots = []
    for kind, title, unit, by in PLOTS:
        some = [each for each in found.of(kind) if len(each.points) > 1]
        some.sort(key=lambda each: -max(value for _, value in each.points))
        if not some:
            continue
        drawn = [Line(each.name, _thinned(each, by), dots=False) for each in some[:MOST_LINES]]
        rest = f"The largest {MOST_LINES} of {len(some)}. " if len(some) > MOST_LINES else ""
        event = (found.warm_up_s / 60, "") if found.warm_up_s else None
        svg = lines(title, drawn, unit=unit, x_unit="minutes", event=event, height=190)
        caption = f"{rest}Behind the dotted line it must be flat."
        plots.append(Plot(f"soak-{kind.replace(' ', '-')}", title, caption, svg))
    return plots


def _thinned(series: Series, by: float) -> list[tuple[float, float]]:
    points = series.points
    size = -(-len(points) // MOST_POINTS)
    some = [sorted(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)]
    middle = [(min(at_s for at_s, _ in few), few[len(few) // 2][1]) for few in some]
    return [(at_s / 60, value / by) for at_s, value in middle]


def flat(found: Soak) -> str:
    """Of each kind of series the one that grew most, against its bound."""
    rows = []
    for kind, bound in found.bounds.items():
        some = [each for each in found.flat if each.kind == kind]
        if some:
            worst = max(some, key=lambda each: each.growth / (each.bound or 1))
            by, unit = (MB, "MB") if bound.unit == "bytes" else (1, bound.unit)
            told = [f"{value / by:,.3g}" for value in (worst.median, worst.growth, worst.bound)]
            verdict = "flat" if all(each.is_flat for each in some) else "grows"
            rows.append([escape(kind), f"{len(some)}", escape(worst.name), *told, unit, verdict])
    heads = ("what", "series", "which grew most", "median", "growth", "bound", "unit", "verdict")
    return tables.table(heads, rows, right=(1, 3, 4, 5)) if rows else ""
