"""The connection settings of a client of redis-py, as a URL and what a URL can't say. Nothing is sent, and redis-py is
not imported here: a program that has a client has imported it.

The client is only read. Engines open connections of their own, by its addresses, database, user, password, credential
provider and TLS. A setting by which they would go elsewhere, or trust another server, is refused. Timeouts, retries and
the like are the engine's own; those that were given to the client are named, for the log.
"""

from __future__ import annotations

import inspect
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from urllib.parse import quote

from shardq.core.drivers.credentials import Credentials, Provided
from shardq.core.drivers.settings import Tls, bracketed
from shardq.errors import InvalidOption

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    RedisClient: TypeAlias = redis.Redis | redis.asyncio.Redis | redis.RedisCluster | redis.asyncio.RedisCluster
    """A client of redis-py for a server, a cluster, or the master of a service (``Sentinel.master_for``)."""

_OWN = (
    "socket_timeout", "socket_connect_timeout", "retry", "retry_on_error", "retry_on_timeout", "health_check_interval",
    "client_name", "protocol",
)  # fmt: skip
"""The settings that engines have themselves, under another name if at all."""


@dataclass(frozen=True, slots=True)
class Access:
    """The settings that a URL has no words for."""

    tls: Tls | None = None
    """The TLS settings of a client."""
    provided: Provided | None = None
    own: tuple[str, ...] = ()
    """The settings of a client in place of which an engine has its own."""


def is_client(given: object) -> bool:
    """True for a client of redis-py."""
    return _its_class(given) is not None and (hasattr(given, "connection_pool") or hasattr(given, "nodes_manager"))


def _its_class(given: object) -> type | None:
    """The class of redis-py of which a client is."""
    return next((each for each in type(given).__mro__ if each.__module__.partition(".")[0] == "redis"), None)


def read(client: Any) -> tuple[str, Access]:
    """The URL of a client, with its password, and the rest. Raises InvalidOption for what no engine can do."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        (url, access), given = _of_cluster(client)
    else:
        given = pool.connection_kwargs
        url, access = _of_sentinel(pool) if hasattr(pool, "sentinel_manager") else _of_server(pool)
    usual = inspect.signature(_its_class(client).__init__).parameters  # type: ignore[misc]  # is_client() is true
    own = [name for name in _OWN if given.get(name) and not (name in usual and given[name] == usual[name].default)]
    return url, replace(access, own=tuple(own))


def _refuse(setting: str, whose: str = "the client") -> NoReturn:
    raise InvalidOption(f"{setting}= of {whose} is not possible here; leave it out, or give a URL")


def _of_server(pool: Any) -> tuple[str, Access]:
    one = _connection(pool)
    return _url("unix" if hasattr(one, "path") else "redis", [_address(one)], one)


def _of_cluster(client: Any) -> tuple[tuple[str, Access], Mapping[str, Any]]:
    manager = client.nodes_manager
    if getattr(manager, "address_remap", None) is not None:
        _refuse("address_remap")
    if getattr(client, "user_on_connect_func", None) is not None:
        _refuse("redis_connect_func")
    nodes = list(manager.startup_nodes.values())
    pool = one = nodes[0]
    if hasattr(one, "connection_class"):  # of asyncio: the node itself makes connections
        given = one.connection_kwargs
    else:
        given = manager.connection_kwargs
        pool = manager.create_redis_node(one.host, one.port, **given).connection_pool
    addresses = [_host_and_port(node.host, node.port) for node in nodes]
    return _url("redis+cluster", addresses, _connection(pool, client)), {**given, "retry": None}  # it always has one


def _of_sentinel(pool: Any) -> tuple[str, Access]:
    if not pool.is_master:
        raise InvalidOption("a client of replicas can't be used; give Sentinel.master_for(service)")
    manager = pool.sentinel_manager
    for name, value in (
        ("min_other_sentinels", manager.min_other_sentinels),
        ("force_master_ip", getattr(manager, "_force_master_ip", None)),
    ):
        if value:
            _refuse(name)
    one = _connection(pool)
    sentinels = [_connection(each.connection_pool) for each in manager.sentinels]
    first = sentinels[0]
    if _tls(first) != _tls(one):
        raise InvalidOption(
            "the master and its sentinels need the same TLS settings; give them in sentinel_kwargs=, too"
        )
    if first.credential_provider is not None:
        _refuse("credential_provider", "the sentinels")
    words = {"sentinel_user": _text(first.username), "sentinel_password": _text(first.password)}
    return _url("redis+sentinel", map(_address, sentinels), one, service=str(pool.service_name), words=words)


def _connection(pool: Any, client: Any = None) -> Any:
    """A connection of a pool's, which is never opened: it has all settings, those that were not given, too."""
    kind = pool.connection_class
    if not str(getattr(kind, "__module__", "")).startswith("redis."):
        named = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"
        raise InvalidOption(
            f"the client connects by {named}, which is not redis-py's, so it may lead elsewhere; give a client that "
            "connects by a class of redis-py, or a URL"
        )
    one = kind(**pool.connection_kwargs)
    if one.redis_connect_func not in (None, getattr(client, "on_connect", None)):
        _refuse("redis_connect_func")
    return one


