"""A suite is a value. ``suites`` has the list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.figures import Figure
from bench.stand import Stand


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    about: str
    """One line for ``--list``."""
    measure: Callable[[Stand], Iterator[Figure]]
    """Yields figures as they are found, on servers of its own."""
