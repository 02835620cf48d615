"""The connections to one node that threads share: last in, first out, and bounded. Made by ``routes``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from shardq.drivers.faults import Fault, exhausted
from shardq.drivers.wire import Wire


class Node:
    """One node and its wires. ``take`` and then either ``give`` or ``drop``, always."""

    def __init__(self, address: str, *, bound: int, dial: Callable[[str, float], Wire | Fault]) -> None:
        self.address = address
        self.bound = bound
        self.open = 0
        """Wires idle and in use. Never above ``bound``."""
        self._dial = dial
        self._closed = False
        self._idle: list[Wire] = []
        self._free = threading.Condition(threading.Lock())

    def take(self, deadline: float, *, wait: bool = True) -> Wire | Fault:
        """An idle wire, a new one, or, when all are in use, one that another thread gives back in time.

        Who holds wires of other nodes must not ``wait``: two such threads could wait for each other.
        """
        with self._free:
            while True:
                now = time.monotonic()
                while self._idle:
                    wire = self._idle.pop()
                    if not wire.dead(now):
                        return wire
                    wire.close()
                    self.open -= 1
                if self.open < self.bound:
                    self.open += 1
                    break
                if not (wait and self._free.wait(max(0.0, deadline - now))):
                    return exhausted(self.address, self.bound)
        dialled: Wire | Fault | None = None
        try:
            dialled = self._dial(self.address, deadline)
        finally:
            if not isinstance(dialled, Wire):
                self._closed_one()
        return dialled

    def give(self, wire: Wire) -> None:
        """Hand back a wire that is in step: every answer it was sent for has been read."""
        with self._free:
            if not self._closed:
                self._idle.append(wire)
                self._free.notify()
                return
        self.drop(wire)

    def drop(self, wire: Wire) -> None:
        """Close a wire that is out of step, or dead. The idle ones have most likely died with it."""
        wire.close()
        self._closed_one()
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close what nobody uses."""
        with self._free:
            idle, self._idle = self._idle, []
            self.open -= len(idle)
            self._free.notify(len(idle))
        for wire in idle:
            wire.close()

    def close(self) -> None:
        """Keep nothing any more: what is in use is closed when it comes back."""
        self._closed = True
        self.drop_idle()

    def _closed_one(self) -> None:
        with self._free:
            self.open -= 1
            self._free.notify()

    def __repr__(self) -> str:
        return f"Node({self.address}: {self.open} of {self.bound} open, {len(self._idle)} idle)"
