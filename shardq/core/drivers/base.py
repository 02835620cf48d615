"""The part of both drivers that waits for nothing: what they are connected to, and who serves what."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardq.core.drivers.pipelines import Spare
from shardq.core.drivers.replicas import ReplicaTracker
from shardq.core.drivers.routing import Journal, Routing
from shardq.core.drivers.settings import Settings


class DriverBase:
    """One server, the master of a service, or the masters of a cluster."""

    _router: Routing

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._replica_tracker = ReplicaTracker()

    def check_open(self) -> None:
        """Raises EngineClosed before ``open()``, after ``close()``, in a forked child, and in another event loop."""
        self._router.check_open()

    def note_in(self, journal: Journal | None) -> None:
        """Tells a journal of every answer from now on."""
        self._router.journal = journal

    def hold(self, is_held: Callable[[str, float], bool]) -> None:
        """Asks ``is_held`` before a poller sends: True while those that connected to that node at that time must not
        dispatch there yet.
        """
        self._router.is_held = is_held

    @property
    def is_cluster(self) -> bool:
        return self.settings.kind == "cluster"

    @property
    def server_version(self) -> str:
        """The servers' version, like ``valkey 9.1.2``; empty before ``open()``."""
        return self._router.version

    def node_of(self, slot: int) -> str:
        """The address of the slot's master, as last learnt; empty while nobody serves it."""
        return self._router.map.node(slot) or ""

    def nodes(self) -> list[str]:
        """The addresses of all masters, as last learnt."""
        return list(self._router.map.nodes)

    def spare(self, given: Spare | None) -> Spare | None:
        """When to give up calls. One server alone is never left for another."""
        return given if len(self._router.map.nodes) > 1 else None

    @property
    def unserved(self) -> int:
        """The number of slots that no node serves, as last learnt."""
        return self._router.map.unserved

    def slot_groups(self, slots: Iterable[int]) -> dict[str, list[int]]:
        """The slots, in the order given, by the node that serves them."""
        groups: dict[str, list[int]] = {}
        for slot in slots:
            groups.setdefault(self.node_of(slot), []).append(slot)
        return groups

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings.safe_url!r}, {self.server_version or 'not open'})"
