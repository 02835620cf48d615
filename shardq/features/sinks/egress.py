"""Decides where this process may send by a route, and which secrets go along.

Anybody who may write to Redis can set a route, and this process serves it. So the process that sends says what routes
may reach, and which secrets they may name:

    sinks      patterns of servers: https://*.example.org, redis://10.0.0.7:6379, unix:///run/redis.sock
    secrets    $SHARDQ_SECRET_NAME, or the file NAME in a folder; SHARDQ_SECRET_NAME@HOST and NAME@HOST are for one host

``${NAME}`` in a route stands for a secret. Its value is percent-encoded, so it can't change how the URL is read;
``registry`` checks the servers of the URL before it reads any value. Sinks refuse link-local addresses as they connect,
when a name has become an address.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from shardq.core.drivers.settings import bracketed, host_of, port_of
from shardq.core.model.printable import quoted
from shardq.errors import InvalidOption, InvalidUrl

SINKS, SECRETS = "SHARDQ_SINKS", "SHARDQ_SECRETS"
"""The variables for a process that is given neither."""

PREFIX = "SHARDQ_SECRET_"

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LOGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*@")
_HTTP_OPTION = re.compile(r"(?<![^&])(header\.[^=&]+|sign|sign\.key)=[^&]*")
_SENTINEL_OPTION = re.compile(r"(?<![^&])(sentinel_(?:user|password))=[^&]*")

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HOST = r"(\*\.)?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\])(?::(\d{1,5}))?"
_BOUND = re.compile(_HOST)
_PATTERN = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]*)://(?:{_HOST}|(/.+))?")

LINK = [
    ipaddress.ip_network(each)
    for each in (
        "169.254.0.0/16",
        "fe80::/10",
        # where clouds have their metadata elsewhere: Amazon, Google, Alibaba, Oracle, Azure
        "fd00:ec2::/32",
        "fd20:ce::/64",
        "100.100.100.200/32",
        "192.0.0.192/32",
        "168.63.129.16/32",
    )
]
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

PLACES = (
    "${NAME} stands for a secret, and is possible only in the user and the password before the @, and in the values of "
    "header.NAME=, sign= and sign.key= of an HTTP endpoint; its name has letters, digits and _. Write the rest of the "
    "URL as it is"
)


WEBHOOK = "webhook"
"""The scheme of hooks, whose URLs are those of their tasks."""

ANY = "*"
"""The host in ``webhook://*``. Routes name their hosts: what answers to a route may be shown."""


class Place(NamedTuple):
    """A host as a pattern names it, with or without a port."""

    host: str
    """Lower case; ``*.example.org`` is each name below; ``*`` any host; or the path of a socket, or empty for a URL
    without a host.
    """
    port: int | None

    def covers(self, address: str) -> bool:
        """``address``: HOST:PORT, or the path of a socket, or empty."""
        if not address or address.startswith("/"):
            return self.host == address
        host = host_of(address).lower()
        if self.port not in (None, port_of(address)):
            return False
        below = self.host.startswith("*.") and host.endswith(self.host[1:]) and _is_name(host)
        return below or self.host in (host, ANY)

    @classmethod
    def of(cls, wild: str | None, host: str, port: str | None) -> Place:
        return cls(f"{wild or ''}{host.strip('[]').lower()}", None if port is None else int(port))


def _is_name(host: str) -> bool:
    return _NAME.fullmatch(host) is not None and not host.rpartition(".")[2].isdigit()


