"""Servers and clients have cores of their own, so that neither measures the other's share of one.

The command line divides them once, before any thread is made: threads and children inherit the affinity of their maker.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of either side. Both sets are empty where nothing is pinned, because the machine has one core or the
    system can't pin.
    """

    clients: frozenset[int]
    servers: frozenset[int]

    @classmethod
    def divided(cls, *, cluster: bool = False) -> Cores:
        """Gives one core to a single server, or half of all to the processes of a cluster; the rest is for clients."""
        if not hasattr(os, "sched_setaffinity"):
            return cls(frozenset(), frozenset())
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            return cls(frozenset(), frozenset())
        count = len(usable) // 2 if cluster else 1
        return cls(frozenset(usable[:-count]), frozenset(usable[-count:]))

    def __str__(self) -> str:
        if not self.servers:
            return "servers and clients share all cores: nothing could be pinned, so rates are lower than they could be"
        return f"servers on core {_listed(self.servers)}, clients on core {_listed(self.clients)}"

    def pin_clients(self) -> None:
        if self.clients:
            os.sched_setaffinity(0, self.clients)

    @contextlib.contextmanager
    def for_servers(self) -> Iterator[None]:
        """Puts processes that are started inside on the servers' cores."""
        if not self.servers:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.servers)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def _listed(cores: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
