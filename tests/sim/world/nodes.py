"""The servers of a simulated run: processes that speak the protocol, run scripts on the model, publish, and replicate.

A node answers one command after the other. While it is held it takes bytes, and answers when it goes on. Its replica
has all of its writes but those of the last moment, or of a longer one while it lags; a promotion makes a new node of
it, with a clock of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import hiredis

from shardq.core.scripts import Script
from tests.sim.model.commands import COMMANDS
from tests.sim.model.keyspace import Keyspace, Snapshot
from tests.sim.model.server import Failure, Server, Status
from tests.sim.world.disk import NO_FILE, Disk, ServerKind
from tests.sim.world.hub import START_US
from tests.sim.world.network import Link

if TYPE_CHECKING:
    from tests.sim.world.servers import Servers

VERSIONS: dict[ServerKind, bytes] = {
    "valkey9": b"redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n",
    "redis8": b"redis_version:8.2.3\r\n",
    "redis7": b"redis_version:7.0.15\r\n",
}

Executed = Callable[["Node", Link, Script, Sequence[bytes], Sequence[bytes], Any], None]
"""Told of every script, after it ran."""


UNKNOWN = Failure(b"ERR unknown command 'WAITAOF', with args beginning with: '1' '0'")


@dataclass
class Copy:
    """What a replica has."""

    at_us: int
    offset: int
    snapshot: Snapshot


class Node:
    """One server."""

    _ids = count(1)

    def __init__(self, servers: Servers, where: tuple[str, int], space: Keyspace | None = None) -> None:
        self.servers = servers
        self.hub = servers.hub
        self.where = where
        self.name = f"{where[0]}:{where[1]}"
        self.is_up = True
        self.is_master = True
        self.is_replaced = False
        """Its replica has taken its place, whether it knows that or not."""
        self.skew_us = 0
        self.held_until_us = 0
        self.loads_until_us = 0
        self.space = space or Keyspace(
            self.now_us, heard=self._heard, shuffle=servers.shuffle, hscan_without_values=servers.kind != "redis7"
        )
        self.server = Server(self.space)
        self.offset = 0
        self.history = self._new_id()
        self.earlier, self.earlier_offset = b"0" * 40, -1
        self.copy: Copy | None = None
        self.lags_until_us = 0
        self.moved_us = 0
        """When a slot came or left last."""
        self.refuses: frozenset[bytes] = frozenset()
        """The commands that its user may not run."""
        self.subscribers: dict[bytes, list[Link]] = {}
        self._readers: dict[Link, hiredis.Reader] = {}
        self._todo: deque[tuple[Link, list[bytes]]] = deque()
        self._is_busy = False
        self._turn = 0
        self._known: dict[bytes, Script] = {}
        self._waits: list[tuple[int, Callable[[bytes], None]]] = []
        self._asking: set[Link] = set()
        self.disk: Disk | None = None
        """None: all is on its disk at once."""
        self.space.run_id = self._new_id()
        if servers.replicated:
            self._replicate()

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def _new_id(self) -> bytes:
        return b"%040x" % self.servers.draw.getrandbits(160)

    def now_us(self) -> int:
        """Its clock."""
        return START_US + self.hub.now_us + self.skew_us

    # ---- links

    def linked(self, link: Link) -> None:
        self._readers[link] = hiredis.Reader()

    def unlinked(self, link: Link) -> None:
        self._readers.pop(link, None)
        for channel in [channel for channel, links in self.subscribers.items() if link in links]:
            self._unsubscribe(link, channel)

    def received(self, link: Link, data: bytes) -> None:
        reader = self._readers.get(link) or hiredis.Reader()
        try:
            reader.feed(data)
            while (words := reader.gets()) is not False:
                self._todo.append((link, words))
        except hiredis.ProtocolError:
            link.cut()  # a driver that was not answered tries TLS
        self._begin()

    def owes(self, link: Link) -> bool:
        """True if there is a command that it has not carried out."""
        return any(each is link for each, _ in self._todo)

    def _begin(self) -> None:
        if not self._is_busy and self._todo and self.is_up:
            self._is_busy = True
            self._turn += 1
            at_us = max(self.held_until_us, self.hub.now_us + self.servers.draw.randint(1, 60))
            self.hub.at(at_us, partial(self._next, self._turn))

    def _next(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._is_busy = False
        if not self.is_up or not self._todo:
            return
        if self.held_until_us > self.hub.now_us:
            self._begin()
            return
        link, words = self._todo.popleft()
        self._answer(link, words)
        self._begin()

    def _answer(self, link: Link, words: list[bytes]) -> None:
        verb = words[0].upper()
        if verb in self.refuses:
            link.answer(
                encoded(Failure(b"NOPERM User default has no permissions to run the '%s' command" % verb.lower()))
            )
        elif verb == b"SSUBSCRIBE":
            self._subscribe(link, words[1])
        elif verb == b"SUNSUBSCRIBE":
            self._unsubscribe(link, words[1])
            link.answer(_array(b"sunsubscribe", words[1], 0))
        elif verb == b"PING" and any(link in links for links in self.subscribers.values()):
            link.answer(_array(b"pong", b""))
        elif verb == b"WAIT":
            self._wait(int(words[1]), int(words[2]), link.answer)
        elif verb == b"WAITAOF" and self.disk is not None and self.servers.kind != "redis7":
            self._wait_aof(self.disk, int(words[1]), int(words[3]), link.answer)
        elif (fate := self.servers.net.fate(link)) == "request":
            link.cut()
        else:
            answer = encoded(self._executed(link, verb, words))
            if fate == "answer":
                link.cut()
            else:
                link.answer(answer)
            self._publish()
        if self.disk is not None and self.is_up:
            self.disk.tick()

    # ---- commands

    def _executed(self, link: Link, verb: bytes, words: list[bytes]) -> Any:
        if verb in (b"CLIENT", b"SELECT", b"AUTH"):
            return Status(b"OK")
        if verb == b"PING":
            return Status(b"PONG")
        if verb == b"CLUSTER":
            return self.servers.told(words[1].upper(), self)
        if verb == b"ROLE":
            return [b"master" if self.is_master else b"slave", self.offset, []]
        if verb == b"INFO":
            return self._info()
        if verb == b"CONFIG":
            return [word for name in words[2:] for word in (name, self._setting(name))]
        if verb == b"WAITAOF":
            return UNKNOWN if self.servers.kind == "redis7" else [1, 0]
        if verb == b"MEMORY":
            return 1000
        if verb == b"HELLO":
            return Failure(b"NOPROTO unsupported protocol version")
        if self.loads_until_us > self.hub.now_us:
            return Failure(b"LOADING Redis is loading the dataset in memory")
        if verb == b"ASKING":
            self._asking.add(link)
            return Status(b"OK")
        keys = self._keys(verb, words)
        if (refusal := self.servers.refusal(self, keys, asking=link in self._asking)) is not None:
            self._asking.discard(link)
            return refusal
        self._asking.discard(link)
        if verb in (b"EVALSHA", b"EVAL"):
            return self._script(link, verb, words)
        answer = self.server.command(*words)
        if verb in COMMANDS and COMMANDS[verb].writes:
            self._wrote()
        return answer

    def _setting(self, name: bytes) -> bytes:
        """The value of a setting."""
        policy = b"everysec" if self.disk is None else self.disk.policy.encode()
        return {
            b"appendonly": b"yes" if self._appends else b"no",
            b"appendfsync": policy,
            b"no-appendfsync-on-rewrite": b"no",
        }.get(name, b"")

    def _keys(self, verb: bytes, words: list[bytes]) -> list[bytes]:
        if verb in (b"EVALSHA", b"EVAL"):
            return words[3 : 3 + int(words[2])]
        command = COMMANDS.get(verb)
        if verb == b"SPUBLISH":
            return words[1:2]
        if command is None or command.keys == "none":
            return []
        return words[1:] if command.keys == "all" else words[1:2]

    def _script(self, link: Link, verb: bytes, words: list[bytes]) -> Any:
        if verb == b"EVAL":
            script = self.servers.script_of(words[1])
            self._known[script.sha.encode()] = script
        elif (known := self._known.get(words[1])) is not None:
            script = known
        else:
            return Failure(b"NOSCRIPT No matching script. Please use EVAL.")
        number = int(words[2])
        keys, rest = words[3 : 3 + number], words[3 + number :]
        answer = self.server.run_coded(self.servers.instead.get(script.text, script), keys, rest)
        self._wrote()
        self.servers.executed(self, link, script, keys, rest, answer)
        return answer

    def flush_scripts(self) -> None:
        self._known.clear()

    def _info(self) -> bytes:
        replica = b""
        if self.copy is not None:
            lag = 0 if self.lags_until_us <= self.hub.now_us else 20
            replica = b"slave0:ip=10.9.9.9,port=1,state=online,offset=%d,lag=%d\r\n" % (self.copy.offset, lag)
        full = self.server.denials.full
        return (
            b"# Server\r\n%sredis_mode:%s\r\nrun_id:%s\r\nloading:%d\r\nrole:%s\r\nconnected_slaves:%d\r\n%s"
            b"master_replid:%s\r\nmaster_replid2:%s\r\nmaster_repl_offset:%d\r\nsecond_repl_offset:%d\r\n"
            b"repl_backlog_active:%d\r\nused_memory:%d\r\nmaxmemory:%d\r\nmaxmemory_policy:noeviction\r\n"
            b"evicted_keys:0\r\naof_enabled:%d\r\naof_pending_bio_fsync:%d\r\naof_last_write_status:ok\r\n"
            b"aof_current_size:1000\r\naof_rewrites:0\r\ntotal_forks:0\r\nmaxclients:10000\r\nconnected_clients:%d\r\n"
            % (
                VERSIONS[self.servers.kind],
                b"cluster" if self.servers.is_cluster else b"standalone",
                self.space.run_id,
                self.loads_until_us > self.hub.now_us,
                b"master" if self.is_master else b"slave",
                self.copy is not None,
                replica,
                self.history,
                self.earlier,
                self.offset,
                self.earlier_offset,
                self.copy is not None,
                1000 if full else 10,
                1000,
                self._appends,
                self.disk is not None and self.disk.is_syncing,
                len(self._readers),
            )
        )

    # ---- pub/sub

    def _heard(self, channel: bytes) -> int:
        return len(self.subscribers.get(channel, ()))

    def _subscribe(self, link: Link, channel: bytes) -> None:
        if (refusal := self.servers.refusal(self, [channel], asking=False)) is not None:
            link.answer(encoded(refusal))
            return
        links = self.subscribers.setdefault(channel, [])
        if link not in links:
            links.append(link)
        link.answer(_array(b"ssubscribe", channel, 1))

    def _unsubscribe(self, link: Link, channel: bytes) -> None:
        links = self.subscribers.get(channel, [])
        if link in links:
            links.remove(link)
        if not links:
            self.subscribers.pop(channel, None)

    def _publish(self) -> None:
        messages = self.space.messages
        if not messages:
            return
        for channel, message in messages:
            for link in self.subscribers.get(channel, ()):
                link.answer(_array(b"smessage", channel, message))
        messages.clear()

    # ---- the disk, and replication

    @property
    def _appends(self) -> bool:
        return self.disk is None or self.disk.appends

    def _wrote(self) -> None:
        self.offset += 1
        if self.disk is not None:
            self.disk.wrote()

    def _wait_aof(self, disk: Disk, local: int, ms: int, answer: Callable[[bytes], None]) -> None:
        if local and not disk.appends:
            answer(encoded(NO_FILE))
        else:
            disk.wait(ms, lambda synced: answer(_array(synced, 0)))

    def _replicate(self) -> None:
        """Lets the replica catch up, again and again."""
        if not self.is_up or not self.is_master or self.is_replaced:
            return
        if self.lags_until_us <= self.hub.now_us and (self.copy is None or self.copy.offset != self.offset):
            self.copy = Copy(self.hub.now_us, self.offset, self.space.snapshot())
            due, self._waits = self._waits, []
            for offset, answer in due:
                if offset <= self.copy.offset:
                    answer(encoded(1))
                else:
                    self._waits.append((offset, answer))
        elif self.copy is not None and self.copy.offset == self.offset:
            self.copy.at_us = self.hub.now_us
        self.hub.after(self.servers.draw.randint(200, 5000), self._replicate)

    def _wait(self, wanted: int, ms: int, answer: Callable[[bytes], None]) -> None:
        has = int(self.copy is not None and self.copy.offset >= self.offset)
        if has >= wanted:
            answer(encoded(has))
            return
        entry, is_up = (self.offset, answer), self.space.run_id
        if wanted == 1 and self.copy is not None:
            self._waits.append(entry)

        def over() -> None:
            if entry in self._waits:
                self._waits.remove(entry)
                answer(encoded(0))
            elif (wanted > 1 or self.copy is None) and is_up == self.space.run_id:
                answer(encoded(has))

        self.hub.after(ms * 1000, over)

    # ---- what may happen to it

    def hold(self, seconds: float) -> None:
        """It stands still, as by SIGSTOP, and goes on."""
        self.held_until_us = max(self.held_until_us, int(self.hub.now_us + seconds * 1e6))

    def go_on(self) -> None:
        """It stands still no longer."""
        self.held_until_us = min(self.held_until_us, self.hub.now_us)
        self._is_busy = False
        self._begin()

    def go_down(self) -> None:
        self.is_up = False
        self._todo.clear()
        self._is_busy = False
        self._waits.clear()
        if self.disk is not None:
            self.disk.ends()
        self._known.clear()
        self.subscribers.clear()
        self.servers.net.cut(lambda link: link.peer is self)
        self._readers.clear()

    def come_up(self, snapshot: Snapshot | None = None, *, loads_s: float = 0.0) -> None:
        """Starts again, with what its disk has: all, or what was there at an earlier time."""
        if snapshot is not None:
            self.space.restore(snapshot)
        self.is_up = True
        self.space.run_id = self._new_id()
        self.earlier, self.earlier_offset, self.history = self.history, self.offset + 1, self._new_id()
        self.copy = None
        self.loads_until_us = int(self.hub.now_us + loads_s * 1e6)
        if self.servers.replicated:
            self._replicate()

    def drop_subscriptions(self, channels: Iterable[bytes]) -> None:
        """Ends subscriptions of a slot that has moved away."""
        for channel in list(channels):
            for link in self.subscribers.pop(channel, ()):
                link.answer(_array(b"sunsubscribe", channel, 0))


def encoded(answer: Any) -> bytes:
    """An answer in RESP2."""
    if isinstance(answer, bytes):
        return b"$%d\r\n%s\r\n" % (len(answer), answer)
    if answer is None:
        return b"$-1\r\n"
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, Failure):
        where = b"" if answer.line is None else b" script: x, on @user_script:%d." % answer.line
        return b"-%s%s\r\n" % (answer.text.replace(b"\r\n", b" "), where)
    if isinstance(answer, Status):
        return b"+%s\r\n" % answer.text
    return b"*%d\r\n%s" % (len(answer), b"".join(map(encoded, answer)))


def _array(*items: bytes | int) -> bytes:
    return encoded(list(items))
