"""The connection settings in a URL, as one value: where the servers are and how to talk to them. No I/O.

The only module that reads connection URLs, and the only one that knows what is secret in them: ``safe_url`` and
``repr`` show passwords as ``***``, and no message quotes a part that could hold one. Called by engines.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, unquote_to_bytes

from shardq.core.drivers.credentials import SECRET, Credentials, Provided
from shardq.core.layout.words import is_foreign
from shardq.core.model.printable import quoted
from shardq.errors import InvalidOption, InvalidUrl

Kind = Literal["single", "cluster", "sentinel"]

# scheme: what is found there, whether it is reached through TLS, the default port
_SCHEMES: dict[str, tuple[Kind, bool, int]] = {
    "redis": ("single", False, 6379),
    "rediss": ("single", True, 6379),
    "unix": ("single", False, 0),
    "redis+cluster": ("cluster", False, 6379),
    "rediss+cluster": ("cluster", True, 6379),
    "redis+sentinel": ("sentinel", False, 26379),
    "rediss+sentinel": ("sentinel", True, 26379),
}
ALLOWED = (
    "redis://host:port/db, rediss://host:port/db, unix:///path, redis+cluster://host:port,host:port, "
    "rediss+cluster://host:port,host:port, redis+sentinel://host:port,host:port/service, "
    "rediss+sentinel://host:port,host:port/service, embedded://"
)
TLS_OPTIONS = ("ca", "cert", "key", "check_hostname")
SENTINEL_OPTIONS = ("sentinel_user", "sentinel_password")
_YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}

# Enough for a service's threads and far below a server's default of 10,000 clients.
CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Tls:
    """The check of the server's certificate, and the certificate that is shown to it.

    Without ``ca`` the system's own authorities are trusted; without ``cert`` none is shown.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    check_hostname: bool = True
    # What a URL has no words for.
    verify: ssl.VerifyMode = ssl.CERT_REQUIRED
    folder: str | None = None
    """A folder of authorities."""
    data: str | bytes | None = None
    """The authorities themselves: PEM, or DER."""
    pass_phrase: str | None = field(default=None, repr=False)
    """The pass phrase of the key."""
    oldest: ssl.TLSVersion | None = None
    ciphers: str | None = None
    include: int = 0
    exclude: int = 0
    """Flags of the check (``ssl.VerifyFlags``) beside Python's own, and without."""


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """The addresses to connect to, the user, and the time for retries."""

    kind: Kind
    addresses: tuple[str, ...]  # the server, the seeds of the cluster, or the sentinels: host:port or an absolute path
    safe_url: str  # the URL for messages and logs, with its passwords hidden
    login: Credentials
    sentinel_login: Credentials
    service: str
    db: int
    tls: Tls | None
    timeout: float  # seconds for the retries of a call
    connect_timeout: float
    protocol: int
    connections: int  # the bound of pooled connections to each node
    locate: Callable[[], str] | None = None
    """Returns the address of a server that may be started anew elsewhere, or raises EmbeddedFault. It may block for
    some seconds, and is called whenever ``addresses`` fails.
    """
    provided: Provided | None = None
    """Gives the credentials in place of ``login``."""
    check_ip: Callable[[str], None] | None = None
    """Raises InvalidUrl for an IP address that must not be connected to."""

    def __repr__(self) -> str:
        return f"Settings({self.safe_url!r})"

    @property
    def scheme(self) -> str:
        """The scheme of the URL, like ``rediss+cluster``."""
        return self.safe_url.partition("://")[0]

    def access(self, *, sentinel: bool) -> tuple[Credentials, Provided | None]:
        """The credentials for a server of the service or cluster, or for a sentinel, and what gives newer ones."""
        return (self.sentinel_login, None) if sentinel else (self.login, self.provided)

    @property
    def borrowers(self) -> int:
        """The number of those who may borrow connections at a time: each keeps one to each node that it asks."""
        return max(1, self.connections // 2)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        protocol: int = 3,
        connections: int = CONNECTIONS,
        also: tuple[str, ...] = (),
    ) -> Settings:
        """Reads a URL. Raises InvalidUrl (or InvalidOption for the keyword arguments). ``also``: further options after
        the ``?``, which the caller reads.
        """
        _check("timeout", timeout, least=0.001, most=86_400)
        _check("connect_timeout", connect_timeout, least=0.001, most=3_600)
        _check("connections", connections, least=1, most=10_000)
        if protocol not in (2, 3):
            raise InvalidOption(f"protocol {quoted(protocol)} is not known; allowed are 2 and 3")
        scheme, sep, rest = url.partition("://")
        if is_foreign(url):
            raise InvalidUrl("this URL has half of a surrogate pair in it; percent-encode the bytes that are meant")
        if not sep or scheme not in _SCHEMES:
            named = f"scheme {scheme!r}" if sep and re.fullmatch(r"[a-zA-Z0-9+.-]{1,32}", scheme) else "URL"
            raise InvalidUrl(f"this {named} is not understood; allowed are {ALLOWED}")
        kind, tls, port = _SCHEMES[scheme]
        head, _, query = rest.partition("?")
        if "#" in rest or "@" in query:
            raise InvalidUrl(
                f"a {scheme}:// URL has no part after # and no @ after the ?; "
                "write these characters of a user or password as %23, %3F and %40"
            )
        login, shown_login, where = _login(scheme, head)
        options = _options(scheme, kind, tls, query, also)
        if scheme == "unix":
            addresses, service, db = _path(where), "", _db(scheme, options.pop("db", ""))
            shown_where = quote(os.fsencode(addresses[0]))
        else:
            hosts, _, path = where.partition("/")
            addresses = _hosts(scheme, hosts, port, many=kind != "single")
            service, db = _service_and_db(scheme, kind, path)
            shown_where = ",".join(map(bracketed, addresses))
            shown_where += f"/{quote(service)}" if service else ""
            shown_where += f"/{db}" if db else ""
        shown_query = "&".join(
            f"{name}={SECRET if 'password' in name else quote(value, safe='/')}"
            for name, value in [*options.items(), *([("db", str(db))] if scheme == "unix" and db else [])]
        )
        return cls(
            kind=kind,
            addresses=addresses,
            safe_url=f"{scheme}://{shown_login}{shown_where}" + (f"?{shown_query}" if shown_query else ""),
            login=login,
            sentinel_login=Credentials(options.get("sentinel_user"), options.get("sentinel_password")),
            service=service,
            db=db,
            tls=tls_of(scheme, options) if tls else None,
            timeout=timeout,
            connect_timeout=connect_timeout,
            protocol=protocol,
            connections=connections,
        )


