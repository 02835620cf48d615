"""Whether a figure stays the same over hours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from bench.chaos import Bound, Flat, Series

MB = 1 << 20

BOUNDS: Mapping[str, Bound] = {
    "rss": Bound(0.05, 6 * MB, "bytes"),
    "used memory": Bound(0.05, 3 * MB, "bytes"),
    "script memory": Bound(0.1, 2 * MB, "bytes"),
    "threads": Bound(0.0, 1, "threads"),
    "descriptors": Bound(0.0, 4, "descriptors"),
    "keys": Bound(0.05, 4, "keys"),
    "entries": Bound(0.2, 1000, "entries"),
    "lateness p50": Bound(0.5, 5, "ms"),
    "lateness p99": Bound(0.5, 50, "ms"),
}
"""By the kind of a series. Entries of a key are counted while tasks come and go, and lateness is measured on a machine
that does other work, too; what is lost by each task, or each second, is beyond any of these after two hours.
"""

LEAST = 8
"""With fewer samples nothing is said of a series."""

MOST = 600
"""Of more samples so many are compared, evenly apart."""


def grown(points: Iterable[tuple[float, float]]) -> float:
    """How much a series grew from its first point to its last, by the median slope between any two (Theil and Sen): a
    few points that are far off say nothing.
    """
    some = list(points)
    some = some[:: -(-len(some) // MOST)]
    at_s, values = np.array(some).T
    before, after = np.triu_indices(len(some), 1)
    slopes = (values[after] - values[before]) / (at_s[after] - at_s[before])
    return float(np.median(slopes) * (at_s[-1] - at_s[0]))


def judged(series: Iterable[Series], warm_up_s: float, bounds: Mapping[str, Bound] = BOUNDS) -> list[Flat]:
    """A verdict on each series that has samples enough after the warm-up. Less is never wrong."""
    told = []
    for each in series:
        points = [(at_s, value) for at_s, value in each.points if at_s >= warm_up_s]
        if len(points) < LEAST:
            continue
        usual, growth = median(value for _, value in points), grown(points)
        bound = max(bounds[each.kind].relative * usual, bounds[each.kind].absolute)
        told.append(Flat(each.kind, each.name, usual, growth, bound, growth <= bound))
    return told
