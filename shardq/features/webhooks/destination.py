"""Where a hook may go: the URL as a customer gave it, and each address to which its host leads. No I/O.

A URL of a customer is that of a stranger, who may mean the machines beside this one. So only public addresses are
connected to, whatever name or way of writing leads to them. A private one is connected to only if ``sinks=`` of the
engine has the host as the URL has it: ``webhook://127.0.0.1``.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote

from shardq.core.model.endpoints import parts_of
from shardq.errors import InvalidUrl
from shardq.features.sinks.client import Server
from shardq.features.sinks.egress import WEBHOOK, Egress, is_of_link

BY_HANDLER = "make Webhooks(engine, http=True)"
"""How a handler allows URLs without TLS."""

_LONG = 20
"""A part of a path with so many characters is taken for a token."""

_UNICAST = ipaddress.IPv6Network("2000::/3")
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")
"""For examples; older versions of Python do not know it."""
_EMBEDDING = [ipaddress.IPv6Network(each) for each in ("64:ff9b::/96", "::/96")]
"""The last 32 bits of these are an address of IPv4: of NAT64, and of hosts that had both."""


class Destination(NamedTuple):
    """A URL that may be asked, in the parts that a request needs."""

    server: Server
    target: str
    """The path and the query."""
    parts: SplitResult
    """The URL, whose user and password a request brings as Authorization."""
    is_named: bool
    """True if ``sinks=`` has this very host, which may be a private one."""
    secrets: tuple[str, ...]
    """What of the URL must not be told."""

    @property
    def shown(self) -> str:
        """The URL for a reason: without its login, path and query."""
        return f"{self.server.scheme}://{self.server.authority}"


def destination(url: str, egress: Egress, *, http: bool, for_http: str = BY_HANDLER) -> Destination:
    """Reads a URL, and checks its host by the rules of this process. ``for_http``: how to allow URLs without TLS.
    Raises InvalidUrl, without a secret of the URL.
    """
    parts, host = parts_of(url)
    if parts.scheme != "https" and not http:
        raise InvalidUrl(f"the URL of a webhook begins with https://; for http:// {for_http}")
    server = Server(parts.scheme, host, parts.port or (443 if parts.scheme == "https" else 80))
    if parts.username is not None and parts.password is None and not unquote(parts.username).isascii():
        raise InvalidUrl("the token in the URL of a webhook is not ASCII")
    if not unquote(f"{parts.username or ''}{parts.password or ''}").isprintable():
        raise InvalidUrl("the login in the URL of a webhook has control characters")
    is_named = False
    if egress.sinks is not None:
        covering = [place for scheme, place in egress.sinks if scheme == WEBHOOK and place.covers(server.address)]
        if not covering:
            raise InvalidUrl(
                f"this process may not send to {WEBHOOK}://{server.authority}: none of the engine's sinks= names that; "
                "add it to them, or webhook://* for all public hosts"
            )
        is_named = any("*" not in place.host for place in covering)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(server, target, parts, is_named, tuple(_secrets(parts)))


def check_public(ip: str) -> None:
    """Raises InvalidUrl for an address that is not everybody's.

    >>> check_public("::ffff:127.0.0.1")
    Traceback (most recent call last):
        ...
    shardq.errors.InvalidUrl: it leads to an address that is not public
    """
    if is_of_link(ip) or not _is_public(ip):
        raise InvalidUrl("it leads to an address that is not public")


def _secrets(parts: SplitResult) -> list[str]:
    """The login, the query and its values, and what looks like a token in the path; the longest first."""
    values = [each.partition("=")[2] for each in parts.query.split("&")]
    found = [parts.query, *values, *(value for _, value in parse_qsl(parts.query))]
    found += [each for each in parts.path.split("/") if len(each) >= _LONG]
    login = parts.netloc.rpartition("@")[0]
    found = [login, *(each for each in found if len(each) >= 3), parts.username or "", parts.password or ""]
    return sorted({form for each in found for form in (each, unquote(each)) if form}, key=len, reverse=True)


def _is_public(ip: str) -> bool:
    address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if any(address in each for each in _EMBEDDING) else None
        inner = address.ipv4_mapped or address.sixtofour or last
        if inner is None:
            return address in _UNICAST and address not in _EXAMPLES and address.is_global
        address = inner
    return address.is_global and not address.is_multicast
