"""A master and a replica, watched by sentinels."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import redis

from cluster import servers
from cluster.ports import free_port
from cluster.sentinels import QUORUM, SENTINELS, SERVICE, sentinel_of
from cluster.server import Server, ServerFailed
from tests.chaos.grounds.ground import SETTLED_S, Ground, in_step, source
from tests.chaos.proxy import HOST

DOWN_AFTER_MS = 3000
"""Long enough for a machine that is busy: a promotion that nobody asked for says little."""


class Pair(Ground):
    kind = "sentinel"

    def _start(self) -> None:
        first, second = (self._new(number) for number in range(2))
        self._pair = [first, second]
        self._stack.enter_context(first)
        second.options["replicaof"] = f"{HOST} {self.ports[first]}"
        self._stack.enter_context(second)
        self._until(lambda: in_step(second), "the replica is in step")
        self._sentinels = [self._new_sentinel(first, number) for number in range(SENTINELS)]
        for sentinel in self._sentinels:
            self._stack.enter_context(sentinel)
        self._until(self._is_agreed, "the sentinels know each other and the replica")

    def _new(self, number: int) -> Server:
        server = Server(self.binary, port=free_port(), options=self.kept)
        self.ports[server] = port = self.proxies.open(server.port)
        server.options |= {
            "replica-announce-ip": HOST, "replica-announce-port": str(port), "bind-source-addr": source(number),
        }  # fmt: skip
        return server

    def _new_sentinel(self, master: Server, number: int) -> Server:
        sentinel = sentinel_of(servers.binary(), master, quorum=QUORUM)
        self.ports[sentinel] = port = self.proxies.open(sentinel.port)
        sentinel.options |= {
            "bind-source-addr": source(2 + number), "sentinel announce-ip": HOST, "sentinel announce-port": str(port),
        }  # fmt: skip
        self._watch(sentinel, master)
        sentinel.options["sentinel myid"] = f"{number + 1:040x}"  # the same when it starts again
        sentinel.options[f"sentinel down-after-milliseconds {SERVICE}"] = str(DOWN_AFTER_MS)
        sentinel.options[f"sentinel failover-timeout {SERVICE}"] = "5000"
        return sentinel

    def _watch(self, sentinel: Server, master: Server) -> None:
        sentinel.options[f"sentinel monitor {SERVICE}"] = f"{HOST} {self.ports[master]} {QUORUM}"

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(each.address for each in self._sentinels)}/{SERVICE}"

    @property
    def servers(self) -> list[Server]:
        return self._pair

    @property
    def sentinels(self) -> list[Server]:
        return self._sentinels

    def masters(self) -> list[Server]:
        named = self._named()
        return [each for each in self._pair if each.running and self.ports[each] == named]

    def _named(self) -> int:
        """The port of the master, as most sentinels know it."""
        said = []
        for sentinel in self._sentinels:
            if sentinel.running:
                with suppress(redis.RedisError):
                    answer = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE, timeout=2.0)
                    said += [int(answer[1])] if answer else []
        return max(said, key=said.count) if said else 0

    def replica_of(self, master: Server) -> Server | None:
        (other,) = (each for each in self._pair if each is not master)
        return other if other.running and in_step(other) else None

    def server_of(self, slot: int) -> Server:
        if not (some := self.masters()):
            raise ServerFailed("no master runs")
        return some[0]

    def restart(self, server: Server) -> None:
        named = self._named()
        if server in self._sentinels:
            (master,) = (each for each in self._pair if self.ports[each] == named)
            self._watch(server, master)
        else:
            server.options.pop("replicaof", None)
            if named and self.ports[server] != named:
                server.options["replicaof"] = f"{HOST} {named}"
        server.start()

    def part(self, master: Server) -> None:
        others = [source(number) for number in range(2 + SENTINELS) if number != self._pair.index(master)]
        self.proxies.hold(self.ports[master], others)

    def part_with(self, master: Server, number: int) -> None:
        """Cuts a master off with one sentinel. Clients reach all of them still."""
        minority = {self._pair.index(master), 2 + number}
        for place, server in enumerate((*self._pair, *self._sentinels)):
            others = [source(other) for other in range(2 + SENTINELS) if (other in minority) != (place in minority)]
            self.proxies.hold(self.ports[server], others)

    def unite(self, master: Server) -> None:
        for server in (*self._pair, *self._sentinels):
            self.proxies.flow(self.ports[server])

    def settle(self, timeout: float = SETTLED_S) -> None:
        self._until(self._is_agreed, "the sentinels agree, and the replica is in step", timeout)

    def _is_agreed(self) -> bool:
        told = {
            str(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
            for sentinel in self._sentinels
            if sentinel.running
        }
        if len(told) != 1:
            return False
        (port,) = told
        (master,) = (each for each in self._pair if str(self.ports[each]) == port)
        (replica,) = (each for each in self._pair if each is not master)
        known = all(
            sum(map(_is_well, sentinel.ask("SENTINEL", "SENTINELS", SERVICE))) == SENTINELS - 1
            and any(_is_well(each) for each in sentinel.ask("SENTINEL", "REPLICAS", SERVICE))
            for sentinel in self._sentinels
            if sentinel.running
        )
        return known and master.ask("ROLE")[0] == "master" and in_step(replica)


def _is_well(told: Mapping[str, str] | list[str]) -> bool:
    flags = told["flags"] if isinstance(told, Mapping) else told[told.index("flags") + 1]
    return not {"s_down", "o_down", "disconnected"} & set(str(flags).split(","))
