"""The connections to one node that threads share: last in, first out, and bounded. Made by ``routes``.

A node that hangs takes a connection and says nothing for as long as ``connect_timeout``. Therefore one thread dials
while nobody knows whether the node answers; the others wait for what comes of it, and share its fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from shardq.drivers.faults import Fault, dropped, exhausted, unconnected
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
        self._answers = False
        """The last dial went well, and no wire has failed since: any number of threads may dial at once."""
        self._dialling = 0
        self._refused: tuple[int, Fault | None] = 0, None
        """How many dials have failed, and the fault of the last one."""
        self._free = threading.Condition(threading.Lock())

    def take(self, deadline: float, *, wait: bool = True) -> Wire | Fault:
        """An idle wire, a new one, or one that another thread gives back in time, when all are in use.

        Who holds wires of other nodes must not ``wait``: two such threads could wait for each other.
        """
        began = time.monotonic()
        with self._free:
            failures, _ = self._refused
            while True:
                now = time.monotonic()
                while self._idle:
                    wire = self._idle.pop()
                    if not wire.dead(now):
                        return wire
                    wire.close()
                    self.open -= 1
                if self._closed:
                    return dropped(self.address)
                failed, fault = self._refused
                if fault is not None and failed != failures:
                    return fault
                room = self.open < self.bound
                if room and (self._answers or not self._dialling or not wait):
                    self.open += 1
                    self._dialling += 1
                    break
                if not (wait and self._free.wait(max(0.0, deadline - now))):
                    return unconnected(now - began) if room else exhausted(self.address, self.bound)
        return self._dialled(deadline)

    def _dialled(self, deadline: float) -> Wire | Fault:
        """A new wire, for which there is room. Those who wait learn what came of it."""
        dialled: Wire | Fault | None = None
        try:
            dialled = self._dial(self.address, deadline)
        finally:
            with self._free:
                self._dialling -= 1
                self._answers = isinstance(dialled, Wire)
                if isinstance(dialled, Fault):
                    self._refused = self._refused[0] + 1, dialled
                if not self._answers:
                    self.open -= 1
                self._free.notify_all()
        return dialled

    def give(self, wire: Wire) -> None:
        """Hand back a wire that is in step: every answer it was sent for has been read."""
        with self._free:
            if not self._closed:
                self._idle.append(wire)
                self._free.notify()
                return
        self.drop(wire)

    def forked(self) -> None:
        """In the child of a fork: whoever still holds a wire of the parent's can hand it back."""
        self._free = threading.Condition(threading.Lock())

    def drop(self, wire: Wire) -> None:
        """Close a wire that is out of step, or dead. The idle ones have most likely died with it."""
        wire.close()
        with self._free:
            self.open -= 1
            self._answers = False
            self._free.notify()
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
        """Keep nothing any more: what is in use is closed when it comes back, and nobody waits for more."""
        with self._free:
            self._closed = True
            self._free.notify_all()
        self.drop_idle()

    def __repr__(self) -> str:
        return f"Node({self.address}: {self.open} of {self.bound} open, {len(self._idle)} idle)"
