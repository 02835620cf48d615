"""TCP proxies in front of the ports of servers: they hold back bytes, delay them, and break connections.

All of them live in one process of their own, ``python -m tests.chaos.proxy``, so that hundreds of connections cost the
programs of a run nothing; ``Proxies`` starts it and tells it what to do, a line of JSON each. It ends when its
stdin does. (``tests.support.proxies`` has two threads a connection in the process of a test, and knows nothing of who
is at the other end.)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Any, Self, cast

HOST = "127.0.0.1"

HIGH_WATER = 1 << 20
"""Bytes that wait for a slow end, before the other one has to wait."""


class Port:
    """One proxied port."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.server: asyncio.Server
        self.pairs: set[Pair] = set()
        self.held: frozenset[str] | None = None
        """The addresses whose connections are held; empty: all; None: nothing is."""
        self.delay_s = 0.0
        self.cut_after: int | None = None
        self.was_cut = False
        """True once an answer was cut."""

    @property
    def port(self) -> int:
        return int(self.server.sockets[0].getsockname()[1])

    def holds(self, host: str) -> bool:
        return self.held is not None and (not self.held or host in self.held)


class End(asyncio.Protocol):
    """One end of a connection; what comes from here goes to the other."""

    def __init__(self, pair: Pair, *, is_server: bool) -> None:
        self.pair = pair
        self.is_server = is_server
        self.transport: asyncio.Transport | None = None
        self.waiting: deque[bytes] = deque()
        """What came before the other end was there, or while it is delayed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        self.pair.came(self)

    def data_received(self, data: bytes) -> None:
        self.pair.passes(self, data)

    def eof_received(self) -> bool:
        self.pair.end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.pair.end()

    def pause_writing(self) -> None:
        self.pair.other(self).read(False)

    def resume_writing(self) -> None:
        if not self.pair.is_held:
            self.pair.other(self).read(True)

    def read(self, on: bool) -> None:
        if self.transport is not None and not self.transport.is_closing():
            if on:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()


class Pair:
    """The two ends of one connection."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.client = End(self, is_server=False)
        self.server = End(self, is_server=True)
        self.peer = ("", 0)
        self.is_held = False
        self.is_over = False
        self._tasks: set[asyncio.Task[None]] = set()

    def other(self, end: End) -> End:
        return self.client if end.is_server else self.server

    def came(self, end: End) -> None:
        assert end.transport is not None
        if end.is_server:
            if self.is_over:
                end.transport.abort()
                return
            for data in self.client.waiting:
                end.transport.write(data)
            self.client.waiting.clear()
        else:
            self.peer = end.transport.get_extra_info("peername")[:2]
            self.port.pairs.add(self)
            if self.port.holds(self.peer[0]):
                self.hold()
            else:
                self._connect()

    def _connect(self) -> None:
        task = asyncio.get_running_loop().create_task(self._connected())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.server, HOST, self.port.target)
        except OSError:
            self.reset()

    def hold(self) -> None:
        self.is_held = True
        self.client.read(False)
        self.server.read(False)

    def flow(self) -> None:
        if self.is_held:
            self.is_held = False
            self.client.read(True)
            self.server.read(True)
            if self.server.transport is None and not self.is_over:
                self._connect()

    def passes(self, end: End, data: bytes) -> None:
        port, to = self.port, self.other(end)
        if not end.is_server:
            if to.transport is None:
                end.waiting.append(data)
            else:
                to.transport.write(data)
            return
        if port.cut_after is not None:
            data, is_cut = data[: port.cut_after], len(data) >= port.cut_after
            port.cut_after = None if is_cut else port.cut_after - len(data)
            if is_cut:
                port.was_cut = True
                if to.transport is not None:
                    to.transport.write(data)
                self.end()
                return
        delay_s = port.delay_s if self.peer[0] == HOST else 0.0
        if delay_s or end.waiting:
            end.waiting.append(data)
            asyncio.get_running_loop().call_later(delay_s, self._late, end, to)
        elif to.transport is not None:
            to.transport.write(data)

    def _late(self, end: End, to: End) -> None:
        if end.waiting and to.transport is not None and not to.transport.is_closing():
            to.transport.write(end.waiting.popleft())

    def reset(self) -> None:
        """RST, and what was on its way is lost."""
        self.is_over = True
        self.port.pairs.discard(self)
        for end in (self.client, self.server):
            if end.transport is not None:
                end.transport.abort()

    def end(self) -> None:
        """Closed, after what has been passed on already."""
        self.is_over = True
        self.port.pairs.discard(self)
        for end in (self.client, self.server):
            if end.transport is not None and not end.transport.is_closing():
                end.transport.close()