def _check(name: str, value: float, *, least: float, most: float) -> None:
    given: object = value
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= most:
        raise InvalidOption(f"{name}={quoted(value)} is not allowed; give a number from {least:g} to {most:g}")


def _login(scheme: str, head: str) -> tuple[Credentials, str, str]:
    """The user and password, how they are shown, and what follows the ``@``."""
    if scheme == "unix":
        if head.startswith("/"):
            return Credentials(), "", head
        given, sep, where = head.partition("@/")
        where = "/" + where
    else:
        given, sep, where = head.rpartition("@")
    if not sep:
        return Credentials(), "", head
    user, colon, password = given.partition(":")
    login = Credentials(unquote(user) or None, unquote(password) if colon else None)
    return login, quote(unquote(user)) + (f":{SECRET}" if colon else "") + "@", where


def _options(scheme: str, kind: Kind, tls: bool, query: str, also: tuple[str, ...]) -> dict[str, str]:
    allowed = (
        *(TLS_OPTIONS if tls else ()),
        *(SENTINEL_OPTIONS if kind == "sentinel" else ()),
        *(("db",) if scheme == "unix" else ()),
    )
    return options_in(scheme, query, (*allowed, *also))


def options_in(scheme: str, text: str, allowed: Sequence[str], *, mark: str = "?") -> dict[str, str]:
    """Reads the options of a URL, which follow the ``mark``. Raises InvalidUrl if one is not allowed."""
    options = dict(parse_qsl(text, keep_blank_values=True))
    unknown = [name for name in options if name not in allowed]
    if unknown or (text and not options):
        listed = ", ".join(allowed) or "none"
        raise InvalidUrl(
            f"a {scheme}:// URL has an option after the {mark} that is not known; allowed are: {listed} "
            f"(a {mark} in a user or password is written {quote(mark)})"
        )
    return options


