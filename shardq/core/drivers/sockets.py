"""Connects sockets, for threads: from a name to TCP or a unix socket, and to TLS, all before one deadline; and the TLS
contexts of both drivers, from the files that a URL names.

Called by ``connection``, and by ``aioconnection``, which connects transports itself.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import hiredis

from shardq.core.drivers.descriptors import scarce
from shardq.core.drivers.faults import ErrorReply, Fault, of_connecting, of_resolving, of_tls
from shardq.core.drivers.settings import Settings, Tls, host_of, port_of
from shardq.core.locks import raised_by_handler
from shardq.core.threads import begun
from shardq.errors import InvalidUrl

Address = tuple[socket.AddressFamily, Any]


def known(address: str) -> list[Address] | None:
    """The addresses that need no look-up: of a unix socket, or an IP address."""
    if address.startswith("/"):
        return [(socket.AF_UNIX, address)]
    try:
        return _found(address, socket.AI_NUMERICHOST)
    except OSError as exc:
        if raised_by_handler(exc):
            raise
        return None


def look_up(address: str) -> Future[list[Address]]:
    """All addresses of a host, in the order of the system's preference, or the OSError of the look-up. The system's
    look-up has no bound of time, so it runs in a thread of its own.
    """
    found = _newest.get(address)
    if found is None or found.done():
        found = _newest[address] = begun(lambda: _found(address), f"shardq-resolver-{address}")
    return found


# One for each name, however many wait: where a name server is silent, every caller asks again and again.
_newest: dict[str, Future[list[Address]]] = {}
os.register_at_fork(after_in_child=_newest.clear)


def _found(address: str, flags: int = 0) -> list[Address]:
    try:
        answers = socket.getaddrinfo(host_of(address), port_of(address), type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as exc:  # a label that is too long
        raise OSError(str(exc)) from exc
    return [(family, where) for family, _, _, _, where in answers]


# The reader's word for "no whole answer yet": RESP3 has a False of its own.
INCOMPLETE = object()
# A firewall that forgot a connection, or a machine that lost its power, says nothing: the kernel asks after 30 s
# without a byte, and gives up 15 s later.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


def reader() -> hiredis.Reader:
    """A parser whose error answers are values, and whose "no whole answer yet" is ``INCOMPLETE``."""
    # Our value class is no exception, which hiredis accepts, whatever its types say.
    as_value: Any = ErrorReply
    return hiredis.Reader(replyError=as_value, notEnoughData=INCOMPLETE)


def open_socket(settings: Settings, address: str, *, deadline: float) -> socket.socket | Fault:
    """A connected socket, with TLS where the URL says so; the caller owns it. Raises InvalidUrl for TLS files,
    and for an address that must not be connected to.
    """
    try:
        context = context_of(settings.tls) if settings.tls is not None else None
    except OSError as exc:  # no descriptor for its files
        return of_connecting(exc)
    sock = connect(address, deadline=deadline, check_ip=settings.check_ip)
    if isinstance(sock, Fault):
        return sock
    if context is None:
        return sock
    try:
        sock.settimeout(_left(deadline))
        return context.wrap_socket(sock, server_hostname=server_name(address))
    except (OSError, ValueError) as exc:  # ValueError: a name that can't be in a certificate
        sock.close()
        if raised_by_handler(exc):
            raise
        return of_tls(exc)
    except BaseException:
        sock.close()
        raise


CheckIp = Callable[[str], None]


def connect(address: str, *, deadline: float, check_ip: CheckIp | None = None) -> socket.socket | Fault:
    """A connected socket, with nothing sent on it yet."""
    try:
        addresses = resolve(address, deadline, check_ip)
    except OSError as exc:
        if raised_by_handler(exc):
            raise
        return of_resolving(exc, address)
    try:
        return connect_to(addresses, deadline)
    except OSError as exc:
        if raised_by_handler(exc):
            raise
        return of_connecting(exc)


def resolve(address: str, deadline: float, check_ip: CheckIp | None = None) -> list[Address]:
    """All addresses of a host. ``check_ip`` raises for one that must not be connected to."""
    addresses = known(address) or look_up(address).result(_left(deadline))
    for family, where in addresses:
        if check_ip is not None and family != socket.AF_UNIX:
            check_ip(where[0])
    return addresses


def new_socket(family: socket.AddressFamily) -> socket.socket:
    """A new socket that sends small packets at once, and notices in the end when its peer is gone."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    if family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def server_name(address: str) -> str:
    """The name that the server's certificate must have: the host as written, without the zone of an IPv6 address."""
    return host_of(address).partition("%")[0]


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def connect_to(addresses: list[Address], deadline: float) -> socket.socket:
    """A socket connected to the first address that accepts. Each try leaves time for those after it."""
    last: OSError | None = None
    for place, (family, where) in enumerate(addresses):
        sock = new_socket(family)
        try:
            sock.settimeout(_left(deadline) / (len(addresses) - place))
            sock.connect(where)
            return sock
        except OSError as exc:
            sock.close()
            if raised_by_handler(exc):
                raise
            last = exc
        except BaseException:
            sock.close()
            raise
    raise last or OSError("the name has no address")


