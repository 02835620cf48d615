"""Numbers to places: scales with their ticks, and how numbers are written. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``, both of which have ticks. A log axis needs values over 0."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one; what lies outside is put at the end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)


def linear(values: Iterable[float], *, from_zero: bool = True) -> Axis:
    """
    >>> linear([3, 8.4]).ticks
    (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    """
    known = list(values)
    low, high = min(known), max(known)
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    if high == low:
        high = low + 1
    step = _step((high - low) / (MOST_TICKS - 1))
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple(round(number * step, 10) for number in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks, log=False)


def logarithmic(values: Iterable[float]) -> Axis:
    """
    >>> logarithmic([0.3, 40]).ticks
    (0.1, 1.0, 10.0, 100.0)
    """
    known = [value for value in values if value > 0]
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    ticks = tuple(10.0**power for power in range(first, max(last, first + 1) + 1))
    return Axis(ticks[0], ticks[-1], ticks, log=True)


def exactly(values: Iterable[float], *, log: bool) -> Axis:
    """An axis whose ticks are the values themselves: numbers of shards or masters."""
    ticks = tuple(sorted(set(values)))
    low, high = ticks[0], ticks[-1]
    return Axis(low, high if high > low else low + 1, ticks, log)


def _step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(size * power for size in (1, 2, 5, 10) if size * power >= least * 0.999)


def compact(value: float) -> str:
    """
    >>> compact(1_500_000), compact(260_000), compact(1_234), compact(0.25), compact(12.0)
    ('1.5 M', '260 k', '1,234', '0.25', '12')
    """
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g} M"
    if size >= 1e4:
        return f"{value / 1e3:.3g} k"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
