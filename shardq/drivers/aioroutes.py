"""Who serves what, kept current, and the pipes to them: the asyncio twin of ``routes`` and ``pool``."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from shardq import forks
from shardq.drivers.discover import (
    ASK_TIMEOUT_S,
    LOOK_TIMEOUT_S,
    REFRESH_EVERY_S,
    Locate,
    Look,
    Question,
    discover,
    greet,
)
from shardq.drivers.faults import ErrorReply, Fault, dropped, of_reply, unconnected
from shardq.drivers.patience import Errand, Step, explained, pause_s
from shardq.drivers.pipe import Pipe, look, open_pipe
from shardq.drivers.routes import CLOSED, FORKED, NOT_OPEN, Connections
from shardq.drivers.settings import Settings
from shardq.drivers.slots import SlotMap
from shardq.drivers.wire import pack
from shardq.errors import EngineClosed

T = TypeVar("T")

OTHER_LOOP = (
    "this engine is open in another event loop: make one for this loop, or close() it there before you open() it here"
)
LOOP_ENDED = "the event loop that this engine was opened in has ended: open() it again in this one"

# A pipe carries any number of calls; more than one keeps small calls from waiting behind big ones.
PIPES = 4
# So many unanswered calls on the least busy pipe are a reason to open another.
BUSY = 64


class AsyncNode:
    """One node and its pipes. One dial at a time, in a task of its own; all who wait share what comes of it."""

    def __init__(self, address: str, *, bound: int, dial: Callable[[str], Coroutine[Any, Any, Pipe | Fault]]) -> None:
        self.address = address
        self.bound = min(PIPES, bound)
        self._dial_pipe = dial
        self._pipes: list[Pipe] = []
        self._dialling: asyncio.Task[Pipe | Fault] | None = None
        self._closed = False

    @property
    def open(self) -> int:
        return sum(pipe.open for pipe in self._pipes)

    async def pipe(self, deadline: float) -> Pipe | Fault:
        """The least busy pipe; when there is none, the new one. Another is dialled meanwhile when all are busy."""
        best = self._best()
        if best is not None and (best.load < BUSY or self.open >= self.bound):
            return best
        if self._closed:
            return dropped(self.address)
        if self._dialling is None:
            self._dialling = asyncio.create_task(self._dial())
        return best or await self._dialled(self._dialling, max(0.0, deadline - time.monotonic()))

    async def _dialled(self, dialling: asyncio.Task[Pipe | Fault], within: float) -> Pipe | Fault:
        """Waits for a dial that others wait for, too; nobody's giving up ends it."""
        await asyncio.wait((dialling,), timeout=within)
        if not dialling.done():
            return unconnected(within)
        return dropped(self.address) if dialling.cancelled() else dialling.result()

    async def _dial(self) -> Pipe | Fault:
        try:
            pipe = await self._dial_pipe(self.address)
        finally:
            self._dialling = None
        if isinstance(pipe, Pipe):
            self._pipes.append(pipe)
        return pipe

    async def close(self) -> None:
        """Close every pipe; whoever waits for one is told at once."""
        self._closed = True
        dialling = self._dialling
        if dialling is not None:
            dialling.cancel()
            await asyncio.wait((dialling,))
        for pipe in self._pipes:
            await pipe.close()

    def _best(self) -> Pipe | None:
        self._pipes = [pipe for pipe in self._pipes if pipe.open]
        return min(self._pipes, key=lambda pipe: pipe.load, default=None)

    def abort(self) -> None:
        """Close every pipe, and wait for none."""
        self._closed = True
        if self._dialling is not None:
            self._dialling.cancel()
        for pipe in self._pipes:
            pipe.abort()

    def abandon(self) -> None:
        """Close the descriptors of every pipe, without its loop."""
        self._closed, self._dialling = True, None
        for pipe in self._pipes:
            pipe.abandon()

    def __repr__(self) -> str:
        return f"AsyncNode({self.address}: {self.open} of {self.bound} open)"


