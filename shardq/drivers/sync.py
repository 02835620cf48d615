"""The driver for threads: carries calls to the node that serves their slot, whatever that takes.

``Driver`` is what engines, producers and consumers use; ``Line`` is a poller's own connection, and a ``Loan`` some of
the shared ones for several calls in a row. Deciding is done by ``patience``, learning the map by ``routes``; here
things are sent and waited for. The asyncio twin is ``aio``.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from shardq.calls.request import Call, Command
from shardq.drivers.copies import CONVERSATION_S, Copies
from shardq.drivers.ear import Ear
from shardq.drivers.faults import ErrorReply, Fault, of_connecting, of_reply, unserved
from shardq.drivers.lanes import Lanes
from shardq.drivers.outages import Outages
from shardq.drivers.patience import Errand, Step, explained
from shardq.drivers.pool import Node
from shardq.drivers.routes import Connections, Routes
from shardq.drivers.settings import Settings
from shardq.drivers.wire import HEAR_OUT_S, Wire
from shardq.errors import EngineClosed, ShardqError, TooManyOpenFiles, Unanswered, Unavailable

T = TypeVar("T")


class Driver:
    """Calls, from any thread, to one server, the master of a service, or the masters of a cluster."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._routes = Routes(settings)
        self._copies = Copies()

    def open(self) -> None:
        """Connect, learn who serves what, and check the servers' versions; also again after ``close()``.

        Raises Unavailable within ``connect_timeout`` when nothing listens; waits out a server that loads.
        """
        self._routes.open()

    def close(self) -> None:
        """Close every connection, also those in use: their calls end at once."""
        self._routes.close()

    def check_open(self) -> None:
        """Raise before ``open()``, after ``close()``, and in the child of a fork."""
        self._routes.check_open()

    @property
    def is_cluster(self) -> bool:
        return self.settings.kind == "cluster"

    @property
    def server_version(self) -> str:
        """Like ``valkey 9.1.2``; empty before ``open()``."""
        return self._routes.version

    @property
    def outages(self) -> Outages:
        """The log of nodes that fail."""
        return self._routes.outages

    # ---- calls

    def call(self, call: Command[T], timeout: float | None = None) -> T:
        """Carry one call out and decode its answer. Raises a ServerFault when that can't be done in time."""
        self._routes.check_open()
        return carry(call, self._routes, self._trip, time.sleep, timeout)

    def call_all(
        self, calls: Iterable[Command[T]], *, timeout: float | None = None
    ) -> Iterator[tuple[Command[T], T | ShardqError]]:
        """Carry many calls out, yielding each with its result or error as it comes, in no order.

        Calls are pulled one by one, and packed while the servers work on earlier ones. A slow node does not
        hold back the calls of another. ``timeout`` is for each call.
        """
        self._routes.check_open()
        return Lanes(calls, self._routes, timeout=self._timeout(timeout)).run()

    def confirm(self, seals: Sequence[Call[None]]) -> dict[int, str | None]:
        """Asks if replicas have all that was written until now, by the slot of each seal; see ``operation.Confirm``."""
        self._routes.check_open()
        addresses = {seal.slot: self.node_of(seal.slot) for seal in seals}
        by_node = {addresses[seal.slot]: seal for seal in seals}
        said = {address: self._confirmed(address, seal) for address, seal in by_node.items()}
        return {slot: said[address] for slot, address in addresses.items()}

    def line(self, slot: int) -> Line:
        """A connection of the caller's own to the master of this slot, wherever it moves."""
        return Line(self._routes, slot)

    @contextmanager
    def loan(self) -> Iterator[Loan]:
        """Shared connections for several calls in a row, at most one to each node.

        At most half of those to a node are on loan at a time: who has one may wait for another, and always finds it.
        Raises Unavailable when others keep theirs for longer than the driver's timeout.
        """
        self._routes.check_open()
        loans = self._routes.loans
        if not loans.acquire(timeout=self.settings.timeout):
            raise Unavailable(
                f"half of the {self.settings.connections} shared connections to a node are on loan, and none came back "
                f"within {self.settings.timeout:g} s; push durably from fewer threads at a time"
            )
        loan = Loan(self._routes)
        try:
            yield loan
        finally:
            loan.close()
            loans.release()

    def ear(self, node: str) -> Ear:
        """A connection of the caller's own, for a subscriber. Raises a ServerFault when it fails."""
        timeout = self.settings.connect_timeout
        wire = self._routes.dial(node, time.monotonic() + timeout, protocol=2)
        if isinstance(wire, Fault):
            raise wire.error(explained(wire, node, "the subscriber could not connect", timeout)) from wire.cause
        try:
            return Ear(wire)
        except OSError as exc:
            wire.close()
            fault = of_connecting(exc)
            raise fault.error(explained(fault, node, "the subscriber could not connect", timeout)) from exc

    def _confirmed(self, address: str, seal: Call[None]) -> str | None:
        if not address or (known := self._copies.known(address)) is not None:
            return known if address else None
        deadline = time.monotonic() + CONVERSATION_S
        node = self._routes.node(address)
        wire = node.take(deadline)
        if isinstance(wire, Fault):
            return None
        conversation, answer = self._copies.confirmed(address, seal), None
        try:
            while True:
                answer = wire.exchange(conversation.send(answer), deadline=deadline)
                if isinstance(answer, Fault):
                    node.drop(wire)
                    return None
        except StopIteration as end:
            node.give(wire)
            return end.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration
        except BaseException:
            node.drop(wire)
            raise

    def _timeout(self, timeout: float | None) -> float:
        return self.settings.timeout if timeout is None else timeout

    def _trip(self, errand: Errand[Any], address: str) -> Any:
        node = self._routes.node(address)
        wire = node.take(errand.deadline)
        if isinstance(wire, Fault):
            return wire
        try:
            answer = wire.exchange(errand.packed(), deadline=errand.deadline, answers=errand.answers)
        except BaseException:
            if errand.call.hear_out and errand.answers == 1:
                errand.heard_out(wire.receive(HEAR_OUT_S))
            node.drop(wire)
            raise
        if isinstance(answer, Fault):
            node.drop(wire)
        else:
            node.give(wire)
        return answer

    # ---- who serves what

    def node_of(self, slot: int) -> str:
        """The address of the slot's master, as last learnt; empty while nobody serves it."""
        return self._routes.map.node(slot) or ""

    def nodes(self) -> list[str]:
        """The addresses of all masters, as last learnt."""
        return list(self._routes.map.nodes)

    @property
    def unserved(self) -> int:
        """How many slots nobody serves, as last learnt."""
        return self._routes.map.unserved

    def slot_groups(self, slots: Iterable[int]) -> dict[str, list[int]]:
        """The slots by the node that serves them, in the order given."""
        groups: dict[str, list[int]] = {}
        for slot in slots:
            groups.setdefault(self.node_of(slot), []).append(slot)
        return groups

    def refresh(self, doubted: str = "") -> None:
        """Learn now who serves what, from the node ``doubted`` last. Raises a ServerFault when nobody can tell."""
        self._routes.refresh(doubted)

    def on_new_map(self, follower: Callable[[], object]) -> Callable[[], None]:
        """Call ``follower``, which must not block, whenever a slot map was learnt; answers how to stop that."""
        return self._routes.on_new_map(follower)

    def connections(self) -> dict[str, Connections]:
        """How many connections are open to each node, and their bound."""
        return self._routes.connections()

    def __repr__(self) -> str:
        return f"Driver({self.settings.safe_url!r}, {self.server_version or 'not open'})"


