"""Sends hooks: one request for each, over connections that stay open, a client for each event loop.

A stranger's endpoint that hangs must not take what others need: connections, and places of a worker. So a host has few
connections, hooks wait for one of those for a moment only, few of them if it is slow, and are then put off without an
attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time

from shardq.core.consumer.policy import Bury, Hold, Retry, Snooze
from shardq.core.drivers.descriptors import scarce
from shardq.core.drivers.settings import Tls, bracketed
from shardq.core.drivers.sockets import context_of
from shardq.errors import InvalidUrl
from shardq.features.sinks.answer import Answer, NotHttp
from shardq.features.sinks.base import Message
from shardq.features.sinks.client import Client, Server, Unreached
from shardq.features.sinks.connection import NoAnswer
from shardq.features.sinks.egress import WEBHOOK, Egress, is_of_link
from shardq.features.sinks.http import AGENT, authorization, passed_on
from shardq.features.sinks.urls import unreached
from shardq.features.webhooks.destination import BY_HANDLER, Destination, check_public, destination
from shardq.features.webhooks.meaning import failed, meaning_of, put_off
from shardq.features.webhooks.signing import PREFIX, signature, signing_keys

log: logging.Logger = logging.getLogger("shardq.webhooks")

CONNECTIONS = 512
"""Of all public hosts together, in one event loop, and as many again of those that ``sinks=`` has by name."""
OF_HOST = 8
WAIT_S = 2.0
"""The longest wait of a hook for a connection to its host. It has a place of a worker meanwhile."""
AT_HOST, AT_SLOW_HOST = 256, OF_HOST + 16
"""Hooks for one host that are under way, or wait for a connection: the next ones do not wait at all."""
SLOW_S = 1.0
"""A host whose last request took longer is slow, and one for whose connections hooks have waited in vain."""
REMEMBERED = 10_000
"""Hosts without hooks of which it is kept that they did not answer."""
LONGEST_S = 60.0
"""The longest pause of a hook that finds its host full."""
SCARCE_S = 5.0
"""The pause of a hook for which this process has no file descriptor."""

_SECRET = "secret= of a webhook"


class _Host:
    """The hooks for one host that are under way, or wait for a connection."""

    __slots__ = ("booked", "connections", "is_silent", "took_s", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self.connections = asyncio.Semaphore(OF_HOST)
        self.took_s = 0.0
        """How long the last request took, as far as that is known."""
        self.is_silent = False
        """True if it has left its last request without an answer: it has one at a time, until it answers."""
        self.booked = 0.0
        """The instant at which the last one that was put off should find a connection."""

    @property
    def is_full(self) -> bool:
        if self.is_silent:
            return self.under_way >= 1
        return self.under_way >= (AT_SLOW_HOST if self.took_s > SLOW_S else AT_HOST)

    async def connection(self) -> bool:
        """Waits for one. Returns False if that takes too long."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self.connections.acquire()
        except TimeoutError:
            self.took_s = max(self.took_s, WAIT_S)
            return False
        if self.is_silent and self.under_way > 1:
            self.connections.release()
            return False
        return True

    def pause_s(self, now: float) -> float:
        """The pause of a hook that finds no connection: those that are put off come back one after the other."""
        self.booked = max(self.booked, now + 1.0) + self.took_s / (1 if self.is_silent else OF_HOST)
        return min(self.booked - now, LONGEST_S)


class _OfLoop:
    """The connections of one event loop."""

    def __init__(self, names: frozenset[str]) -> None:
        """``names``: the hosts that ``sinks=`` has without a ``*``."""
        self._names = names
        self.hosts: dict[Server, _Host] = {}
        self.public = Client(
            most=CONNECTIONS, most_of_host=OF_HOST, check_ip=check_public, context=lambda: context_of(Tls())
        )
        self.named = Client(
            most=CONNECTIONS, most_of_host=OF_HOST, check_ip=self._check_named, context=lambda: context_of(Tls())
        )

    def _check_named(self, ip: str) -> None:
        if is_of_link(ip) and ip not in self._names:
            raise InvalidUrl("it leads to a link-local address, where clouds keep what their machines must not tell")