def _address(one: Any) -> str:
    path = getattr(one, "path", None)
    # a managed server that moves has pools go by another address for some seconds
    return quote(os.fsencode(path)) if path else _host_and_port(getattr(one, "orig_host_address", one.host), one.port)


def _host_and_port(host: str, port: int | str) -> str:
    return bracketed(f"{host}:{int(port)}")


def _url(
    scheme: str, addresses: Iterable[str], one: Any, *, service: str = "", words: Mapping[str, str | None] = {}
) -> tuple[str, Access]:
    tls, provider = _tls(one), one.credential_provider
    login = Credentials(_text(one.username), _text(one.password))
    if tls is not None:
        scheme = scheme.replace("redis", "rediss")
    head = ""
    if login and provider is None:
        secret = f":{quote(login.password, safe='')}" if login.password else ""
        head = f"{quote(login.username or '', safe='')}{secret}@"
    path = f"/{quote(service, safe='')}" if service else ""
    given = {name: value for name, value in words.items() if value}
    if scheme == "unix":
        given |= {"db": str(one.db)} if one.db else {}
    else:
        path += f"/{one.db}" if one.db else ""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())
    url = f"{scheme}://{head}{','.join(addresses)}{path}{f'?{query}' if query else ''}"
    return url, Access(tls, None if provider is None else Provided(provider))


def _text(given: Any) -> str | None:
    """A user or password, which may be bytes or a number."""
    return os.fsdecode(given) if isinstance(given, bytes) else str(given) if given else None


_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED, None: ssl.CERT_NONE}


def _tls(one: Any) -> Tls | None:
    """The TLS of a connection."""
    of_asyncio = getattr(one, "ssl_context", None)
    if of_asyncio is None and not hasattr(one, "cert_reqs"):
        return None
    for name in ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled"):
        if getattr(one, name, None):
            _refuse(name)
    source = one if of_asyncio is None else of_asyncio
    verify = source.cert_reqs
    if not isinstance(verify, ssl.VerifyMode):
        verify = _VERIFY[verify]
    minimum = getattr(one, "ssl_min_version", None) or getattr(source, "min_version", None)
    return Tls(
        ca=_file(source.ca_certs),
        cert=_file(source.certfile),
        key=_file(source.keyfile),
        check_hostname=bool(source.check_hostname) and verify != ssl.CERT_NONE,
        verify=verify,
        folder=_file(getattr(one, "ca_path", None) or getattr(source, "ca_path", None)),
        data=getattr(source, "ca_data", None),
        pass_phrase=getattr(one, "certificate_password", None) or getattr(source, "password", None),
        oldest=None if minimum is None else ssl.TLSVersion(minimum),
        ciphers=getattr(one, "ssl_ciphers", None) or getattr(source, "ciphers", None),
        include=_flags(one, source, "include"),
        exclude=_flags(one, source, "exclude"),
    )


def _flags(one: Any, source: Any, which: str) -> int:
    name = f"{which}_verify_flags"
    return reduce(or_, getattr(one, f"ssl_{name}", None) or getattr(source, name, None) or (), 0)


def _file(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
