"""The URL of a redis-py connection, for another process to reach the same database."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from shardq.errors import InvalidOption

if TYPE_CHECKING:
    import redis


def url_of(connection: redis.Redis) -> str:
    """The URL by which a sink reaches what this connection does. Raises InvalidOption if it says too little."""
    from redis import SSLConnection  # here: it is loaded where there is a connection

    pool = connection.connection_pool
    said = pool.connection_kwargs
    login = ""
    if said.get("password") is not None:
        login = f"{quote(said.get('username') or '', safe='')}:{quote(str(said['password']), safe='')}@"
    db = said.get("db") or 0
    if said.get("path"):
        return f"unix://{login}{said['path']}?db={db}"
    if "host" not in said or issubclass(pool.connection_class, SSLConnection):
        raise InvalidOption(
            "this connection does not say all that another process needs to reach the same Redis; give its URL: "
            "delay_through(…, to='rq+rediss://HOST:PORT/DB'), or to='dramatiq+rediss://…'"
        )
    host = said["host"]
    return f"redis://{login}{f'[{host}]' if ':' in host else host}:{said.get('port') or 6379}/{db}"