class AsyncRoutes:
    """The slot map and the nodes in it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.map = SlotMap(settings.addresses)
        self.version = ""
        self._closed: str | None = NOT_OPEN
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one it is open in."""
        self._nodes: dict[str, AsyncNode] = {}
        self._learning = asyncio.Lock()
        self._learned = 0.0
        self._doubted = ""
        self._missing: Fault | None = None
        """Why there is no server to dial, as the last look for it said."""
        forks.watch(self, AsyncRoutes._forked)

    # ---- opening and closing

    async def open(self) -> None:
        """Learn the map and check the servers. Waits longer for one that loads than for one not there."""
        self._closed, self._loop = None, asyncio.get_running_loop()
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        start = time.monotonic()
        settings = self.settings
        tries = 0
        while True:
            fault = await self._learn() or await self._greet()
            if fault is None:
                return
            timeout = settings.timeout if fault.is_loading else settings.connect_timeout
            tries += 1
            pause = pause_s(tries, random.random())
            if fault.is_final or time.monotonic() + pause >= start + timeout:
                text = explained(fault, settings.safe_url, "could not connect", timeout)
                raise fault.error(text) from fault.cause
            await asyncio.sleep(pause)

    async def _greet(self) -> Fault | None:
        version = await self._converse(greet(self.settings, self.map.nodes))
        if isinstance(version, Fault):
            return version
        self.version = version
        return None

    async def close(self) -> None:
        """Close every connection; whoever waits on one is told at once. Cancelled, it closes them all the same."""
        self._closed = CLOSED
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.abort()
        await asyncio.shield(asyncio.gather(*(node.close() for node in nodes.values())))

    def _forked(self) -> None:
        """Give all descriptors back, and say nothing on what is the parent's."""
        self.abandon(FORKED)

    def abandon(self, why: str = LOOP_ENDED) -> None:
        """Close every connection without its loop."""
        if self._closed is None:
            self._closed = why
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.abandon()

    # ---- where to send

    def target(self, errand: Errand[Any]) -> str | None:
        """Where the next try of an errand goes; None: nobody serves its slot."""
        return errand.address or self.map.node(errand.request.slot)

    def node(self, address: str) -> AsyncNode:
        """The node at this address, with its pipes."""
        node = self._nodes.get(address)
        if node is None:
            self.check_open()
            node = self._nodes[address] = AsyncNode(address, bound=self.settings.connections, dial=self._dial)
        return node

    async def _dial(self, address: str) -> Pipe | Fault:
        return self._missing or await open_pipe(self.settings, address, within=self.settings.connect_timeout)

    def check_open(self) -> None:
        """Raise when there is nothing to send through, or not from this loop."""
        if self._closed is not None:
            raise EngineClosed(self._closed)
        if self._loop is not asyncio.get_running_loop():
            raise EngineClosed(LOOP_ENDED if self._loop is None or self._loop.is_closed() else OTHER_LOOP)

    def connections(self) -> dict[str, Connections]:
        """How many are open, by node."""
        return {address: Connections(node.open, node.bound, 0) for address, node in sorted(self._nodes.items())}

    # ---- keeping current

    async def act(self, step: Step) -> None:
        """Do what a step says about the map; pausing is the caller's."""
        if step.refresh:
            async with self._learning:  # who waits here shares what the one before learnt
                if time.monotonic() - self._learned > REFRESH_EVERY_S:
                    await self._learn(step.doubted)
        if step.moved is not None and self.map.node(step.moved[0]) != step.moved[1]:
            self.map = self.map.corrected(*step.moved)

    async def refresh(self, doubted: str = "") -> None:
        """Learn the map now, whenever it was learnt last. Raises when nobody can tell."""
        self.check_open()
        async with self._learning:
            fault = await self._learn(doubted)
        if fault is not None:
            text = explained(fault, self.settings.safe_url, "the slot map was not learnt", ASK_TIMEOUT_S)
            raise fault.error(text) from fault.cause

    async def _learn(self, doubted: str = "") -> Fault | None:
        known = self.map.nodes if self._learned else ()
        # a node that hangs, or is cut off from the others, stays in doubt: its map is the old one
        self._doubted = doubted or self._doubted
        found = await self._converse(discover(self.settings, known, doubted=self._doubted))
        self._learned = time.monotonic()
        if isinstance(found, Fault):
            self._missing = found if self.settings.locate is not None else None
            return found
        self._missing = None
        self.map = found
        gone = [address for address in self._nodes if address not in found.nodes]
        for node in [self._nodes.pop(address) for address in gone]:
            await node.close()
        return None

    async def _converse(self, conversation: Generator[Question, Any, T]) -> T:
        """Hold a conversation, each question on a connection of its own: the pipes may be dead."""
        answer: Any = None
        try:
            while True:
                answer = await self._ask(conversation.send(answer))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _ask(self, ask: Question) -> Any:
        self.check_open()
        if isinstance(ask, Look):
            return await look(ask.address, ask.data, within=LOOK_TIMEOUT_S)
        if isinstance(ask, Locate):
            return await asyncio.wrap_future(ask.begun())
        pipe = await open_pipe(self.settings, ask.address, within=ASK_TIMEOUT_S, sentinel=ask.sentinel)
        if isinstance(pipe, Fault):
            return pipe
        try:
            answer = await pipe.exchange(pack(ask.words), deadline=time.monotonic() + ASK_TIMEOUT_S)
        finally:
            await pipe.close()
        return of_reply(answer.text, asked=ask.address) if isinstance(answer, ErrorReply) else answer
