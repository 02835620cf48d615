"""The measured costs of a task. ``bench.reporting`` writes them to ``costs.json`` from the figures of the report, so a
plan and the report never differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from importlib import resources

import msgspec

FILE = "costs.json"

Curve = tuple[tuple[float, float], ...]
"""Points, by their first number."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in µs a task. The servers' are those of a core that serves one master."""

    measured: str
    """The machine, server and commit."""
    push_one: float
    """The server's, for a push that is sent alone."""
    push_many: float
    """The same for one of a batch, with few tasks pending."""
    push: Curve
    """Tasks pending on a server → the server's cost of a push in a batch."""
    dispatch: Curve
    """Tasks pending on a server → the server's cost of making a due task ready."""
    forward: float
    """The server's, for making it ready and putting its payload on a list of the same server."""
    claim: float
    """The server's, for claim and ack, with as many consumers as made it dearest."""
    push_by_bytes: Curve
    """Bytes of a payload → the cost of a push in a batch, as a multiple of that of the smallest payload."""
    claim_by_bytes: Curve
    """The same for claim and ack."""
    client_push_one: float
    client_push_many: float
    client_dispatch: float
    client_work: float
    """The worker's own, without its handlers."""
    memory: Curve
    """Bytes of a payload → the server's bytes of a pending task, everything included."""
    memory_spread: float
    """The most memory a task took over all fillings of a shard ÷ that of the curve: tables double at powers of two."""
    late: tuple[tuple[float, float, float], ...]
    """The busy share of the server's core, and the lateness from due to claimed then: p50 and p99 in ms."""


def measured() -> Costs:
    """Returns the costs that the package was published with."""
    return msgspec.json.decode(resources.files(__package__).joinpath(FILE).read_bytes(), type=Costs)


def at(curve: Sequence[tuple[float, float]], x: float) -> float:
    """Returns the value on straight lines between the points. Beyond the last one it goes on as between the last two;
    before the first it stays.

    >>> at([(10, 1.0), (20, 2.0)], 15), at([(10, 1.0), (20, 2.0)], 40), at([(10, 1.0), (20, 2.0)], 1)
    (1.5, 4.0, 1.0)
    """
    if x <= curve[0][0] or len(curve) == 1:
        return curve[0][1]
    (x0, y0), (x1, y1) = next(
        ((low, high) for low, high in itertools.pairwise(curve) if x <= high[0]), (curve[-2], curve[-1])
    )
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def by_magnitude(curve: Sequence[tuple[float, float]], x: float) -> float:
    """The same over the logarithm: a cost that grows with each tenfold."""
    return at([(math.log(each), y) for each, y in curve], math.log(max(x, 1)))