_Stamp = tuple[tuple[int, int, int], ...]
_made: dict[Tls, tuple[_Stamp, ssl.SSLContext]] = {}


def context_of(tls: Tls) -> ssl.SSLContext:
    """The context for new connections. Raises InvalidUrl, with the option and its file, when none can be made.

    It is made again when a file has changed, so that a process outlives its certificates. Files that can't be used
    while they are being changed leave the one before in force.
    """
    before = _made.get(tls)
    try:
        stamp = _stamp(tls)
        if before is not None and before[0] == stamp:
            return before[1]
        context = _context(tls)
    except InvalidUrl:
        if before is None:
            raise
        return before[1]
    _made[tls] = stamp, context
    return context


def _stamp(tls: Tls) -> _Stamp:
    """A value that changes with every change of the files. Raises when one is not readable."""
    seen = []
    for option, name in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        if name is None:
            continue
        try:
            with Path(name).open("rb"):
                status = Path(name).stat()
        except OSError as exc:
            if scarce(exc):
                raise
            raise InvalidUrl(f"{option}={name} in the URL can't be read: {exc.strerror}; name a PEM file") from exc
        seen.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(seen)


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca, capath=tls.folder, cadata=tls.data)
    except (ssl.SSLError, OSError) as exc:
        if scarce(exc):
            raise
        raise InvalidUrl(f"ca={tls.ca} in the URL holds no certificate in PEM form: {_reason(exc)}") from exc
    context.check_hostname = tls.check_hostname
    context.verify_mode = tls.verify
    if tls.oldest is not None:
        context.minimum_version = tls.oldest
    context.verify_flags = ssl.VerifyFlags((context.verify_flags | tls.include) & ~tls.exclude)
    if tls.ciphers is not None:
        try:
            context.set_ciphers(tls.ciphers)
        except ssl.SSLError as exc:
            raise InvalidUrl(f"ssl_ciphers={tls.ciphers!r} of the client can't be used: {_reason(exc)}") from exc
    if tls.cert is not None:
        _show(context, tls.cert, tls.key, tls.pass_phrase)
    return context


def _show(context: ssl.SSLContext, cert: str, key: str | None, given: str | None) -> None:
    """Makes the context show a client's certificate."""
    named = f"key={key}" if key else f"cert={cert}"

    def pass_phrase() -> str:
        # without this OpenSSL would ask for it on the terminal, for each connection
        raise InvalidUrl(
            f"{named} in the URL holds a key with a pass phrase, and nobody is there to type it; write one without: "
            "openssl pkey -in KEY -out NEW"
        )

    try:
        context.load_cert_chain(cert, key, given or pass_phrase)
    except ssl.SSLError as exc:
        raise InvalidUrl(_mismatch(exc, cert, key)) from exc


def _mismatch(exc: ssl.SSLError, cert: str, key: str | None) -> str:
    if exc.reason == "KEY_VALUES_MISMATCH":
        return f"key={key or cert} in the URL is not the key of the certificate cert={cert}; name the pair"
    if b"-----BEGIN CERTIFICATE-----" not in Path(cert).read_bytes():
        return f"cert={cert} in the URL holds no certificate in PEM form"
    if b"PRIVATE KEY-----" not in Path(key or cert).read_bytes():
        where = f"key={key} in the URL" if key else f"cert={cert} in the URL, without key=,"
        return f"{where} holds no private key in PEM form; name its file with key="
    return f"cert={cert} and key={key or cert} in the URL can't be used: {_reason(exc)}"


def _reason(exc: OSError) -> str:
    reason: str | None = getattr(exc, "reason", None)
    return (reason or exc.strerror or str(exc)).replace("_", " ").lower()
