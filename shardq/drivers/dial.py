"""Opens connections through redis-py: TCP, TLS or unix socket, AUTH, HELLO, SELECT.

The only place that touches redis-py's connections. They are used for the hand-shake alone and then give up
their socket (or stream): exchanging through them costs several times what the exchange itself costs. Their
own retries and maintenance notifications are off, because only the driver knows what a resend means.
Called by ``wire`` and ``pipe``.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardq.drivers.faults import ErrorReply, Fault, of_exception
from shardq.drivers.settings import Credentials, Settings
from shardq.drivers.slots import host_of, port_of

# redis-py's constructors carry no types.
_plain: Any = redis.Connection
_tls: Any = redis.SSLConnection
_unix: Any = redis.UnixDomainSocketConnection
_async_plain: Any = redis.asyncio.Connection
_async_tls: Any = redis.asyncio.SSLConnection
_async_unix: Any = redis.asyncio.UnixDomainSocketConnection

# The reader's word for "no whole answer yet": RESP3 has a False of its own.
INCOMPLETE = object()
# Asked for on every connection, so that CLIENT LIST shows whose it is; a user that may not is no error.
NAME_COMMAND = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$6\r\nshardq\r\n"


def reader() -> hiredis.Reader:
    """A parser that makes values of errors, and tells "not yet" by ``INCOMPLETE``."""
    # Our value class is no exception, which hiredis accepts, whatever its types say.
    as_value: Any = ErrorReply
    return hiredis.Reader(replyError=as_value, notEnoughData=INCOMPLETE)


def dial(
    settings: Settings, address: str, *, timeout: float, protocol: int | None = None, sentinel: bool = False
) -> socket.socket | Fault:
    """An open, authenticated socket; the caller owns it."""
    login = settings.sentinel_login if sentinel else settings.login
    kinds = (_plain, _tls, _unix)
    retry = Retry(NoBackoff(), 0)
    connection = _connection(kinds, settings, address, login, timeout, protocol, sentinel, retry)
    try:
        connection.connect()
    except (redis.RedisError, OSError, hiredis.HiredisError) as exc:
        return of_exception(exc, sent=False, secrets=(login.password,))
    taken: socket.socket = connection._sock
    connection._sock = None  # what is gone from it, it does not close
    return taken


async def dial_async(
    settings: Settings, address: str, *, within: float, sentinel: bool = False
) -> asyncio.StreamWriter | Fault:
    """An open, authenticated stream; the caller owns it."""
    login = settings.sentinel_login if sentinel else settings.login
    kinds = (_async_plain, _async_tls, _async_unix)
    retry = AsyncRetry(NoBackoff(), 0)
    connection = _connection(kinds, settings, address, login, within, None, sentinel, retry)
    try:
        await connection.connect()
    except (redis.RedisError, OSError, hiredis.HiredisError) as exc:
        _given_up(connection)
        return of_exception(exc, sent=False, secrets=(login.password,))
    except BaseException:  # cancelled half-way
        _given_up(connection)
        raise
    taken: asyncio.StreamWriter = connection._writer
    connection._reader = connection._writer = None
    return taken


def _given_up(connection: Any) -> None:
    writer: asyncio.StreamWriter | None = connection._writer
    connection._reader = connection._writer = None
    if writer is not None:
        writer.transport.abort()


def _connection(
    kinds: tuple[Any, Any, Any],
    settings: Settings,
    address: str,
    login: Credentials,
    timeout: float,
    protocol: int | None,
    sentinel: bool,
    retry: Any,
) -> Any:
    plain, tls, unix = kinds
    options: dict[str, Any] = {
        "username": login.username,
        "password": login.password,
        "db": 0 if sentinel else settings.db,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": protocol or settings.protocol,
        "retry": retry,
        "driver_info": None,
        "maint_notifications_config": None,
    }
    if address.startswith("/"):
        return unix(path=address, **options)
    options |= {"host": host_of(address), "port": port_of(address)}
    if settings.tls is None:
        return plain(**options)
    return tls(
        ssl_ca_certs=settings.tls.ca,
        ssl_certfile=settings.tls.cert,
        ssl_keyfile=settings.tls.key,
        ssl_check_hostname=settings.tls.check_hostname,
        **options,
    )