def _path(where: str) -> tuple[str, ...]:
    path = os.fsdecode(unquote_to_bytes(where))  # any bytes may be a file's name
    if not path.startswith("/") or path == "/":
        raise InvalidUrl("a unix:// URL needs the absolute path of a socket: unix:///run/redis/redis.sock")
    return (path,)


def _hosts(scheme: str, hosts: str, default_port: int, *, many: bool) -> tuple[str, ...]:
    parts = hosts.split(",") if hosts else ["127.0.0.1"]
    if len(parts) > 1 and not many:
        raise InvalidUrl(f"a {scheme}:// URL names one server; several are for redis+cluster:// and redis+sentinel://")
    addresses = []
    for part in parts:
        bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.%]+)\](?::(\d{1,5}))?", part)
        plain = re.fullmatch(r"([A-Za-z0-9_.-]+)(?::(\d{1,5}))?", part)
        match = bracketed or plain
        port = int(match[2] or default_port) if match else 0
        if match is None or not 1 <= port <= 65535:
            raise InvalidUrl(
                f"the address in a {scheme}:// URL is not host:port with a port from 1 to 65535; IPv6 is "
                "written in brackets, and the characters / ? # @ of a user or password percent-encoded"
            )
        addresses.append(f"{match[1]}:{port}")
    return tuple(addresses)


def bracketed(address: str) -> str:
    """The address as a URL has it: ``[::1]:6379``."""
    host, _, port = address.rpartition(":")
    return f"[{host}]:{port}" if ":" in host else address


def _service_and_db(scheme: str, kind: Kind, path: str) -> tuple[str, int]:
    if kind == "sentinel":
        service, _, db = path.partition("/")
        if not service:
            raise InvalidUrl(f"a {scheme}:// URL needs the name of its service: {scheme}://h:p,h:p/mymaster")
        return unquote(service), _db(scheme, db)
    db_number = _db(scheme, path)
    if kind == "cluster" and db_number:
        raise InvalidUrl(f"a Redis Cluster has only database 0: write the {scheme}:// URL without /{db_number}")
    return "", db_number


def _db(scheme: str, text: str) -> int:
    if text == "":
        return 0
    if not re.fullmatch(r"\d{1,6}", text):
        raise InvalidUrl(f"the database of a {scheme}:// URL is not a number; allowed is 0 and up")
    return int(text)


def tls_of(scheme: str, options: Mapping[str, str]) -> Tls:
    """The TLS of a URL, by its options."""
    check = options.get("check_hostname", "yes").lower()
    if check not in _YES_NO:
        raise InvalidUrl(f"check_hostname= of a {scheme}:// URL is not understood; allowed are yes and no")
    if options.get("key") and not options.get("cert"):
        raise InvalidUrl(f"key= of a {scheme}:// URL needs cert= too: the client certificate it belongs to")
    return Tls(ca=options.get("ca"), cert=options.get("cert"), key=options.get("key"), check_hostname=_YES_NO[check])


def located(host: str, port: int, *, asked: str) -> str:
    """The address of a node as another one told it; an empty or unknown host is that of the one asked."""
    return f"{host_of(asked) if host in ('', '?') else host}:{port}"


def host_of(address: str) -> str:
    """The host of ``host:port`` (IPv6 without brackets)."""
    return address.rpartition(":")[0]


def port_of(address: str) -> int:
    """The port of ``host:port``."""
    return int(address.rpartition(":")[2])