class Poster:
    """Sends the hooks of one engine, or of one route, in any event loop. Thread-safe."""

    def __init__(
        self, egress: Egress, *, timeout_s: float, http: bool, of_route: bool = False, for_http: str = BY_HANDLER
    ) -> None:
        """``timeout_s``: for a request, from the look-up of the name to the last byte of the answer. ``for_http``: how
        to allow URLs without TLS.
        """
        self._egress, self._timeout_s, self._http = egress, timeout_s, http
        self._of_route, self._for_http = of_route, for_http
        self._names = frozenset(place.host for scheme, place in egress.sinks or () if scheme == WEBHOOK)
        self._loops: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    async def post(self, message: Message, url: str, secret: str | None) -> None:
        """Returns if the endpoint has taken it. Raises Retry, Hold, Snooze or Bury."""
        try:
            where = destination(url, self._egress, http=self._http, for_http=self._for_http)
            keys = [] if secret is None else signing_keys(secret, _SECRET)
        except InvalidUrl as exc:
            raise Bury(str(exc)) from exc
        answer = await self._answer(where, message, keys)
        hidden = [] if secret is None else [each for word in secret.split() for each in (word, word[len(PREFIX) :])]
        hidden += [each.partition(" ")[2] for each in authorization(where.parts).values()]
        meaning = meaning_of(answer, message, [*hidden, *where.secrets], of_route=self._of_route)
        if meaning is not None:
            if isinstance(meaning, Hold):
                log.info("webhook %s: HTTP %d from %s: its key waits", message.id, answer.status, where.shown)
            raise meaning

    async def close(self) -> None:
        """Closes the connections of this event loop. A request that is under way in it fails."""
        of_loop = self._loops.pop(asyncio.get_running_loop(), None)
        if of_loop is not None:
            await of_loop.public.close()
            await of_loop.named.close()

    async def _answer(self, where: Destination, message: Message, keys: list[bytes]) -> Answer:
        """The answer of the endpoint. Raises what a handler raises where there is none."""
        loop = asyncio.get_running_loop()
        of_loop, server = self._of(loop), where.server
        host = of_loop.hosts.setdefault(server, _Host())
        if host.is_full:
            raise self._put_off(message, where, host.pause_s(loop.time()), "is slow, or gets too many at a time")
        host.under_way += 1
        try:
            if not await host.connection():
                raise self._put_off(message, where, host.pause_s(loop.time()), "is slow, or gets too many at a time")
            began = loop.time()
            try:
                answer = await self._asked(where, message, keys, of_loop)
                host.is_silent = False
                return answer
            except (Retry, Bury) as exc:
                cause = exc.__cause__
                host.is_silent = isinstance(cause, Unreached | NoAnswer) and isinstance(cause.why, TimeoutError)
                raise
            finally:
                host.took_s = loop.time() - began
                host.connections.release()
        finally:
            host.under_way -= 1
            if not host.under_way and (not host.is_silent or len(of_loop.hosts) > REMEMBERED):
                del of_loop.hosts[server]

    async def _asked(self, where: Destination, message: Message, keys: list[bytes], of_loop: _OfLoop) -> Answer:
        client = of_loop.named if where.is_named else of_loop.public
        headers = self._headers(where, message, keys)
        try:
            return await client.request(
                where.server, "POST", where.target, headers, message.payload, timeout_s=self._timeout_s
            )
        except InvalidUrl as exc:
            raise Bury(
                f"{where.shown}: {exc}; to try hooks on a machine of your own, give the engine "
                f"sinks=['{WEBHOOK}://{where.server.authority}'], and for an http:// URL {self._for_http}"
            ) from exc
        except Unreached as exc:
            if scarce(exc.why):
                raise self._put_off(message, where, SCARCE_S, f"can't be reached from here: {exc.why}") from exc
            raise self._failed(message, unreached(bracketed(where.server.address), exc.why)) from exc
        except NoAnswer as exc:
            raise self._failed(message, f"{where.shown}: {self._why(exc)}") from exc

    def _failed(self, message: Message, reason: str) -> Retry | Bury:
        return failed(message, reason, of_route=self._of_route)

    def _headers(self, where: Destination, message: Message, keys: list[bytes]) -> dict[str, str]:
        now = int(time.time())
        id, payload = message.ascii_id, message.payload
        signed = signature(keys, id, now, payload) if keys else {"webhook-id": id, "webhook-timestamp": str(now)}
        own = {"Content-Type": message.content_type, "User-Agent": AGENT}
        return passed_on(message.headers) | own | authorization(where.parts) | signed

    def _why(self, exc: NoAnswer) -> str:
        if isinstance(exc.why, TimeoutError):
            return f"no answer within {self._timeout_s:g} s (timeout=)"
        if isinstance(exc.why, NotHttp):
            return f"the answer is not HTTP/1.1: {exc.why}"
        return f"the connection ended without an answer: {exc.why}"

    def _put_off(self, message: Message, where: Destination, pause_s: float, why: str) -> Snooze:
        log.info("webhook %s: %s %s; put off for %.1f s", message.id, where.shown, why, pause_s)
        return put_off(message, pause_s)

    def _of(self, loop: asyncio.AbstractEventLoop) -> _OfLoop:
        found = self._loops.get(loop)
        if found is None:
            for ended in [each for each in list(self._loops) if each.is_closed()]:
                self._loops.pop(ended, None)
            found = self._loops[loop] = _OfLoop(self._names)
        return found