class Proxying:
    """What the process does."""

    def __init__(self) -> None:
        self._ports: dict[int, Port] = {}

    async def open(self, target: int) -> dict[str, int]:
        port = Port(target)
        port.server = await asyncio.get_running_loop().create_server(lambda: Pair(port).client, HOST, 0)
        self._ports[port.port] = port
        return {"port": port.port}

    async def retarget(self, port: int, target: int) -> dict[str, int]:
        self._ports[port].target = target
        return {}

    async def hold(self, port: int, peers: list[str]) -> dict[str, int]:
        held = self._ports[port]
        held.held = frozenset(peers)
        some = [pair for pair in held.pairs if held.holds(pair.peer[0])]
        for pair in some:
            pair.hold()
        return {"count": len(some)}

    async def flow(self, port: int) -> dict[str, int]:
        held = self._ports[port]
        held.held, held.delay_s, held.cut_after = None, 0.0, None
        for pair in list(held.pairs):
            pair.flow()
        return {}

    async def delay(self, port: int, seconds: float) -> dict[str, int]:
        self._ports[port].delay_s = seconds
        return {}

    async def cut(self, port: int, after: int) -> dict[str, int]:
        if after:
            self._ports[port].cut_after, self._ports[port].was_cut = after, False
            return {"count": 1}
        pairs = list(self._ports[port].pairs)
        for pair in pairs:
            pair.reset()
        return {"count": len(pairs)}

    async def was_cut(self, port: int) -> dict[str, int]:
        return {"count": int(self._ports[port].was_cut)}

    async def cut_peers(self, ports: list[int]) -> dict[str, int]:
        """Resets the connections from these ports of programs."""
        peers = set(ports)
        pairs = [pair for port in self._ports.values() for pair in port.pairs if pair.peer[1] in peers]
        for pair in pairs:
            pair.reset()
        return {"count": len(pairs)}


async def _main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    proxying = Proxying()
    while line := await lines.readline():
        words = json.loads(line)
        answer = await getattr(proxying, words.pop("do"))(**words)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Proxies:
    """The process of the proxies, as a context manager. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(20)
            self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _ask(self, do: str, **words: Any) -> int:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"do": do, **words}) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        return int(answer.get("port", answer.get("count", 0)))

    def open(self, target: int) -> int:
        """Returns a new port, whose connections go to ``target``."""
        return self._ask("open", target=target)

    def retarget(self, port: int, target: int) -> None:
        """New connections go there."""
        self._ask("retarget", port=port, target=target)

    def hold(self, port: int, peers: Collection[str] = ()) -> int:
        """Nothing passes any more, either way; of connections from these addresses alone, if there are any. Returns how
        many there are now.
        """
        return self._ask("hold", port=port, peers=list(peers))

    def flow(self, port: int) -> None:
        """Ends all that was done to a port."""
        self._ask("flow", port=port)

    def delay(self, port: int, seconds: float) -> None:
        """Answers to programs come later by this; servers connect from other addresses."""
        self._ask("delay", port=port, seconds=seconds)

    def cut(self, port: int, *, after: int = 0) -> int:
        """Resets all connections now; or ends the one that gets so many more bytes of answers, in the middle."""
        return self._ask("cut", port=port, after=after)

    def was_cut(self, port: int) -> bool:
        """True if an answer was cut since the last ``cut(after=)``."""
        return bool(self._ask("was_cut", port=port))

    def cut_peers(self, ports: Iterable[int]) -> int:
        """Resets the connections that come from these ports."""
        return self._ask("cut_peers", ports=list(ports))


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(_main())
