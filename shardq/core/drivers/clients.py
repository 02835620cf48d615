"""The connection settings of a client of redis-py, as a URL and what a URL can't say. Nothing is sent, and redis-py is
not imported: whoever has a client has it.

The client is only read. Engines open connections of their own, by its addresses, database, user, password, credential
provider and TLS; its timeouts, retries, caches and parsers are not theirs.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from shardq.core.drivers.credentials import Credentials, Provided
from shardq.core.drivers.settings import Tls, bracketed
from shardq.errors import InvalidOption

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    RedisClient: TypeAlias = redis.Redis | redis.asyncio.Redis | redis.RedisCluster | redis.asyncio.RedisCluster
    """A client of redis-py for a server, a cluster, or the master of a service (``Sentinel.master_for``)."""


@dataclass(frozen=True, slots=True)
class Access:
    """The settings that a URL has no words for."""

    tls: Tls | None = None
    """That of a client."""
    provided: Provided | None = None


def is_client(given: object) -> bool:
    """True for a client of redis-py."""
    return any(each.__module__.partition(".")[0] == "redis" for each in type(given).__mro__) and (
        hasattr(given, "connection_pool") or hasattr(given, "nodes_manager")
    )


def read(client: Any) -> tuple[str, Access]:
    """The URL of a client, with its password, and the rest. Raises InvalidOption for what no engine can do."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        return _of_cluster(client)
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinel(pool)
    one = _connection(pool)
    return _url("unix" if hasattr(one, "path") else "redis", [_address(one)], one)


def _of_cluster(client: Any) -> tuple[str, Access]:
    nodes = list(client.nodes_manager.startup_nodes.values())
    one = nodes[0]
    pool = one  # of asyncio: what makes connections is the node itself
    if not hasattr(pool, "connection_class"):
        manager = client.nodes_manager
        pool = manager.create_redis_node(one.host, one.port, **manager.connection_kwargs).connection_pool
    return _url("redis+cluster", (_host_and_port(node.host, node.port) for node in nodes), _connection(pool))


def _of_sentinel(pool: Any) -> tuple[str, Access]:
    if not pool.is_master:
        raise InvalidOption("a client of replicas can't be used; give Sentinel.master_for(service)")
    one = _connection(pool)
    sentinels = [_connection(each.connection_pool) for each in pool.sentinel_manager.sentinels]
    if (_tls(sentinels[0]) is None) != (_tls(one) is None):
        raise InvalidOption("TLS for the master and not for its sentinels, or the other way round, is not possible")
    user, password = sentinels[0].username, sentinels[0].password
    words = {"sentinel_user": user, "sentinel_password": password}
    return _url("redis+sentinel", map(_address, sentinels), one, service=str(pool.service_name), words=words)


def _connection(pool: Any) -> Any:
    """A connection of a pool's, which is never opened: it has all settings, those that were not given, too."""
    return pool.connection_class(**pool.connection_kwargs)


def _address(one: Any) -> str:
    path = getattr(one, "path", None)
    return quote(os.fsencode(path)) if path else _host_and_port(one.host, one.port)


def _host_and_port(host: str, port: int | str) -> str:
    return bracketed(f"{host}:{int(port)}")


def _url(
    scheme: str, addresses: Iterable[str], one: Any, *, service: str = "", words: Mapping[str, str | None] = {}
) -> tuple[str, Access]:
    tls, provider = _tls(one), getattr(one, "credential_provider", None)
    login = Credentials(one.username or None, one.password or None)
    if tls is not None and scheme != "redis+sentinel":
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


_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED, None: ssl.CERT_NONE}

_REFUSED = ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_include_verify_flags", "ssl_exclude_verify_flags")


def _tls(one: Any) -> Tls | None:
    """The TLS of a connection."""
    of_asyncio = getattr(one, "ssl_context", None)
    if of_asyncio is None and not hasattr(one, "cert_reqs"):
        return None
    for name in _REFUSED:
        if getattr(one, name, None):
            raise InvalidOption(f"{name}= of the client is not possible here; leave it out, or give a URL")
    source = one if of_asyncio is None else of_asyncio
    verify = source.cert_reqs
    if not isinstance(verify, ssl.VerifyMode):
        verify = _VERIFY[verify]
    minimum = getattr(one, "ssl_min_version", None) or getattr(source, "min_version", None)
    return Tls(
        ca=_file(source.ca_certs),
        cert=_file(source.certfile),
        key=_file(source.keyfile),
        check_hostname=bool(source.check_hostname),
        verify=verify,
        folder=_file(getattr(one, "ca_path", None) or getattr(source, "ca_path", None)),
        data=getattr(source, "ca_data", None),
        pass_phrase=getattr(one, "certificate_password", None) or getattr(source, "password", None),
        oldest=None if minimum is None else ssl.TLSVersion(minimum),
        ciphers=getattr(one, "ssl_ciphers", None) or getattr(source, "ciphers", None),
    )


def _file(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