class Egress(NamedTuple):
    """The rules of one process."""

    sinks: tuple[tuple[str, Place], ...] | None = None
    """Scheme and place of each pattern. None: nobody has said."""
    secrets: Path | None = None
    """The folder, beside the variables."""

    @classmethod
    def given(cls, sinks: Iterable[str] | None, secrets: str | os.PathLike[str] | None) -> Egress:
        """Reads what a process is given; None: what the environment says. Raises InvalidOption."""
        if isinstance(sinks, str):
            raise InvalidOption(f"sinks={quoted(sinks)} is not possible; give a list: sinks=['https://*.example.org']")
        if sinks is None:
            sinks = os.environ.get(SINKS, "").replace(",", " ").split() or None
        secrets = secrets or os.environ.get(SECRETS) or None
        folder = None if secrets is None else Path(secrets)
        if folder is not None and not folder.is_dir():
            raise InvalidOption(
                f"secrets={quoted(str(folder))} is not a folder that can be read; give one with a file for each secret"
            )
        return cls(None if sinks is None else tuple(map(_pattern, sinks)), folder)

    def check(self, scheme: str, addresses: Sequence[str]) -> None:
        """Raises InvalidUrl if a server of a route is none of the sinks of this process."""
        if self.sinks is None:
            return
        if scheme == WEBHOOK:  # the URL of each task is checked when it is sent
            if not any(each == scheme for each, _ in self.sinks):
                raise InvalidUrl(
                    f"this process may send no webhooks: none of its sinks= is for them; add {WEBHOOK}://{ANY} for all "
                    f"public hosts, or those that you mean, as {WEBHOOK}://*.example.org (by ${SINKS} or `shardq run`)"
                )
            return
        for address in addresses or ("",):
            if not any(scheme == each and place.covers(address) for each, place in self.sinks):
                where = _shown(scheme, address)
                raise InvalidUrl(
                    f"this process may not send to {where}: none of its sinks= names that; forward elsewhere, or add "
                    f"{where} to them (by ${SINKS} or `shardq run`)"
                )

    def filled(self, to: str, scheme: str, addresses: Sequence[str]) -> str:
        """The URL with its secrets. Raises InvalidUrl for one that is not there, or is not for these servers."""
        return _REFERENCE.sub(lambda found: quote(self._secret(found[1], scheme, addresses), safe=""), to)

    def _secret(self, name: str, scheme: str, addresses: Sequence[str]) -> str:
        values = self._values(name)
        if not values:
            raise InvalidUrl(
                f"this process has no secret {name}; set {PREFIX}{name} in its environment, or put a file {name} into "
                f"its folder of secrets ({SECRETS})"
            )
        if values.keys() == {""}:
            return values[""]
        # a host by its name before those below another, and a longer one before a shorter one
        for bound in sorted(values.keys() - {""}, key=lambda each: (each.startswith("*"), -len(each))):
            if addresses and all(_bound(name, bound).covers(address) for address in addresses):
                return values[bound]
        where = ", ".join(_shown(scheme, address) for address in addresses or ("",))
        hosts = " and ".join(sorted(values.keys() - {""}))
        raise InvalidUrl(f"the secret {name} is for {hosts}, and is not sent to {where}; give it one for that host")

    def _values(self, name: str) -> dict[str, str]:
        """The host that it is bound to, or "" → the value. A file counts more than a variable."""
        found = {host: value for key, value in os.environ.items() if (host := _host_in(key, PREFIX + name)) is not None}
        try:
            for path in self.secrets.iterdir() if self.secrets is not None else ():
                if (host := _host_in(path.name, name)) is not None:
                    found[host] = path.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as exc:
            why = getattr(exc, "strerror", None) or "it is not UTF-8"
            raise InvalidUrl(f"the secret {name} can't be read in the folder {self.secrets}: {why}") from exc
        return found


def check_places(to: str) -> None:
    """Raises InvalidUrl if ``${`` stands where no secret may be."""
    scheme = to.partition("://")[0]
    where, _, name = to.partition("#")
    where, _, query = where.partition("?")
    # kombu alone has several URLs in one
    urls = where.split(";") if scheme.startswith("kombu+") else [where]
    if scheme in ("http", "https", WEBHOOK):
        name = _HTTP_OPTION.sub(r"\1", name)
    elif scheme.endswith(("redis+sentinel", "rediss+sentinel")):
        query = _SENTINEL_OPTION.sub(r"\1", query)
    rest = [*(each[found.end() :] if (found := _LOGIN.match(each)) else each for each in urls), query, name]
    if any("${" in each for each in rest) or "${" in _REFERENCE.sub("", to):
        raise InvalidUrl(PLACES)


def unfilled(to: str, value: str) -> str:
    """The URL with the same value in place of each secret."""
    return _REFERENCE.sub(value, to)


def is_of_link(ip: str) -> bool:
    """True for an address of the link, or one at which a cloud tells its machines about themselves.

    >>> is_of_link("169.254.169.254"), is_of_link("::ffff:169.254.169.254"), is_of_link("10.0.0.7")
    (True, True, False)
    """
    address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        nat64 = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        address = address.ipv4_mapped or address.sixtofour or nat64 or address
    return any(address in network for network in LINK)


def _pattern(text: str) -> tuple[str, Place]:
    if text == f"{WEBHOOK}://{ANY}":
        return WEBHOOK, Place(ANY, None)
    found = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[4] or 0) > 65535 or (text.endswith("://") and not text.startswith("kombu+")):
        raise InvalidOption(
            f"sinks= has {quoted(text)}, which is not a pattern of servers; write SCHEME://HOST or SCHEME://HOST:PORT, "
            "with *. before a name for all names below it: https://*.example.org"
        )
    return found[1], Place(found[5], None) if found[5] else Place.of(found[2], found[3] or "", found[4])


def _bound(name: str, host: str) -> Place:
    found = _BOUND.fullmatch(host)
    if found is None:
        raise InvalidUrl(f"the secret {name} has a host that is not understood; write {name}@HOST or {name}@*.HOST")
    return Place.of(*found.groups())


def _host_in(text: str, name: str) -> str | None:
    """The host in NAME@HOST; empty without one; None if it is another name."""
    found, mark, host = text.partition("@")
    return host if found == name and (host or not mark) else None


def _shown(scheme: str, address: str) -> str:
    return f"{scheme}://{address if address.startswith('/') or not address else bracketed(address).removesuffix(':0')}"
