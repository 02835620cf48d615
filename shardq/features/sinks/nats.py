"""NATS JetStream: each task is a message on a subject that a stream stores.

    nats://[USER:PASSWORD@ | TOKEN@]HOST[:PORT][,HOST[:PORT]…]#SUBJECT
    nats+tls://…?ca=FILE&cert=FILE&key=FILE#SUBJECT

The id goes along as ``Nats-Msg-Id``, percent-encoded, by which the stream knows a task that is sent again. A message
counts as taken when the stream has acknowledged it. A subject that no stream stores looks like JetStream while it
starts or elects a leader: tasks wait for it.

The client is for asyncio, and so has a loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

from shardq.core.drivers.settings import host_of, port_of
from shardq.core.drivers.sockets import context_of
from shardq.errors import InvalidUrl, MissingPackage, Unavailable
from shardq.features.sinks.base import SENT, Message, Refused, Result, Sink, Unsent
from shardq.features.sinks.urls import options, split_name, unreached

try:
    import nats.errors
    import nats.js.errors
    from nats.aio.client import Client
except ImportError as _exc:
    raise MissingPackage("nats:// URLs need nats-py: pip install 'shardq[nats]'") from _exc

T = TypeVar("T")

log: logging.Logger = logging.getLogger("shardq.sinks")

CLOSING_S = 1.0
"""A server that hangs takes no goodbye."""

_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_ADDRESS = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOO_LARGE = 10054
"""The stream's own limit of a message; the server's own is known to the client."""


class NatsSink(Sink):
    """Publishes to JetStream, a batch at a time."""

    def __init__(self, url: str) -> None:
        where, name = split_name(url)
        scheme, _, where = where.partition("://")
        self._subject = unquote(name)
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
        whole = [address if re.search(r":\d+$", address) else f"{address}:4222" for address in addresses]
        self._addresses = ", ".join(whole)
        self.addresses: Sequence[str] = tuple(f"{host_of(address).strip('[]')}:{port_of(address)}" for address in whole)
        self._servers = [f"{'tls' if scheme == 'nats+tls' else 'nats'}://{address}" for address in addresses]
        user, colon, password = login.partition(":")
        self._login: dict[str, Any] = {"token": unquote(login)} if login else {}
        if colon:
            self._login = {"user": unquote(user), "password": unquote(password)}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._lost = asyncio.Event()
        """Set when the connection is lost, and when nothing more is to be waited for; of the loop."""
        self._told = ""
        """The server's last complaint."""

    def open(self) -> None:
        self._lost, self._told = asyncio.Event(), ""
        self._loop = loop = _Loop(self.check_ip)
        loop.set_exception_handler(_note)
        self._thread = threading.Thread(target=loop.run_forever, name="shardq-nats", daemon=True)
        self._thread.start()
        self._run(self._connect())

    async def _connect(self) -> None:
        errors: list[Exception] = []

        async def note(exc: Exception) -> None:
            errors.append(exc)
            self._told = str(exc)

        async def closed() -> None:
            self._lost.set()

        timeout_s = self._options.timeout_s
        tls = None if self._options.tls is None else context_of(self._options.tls)
        # two tries for each server, without a pause: those are the gate's
        each_s: Any = timeout_s / 2 / len(self._servers)  # to the client it is an int, which it hands to asyncio
        self._client = client = Client()
        connecting = asyncio.ensure_future(
            client.connect(
                self._servers,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=each_s,
                tls=tls,
                error_cb=note,
                disconnected_cb=closed,
                closed_cb=closed,
                name="shardq",
                **self._login,
            )
        )
        await self._unless_lost([connecting], timeout_s)
        exc: BaseException | None = TimeoutError() if connecting.cancelled() else connecting.exception()
        if exc is not None:
            known = [each for each in errors if isinstance(each, OSError | InvalidUrl)]
            cause = known[-1] if known and isinstance(exc, nats.errors.NoServersError) else exc
            if isinstance(cause, OSError):
                raise Unavailable(f"NATS at {unreached(self._addresses, cause)}") from exc
            raise Unavailable(
                f"NATS at {self._addresses} took no connection: {str(cause) or type(cause).__name__}; check the user, "
                "the password and TLS in the URL, and that this is a port of NATS"
            ) from exc

    async def _unless_lost(self, tasks: Sequence[asyncio.Task[Any]], timeout_s: float | None = None) -> None:
        """Waits for all tasks. A lost connection, and the end of the time, cancel those that are not done."""
        lost = asyncio.ensure_future(self._lost.wait())
        done = asyncio.ensure_future(asyncio.wait(tasks))
        await asyncio.wait({done, lost}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, lost, done):
            task.cancel()
        await asyncio.gather(*tasks, lost, done, return_exceptions=True)

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
        """Publishes all at once."""
        tasks = [asyncio.ensure_future(self._publish(message)) for message in batch]
        await self._unless_lost(tasks)
        why = Unsent(f"NATS at {self._addresses}: the connection was lost" + (f": {self._told}" if self._told else ""))
        return [why if task.cancelled() else task.result() for task in tasks]

    async def _publish(self, message: Message) -> Result:
        client, timeout_s = self._client, self._options.timeout_s
        assert client is not None, "it is open"
        headers = _headers(message)
        # as they are sent: a line for the version, one for each, and an empty one
        lines = "".join(f"{name}: {value.strip()}\r\n" for name, value in headers.items())
        size, most = len(message.payload) + len(f"NATS/1.0\r\n{lines}\r\n".encode()), client.max_payload
        if size > most:
            # the server would end the connection, and with it all that is on its way
            return Refused(
                f"it has {size:,} bytes with its headers, and NATS takes {most:,} at most: make it smaller, or raise "
                "max_payload of the server"
            )
        try:
            await client.jetstream().publish(self._subject, message.payload, timeout=timeout_s, headers=headers)
        except nats.js.errors.NoStreamResponseError:
            return Unsent(
                f"no stream stores the subject {self._subject!r}, or JetStream is not up: add a stream that has it"
            )
        except nats.js.errors.APIError as exc:
            reason = f"JetStream: {exc.description} (code {exc.code}, {exc.err_code})"
            return Refused(reason) if exc.err_code == _TOO_LARGE else Unsent(reason)
        except TimeoutError:
            told = f": {self._told}" if self._told else ": it hangs, or the stream has no leader"
            return Unsent(f"NATS at {self._addresses} has acknowledged nothing within {timeout_s:g} s{told}")
        except (nats.errors.Error, OSError) as exc:
            return Unsent(f"NATS at {self._addresses}: {type(exc).__name__}: {exc}")
        return SENT

    def interrupt(self) -> None:
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it is closed meanwhile
                loop.call_soon_threadsafe(self._lost.set)

    def close(self) -> None:
        client, self._client = self._client, None
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(_ended(client), loop).result(2 * CLOSING_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSING_S)
            if not thread.is_alive():
                loop.close()


class _Loop(asyncio.SelectorEventLoop):
    """Connects to no address that ``check_ip`` refuses."""

    def __init__(self, check_ip: Callable[[str], None]) -> None:
        super().__init__()
        self._check_ip = check_ip

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self._check_ip(address[0])
        await super().sock_connect(sock, address)


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Notes what the client leaves in the loop: errors are told by results."""
    log.debug("NATS: %s: %r", context.get("message"), context.get("exception"))


async def _ended(client: Client | None) -> None:
    """Closes the client, and ends what it leaves behind in the loop."""
    try:
        if client is not None:
            async with asyncio.timeout(CLOSING_S):
                await client.close()
    except Exception as exc:  # noqa: BLE001  the connection is given up anyhow; not in a `finally`, where no loop may run
        log.debug("NATS: closing: %r", exc)
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
