"""Connects transports, for coroutines: the asyncio twin of ``sockets``. Called by ``aioconnection``."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from shardq.core.drivers.faults import Fault, of_connecting, of_resolving, of_tls
from shardq.core.drivers.resolving import Address, known, look_up
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sockets import server_name, unconnected
from shardq.core.drivers.tls import context_of

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def open_transport(settings: Settings, address: str, factory: Callable[[], P], *, deadline: float) -> P | Fault:
    """A protocol on a connected transport, with TLS where the URL says so. ``deadline`` is by the loop's clock.

    Raises InvalidUrl for TLS files only.
    """
    loop = asyncio.get_running_loop()
    try:
        context = context_of(settings.tls) if settings.tls is not None else None
    except OSError as exc:  # no descriptor for its files
        return of_connecting(exc)
    sock = await connect_async(address, deadline=deadline)
    if isinstance(sock, Fault):
        return sock
    try:
        async with asyncio.timeout_at(deadline):
            return await _transport(loop, factory, sock, context, address)
    except (OSError, ValueError) as exc:  # ValueError: a name that can't be in a certificate
        return of_connecting(exc) if context is None and isinstance(exc, OSError) else of_tls(exc)


async def connect_async(address: str, *, deadline: float) -> socket.socket | Fault:
    """A connected socket, with nothing sent on it yet."""
    try:
        async with asyncio.timeout_at(deadline):
            addresses = known(address)
            if addresses is None:
                addresses = await asyncio.wrap_future(look_up(address))
    except OSError as exc:
        return of_resolving(exc, address)
    try:
        return await _connected(addresses, deadline)
    except OSError as exc:
        return of_connecting(exc)


async def _transport(
    loop: asyncio.AbstractEventLoop,
    factory: Callable[[], P],
    sock: socket.socket,
    context: ssl.SSLContext | None,
    address: str,
) -> P:
    """Closes the socket when it fails or is cancelled."""
    try:
        if sock.family == socket.AF_UNIX:
            _, protocol = await loop.create_unix_connection(factory, sock=sock)
        elif context is None:
            _, protocol = await loop.create_connection(factory, sock=sock)
        else:
            _, protocol = await loop.create_connection(
                factory, sock=sock, ssl=context, server_hostname=server_name(address)
            )
    except BaseException:
        sock.close()
        raise
    return protocol


async def _connected(addresses: list[Address], deadline: float) -> socket.socket:
    """A socket connected to the first address that accepts. Each try leaves time for those after it."""
    loop = asyncio.get_running_loop()
    last: OSError | None = None
    for place, (family, where) in enumerate(addresses):
        sock = unconnected(family)
        sock.setblocking(False)
        share = (deadline - loop.time()) / (len(addresses) - place)
        try:
            async with asyncio.timeout(share):
                await loop.sock_connect(sock, where)
            return sock
        except OSError as exc:
            sock.close()
            last = exc
        except BaseException:
            sock.close()
            raise
    raise last or OSError("the name has no address")
