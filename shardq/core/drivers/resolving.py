"""The addresses behind a name. The system's look-up has no bound of time, so it runs in a thread of its own.

Called by ``sockets`` and ``aiosockets``, which wait for as long as they can.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future
from typing import Any

from shardq.core.drivers.slots import host_of, port_of
from shardq.core.threads import begun

Address = tuple[socket.AddressFamily, Any]


def known(address: str) -> list[Address] | None:
    """The addresses that need no look-up: of a unix socket, or an IP address."""
    if address.startswith("/"):
        return [(socket.AF_UNIX, address)]
    try:
        return _found(address, socket.AI_NUMERICHOST)
    except OSError:
        return None


def look_up(address: str) -> Future[list[Address]]:
    """All addresses of a host, in the order of the system's preference, or the OSError of the look-up."""
    found = _under_way.get(address)
    if found is None:
        found = _under_way[address] = begun(lambda: _found(address), f"shardq-resolver-{address}")
        found.add_done_callback(lambda _: _under_way.pop(address, None))
    return found


# One for each name, however many wait: where a name server is silent, every caller asks again and again.
_under_way: dict[str, Future[list[Address]]] = {}
os.register_at_fork(after_in_child=_under_way.clear)


def _found(address: str, flags: int = 0) -> list[Address]:
    try:
        answers = socket.getaddrinfo(host_of(address), port_of(address), type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as exc:  # a label that is too long
        raise OSError(str(exc)) from exc
    return [(family, where) for family, _, _, _, where in answers]