class Line:
    """A poller's own connection. ``call`` is for one thread; ``interrupt`` for any, and for good."""

    def __init__(self, routes: Routes, slot: int) -> None:
        self.slot = slot
        self._routes = routes
        self._wire: Wire | None = None
        self.connects = 0
        """How often it has connected. The same before and after two calls: they went over one connection."""
        self._interrupted = threading.Event()

    def call(self, call: Command[T], timeout: float | None = None) -> T:
        """As ``Driver.call``, on this line's connection, which follows the call's slot."""
        self._check()
        try:
            return carry(call, self._routes, self._trip, self._sleep, timeout)
        except TooManyOpenFiles:
            raise
        except (Unanswered, Unavailable):
            # a node that hangs takes all the time a call has: the next one must not go there again, if another serves
            self._check()
            self._routes.act(Step(refresh=True, doubted=self._routes.map.node(call.slot) or ""))
            raise

    def interrupt(self) -> None:
        """End the line's call, if there is one, and refuse all others with EngineClosed."""
        self._interrupted.set()
        wire = self._wire
        if wire is not None:
            wire.interrupt()

    def close(self) -> None:
        """Close the connection; for the thread that calls."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _trip(self, errand: Errand[Any], address: str) -> Any:
        wire = self._wire
        if wire is None or wire.address != address or wire.dead(time.monotonic()):
            self.close()
            dialled = self._routes.dial(address, errand.deadline)
            if isinstance(dialled, Fault):
                self._check()
                return dialled
            self._wire = wire = dialled
            self.connects += 1
        self._check()  # after the wire is in place: interrupt() sees it, or we see the interrupt
        try:
            answer = wire.exchange(errand.packed(), deadline=errand.deadline, answers=errand.answers)
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Fault):
            self.close()
            self._check()
        return answer

    def _sleep(self, seconds: float) -> None:
        self._interrupted.wait(seconds)
        self._check()

    def _check(self) -> None:
        self._routes.check_open()
        if self._interrupted.is_set():
            raise EngineClosed("this line was interrupted because its poller stops")

    def __repr__(self) -> str:
        wire = self._wire
        return f"Line(slot {self.slot}, {wire.address if wire is not None and wire.open else 'not connected'})"


class Loan:
    """One user's connections for several calls in a row, for one thread. Made by ``Driver.loan``."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._wires: dict[str, tuple[Node, Wire]] = {}
        self.connects: Counter[str] = Counter()
        """How many connections to each node it has had. The same after two calls: they went over one."""
        self.address = ""
        """The node that answered the last call."""

    def call(self, call: Command[T], timeout: float | None = None) -> T:
        """As ``Driver.call``, always on the same connection to a node while that is open."""
        self._routes.check_open()
        return carry(call, self._routes, self._trip, time.sleep, timeout)

    def close(self) -> None:
        """Gives all of them back."""
        wires, self._wires = self._wires, {}
        for node, wire in wires.values():
            node.give(wire)

    def _trip(self, errand: Errand[Any], address: str) -> Any:
        wire = self._wire(address, errand.deadline)
        if isinstance(wire, Fault):
            return wire
        try:
            answer = wire.exchange(errand.packed(), deadline=errand.deadline, answers=errand.answers)
        except BaseException:
            self._drop(address)
            raise
        if isinstance(answer, Fault):
            self._drop(address)
        self.address = address
        return answer

    def _wire(self, address: str, deadline: float) -> Wire | Fault:
        if address in self._wires:
            wire = self._wires[address][1]
            if not wire.dead(time.monotonic()):
                return wire
            self._drop(address)
        node = self._routes.node(address)
        taken = node.take(deadline)
        if isinstance(taken, Wire):
            self._wires[address] = node, taken
            self.connects[address] += 1
        return taken

    def _drop(self, address: str) -> None:
        node, wire = self._wires.pop(address)
        node.drop(wire)


def carry(
    call: Command[T],
    routes: Routes,
    trip: Callable[[Errand[Any], str], Any],
    sleep: Callable[[float], object],
    timeout: float | None,
) -> T:
    """Send a call until it is answered or its time is over. ``trip`` makes one try at a node."""
    patience = routes.settings.timeout if timeout is None else timeout
    errand = Errand(call, now=time.monotonic(), timeout=patience)
    while True:
        address = routes.target(errand)
        answer = unserved(errand.request.slot) if address is None else trip(errand, address)
        if isinstance(answer, ErrorReply):
            answer = of_reply(answer.text, asked=address or "")
        if not isinstance(answer, Fault):
            return errand.request.decode(answer)
        node = address or routes.settings.safe_url
        step = errand.met(answer, now=time.monotonic(), node=node, chance=random.random())
        routes.act(step)
        if step.pause_s:
            sleep(step.pause_s)
