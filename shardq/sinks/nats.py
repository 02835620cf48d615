"""NATS JetStream: each task is a message on a subject that a stream stores.

    nats://[USER:PASSWORD@ | TOKEN@]HOST[:PORT][,HOST[:PORT]…]#SUBJECT
    nats+tls://…?ca=FILE&cert=FILE&key=FILE#SUBJECT

The id goes along as ``Nats-Msg-Id``: within the stream's duplicate window (two minutes, unless it was set otherwise) a
task that is sent again is stored once. A message counts as taken when the stream has acknowledged it. A subject that no
stream stores looks like JetStream while it starts or elects a leader: tasks wait for it.

The client is for asyncio, and so has a loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from shardq.drivers.tls import context_of
from shardq.errors import InvalidUrl, MissingPackage
from shardq.sinks.base import SEND_S, SENT, Message, Refused, Result, Sink, Unsent
from shardq.sinks.urls import options

try:
    import nats
    import nats.errors
    import nats.js.errors
except ImportError as exc:
    raise MissingPackage("nats:// URLs need nats-py: pip install 'shardq[nats]'") from exc

if TYPE_CHECKING:
    from nats.aio.client import Client

T = TypeVar("T")

_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_ADDRESS = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOO_LARGE = 10054
"""The stream's own limit of a message; the server's own is known to the client."""


class NatsSink(Sink):
    """Publishes to JetStream, a batch at a time."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        where, _, fragment = rest.partition("#")
        self._subject = unquote(fragment)
        if not _SUBJECT.fullmatch(self._subject):
            raise InvalidUrl(
                f"a {scheme}:// URL ends with the subject, without blanks and wildcards: {scheme}://HOST:4222#orders.mail"
            )
        where, _, query = where.partition("?")
        self._options = options(scheme, query, tls=scheme == "nats+tls")
        login, _, hosts = where.rpartition("@")
        addresses = hosts.rstrip("/").split(",")
        if not all(map(_ADDRESS.fullmatch, addresses)):
            raise InvalidUrl(
                f"the addresses in a {scheme}:// URL are not HOST:PORT,HOST:PORT; a user and a password are "
                "percent-encoded"
            )
        self._servers = [f"{'tls' if scheme == 'nats+tls' else 'nats'}://{address}" for address in addresses]
        user, colon, password = login.partition(":")
        self._login: dict[str, Any] = {}
        if colon:
            self._login = {"user": unquote(user), "password": unquote(password)}
        elif login:
            self._login = {"token": unquote(login)}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._lost: asyncio.Event
        """Set when the connection is lost; of the loop."""

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shardq-nats", daemon=True)
        self._thread.start()
        self._client = self._run(self._connected())

    async def _connected(self) -> Client:
        async def ignore(_: Exception) -> None:
            """The next send meets the error."""

        self._lost = lost = asyncio.Event()

        async def closed() -> None:
            lost.set()

        tls = None if self._options.tls is None else context_of(self._options.tls)
        return await nats.connect(
            self._servers,
            allow_reconnect=False,
            connect_timeout=max(1, round(self._options.timeout_s / 2)),
            tls=tls,
            error_cb=ignore,
            disconnected_cb=closed,
            closed_cb=closed,
            name="shardq",
            **self._login,
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, "it is open"
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(2 * self._options.timeout_s)
        except BaseException:
            future.cancel()
            raise

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        return self._run(self._published(batch))

    async def _published(self, batch: Sequence[Message]) -> list[Result]:
        """Publishes all at once. A lost connection ends the wait for those that are not acknowledged."""
        tasks = [asyncio.ensure_future(self._publish(message)) for message in batch]
        lost = asyncio.ensure_future(self._lost.wait())
        first: set[asyncio.Future[Any]] = {asyncio.gather(*tasks), lost}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        results = [task.result() if task.done() else Unsent("NATS: the connection was lost") for task in tasks]
        for task in (*tasks, lost):
            task.cancel()
        await asyncio.gather(*tasks, lost, return_exceptions=True)
        return results

    async def _publish(self, message: Message) -> Result:
        assert self._client is not None, "it is open"
        try:
            await self._client.jetstream().publish(
                self._subject, message.payload, timeout=self._options.timeout_s, headers=_headers(message)
            )
        except nats.errors.MaxPayloadError:
            return Refused(f"NATS takes messages of {self._client.max_payload:,} bytes at most")
        except nats.js.errors.NoStreamResponseError:
            return Unsent(f"no stream stores the subject {self._subject!r}, or JetStream is not up")
        except nats.js.errors.APIError as exc:
            reason = f"JetStream: {exc.description} (code {exc.code}, {exc.err_code})"
            return Refused(reason) if exc.err_code == _TOO_LARGE else Unsent(reason)
        except (nats.errors.Error, OSError) as exc:
            return Unsent(f"NATS: {type(exc).__name__}: {exc}")
        return SENT

    def interrupt(self) -> None:
        loop, client = self._loop, self._client
        if loop is not None and client is not None:
            asyncio.run_coroutine_threadsafe(client.close(), loop)

    def close(self) -> None:
        client, self._client = self._client, None
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(_ended(client), loop).result(SEND_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(SEND_S)
            if not thread.is_alive():
                loop.close()


async def _ended(client: Client | None) -> None:
    """Closes the client, and ends what it leaves behind in the loop."""
    try:
        if client is not None:
            await client.close()
    finally:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports are closed in a later turn


def _headers(message: Message) -> dict[str, str]:
    headers = {
        name: value
        for name, value in message.headers.items()
        if _NAME.fullmatch(name) and not _CONTROL.search(value) and not name.lower().startswith("nats-")
    }
    return headers | {"Nats-Msg-Id": message.ascii_id, "Content-Type": message.content_type}
