"""HTTP: each task is a POST of its own to the URL, with the id as its idempotency key.

    https://[USER:PASSWORD@ | TOKEN@]HOST[:PORT]/PATH[?QUERY][#timeout=SECONDS&ca=FILE&cert=FILE&key=FILE]

The standard library's client is enough for this, and needs no further package: connections that are kept open, one
request at a time on each, ``CONNECTIONS`` of them in threads. A login in the URL is sent as ``Authorization``, Basic
with a password and Bearer without one.

What an answer means: 2xx is taken. 400, 413, 422 and the like say that this task will never be: it is buried. 409 and
500 are failures of this task, as long as others are taken. All else says nothing of the task: where the URL, a login or
the other side is wrong or busy (3xx, 401, 403 to 405, 407, 408, 425, 429, 502 to 504), it waits, at least as long as
``Retry-After`` says.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import http.client
import re
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import unquote

from shardq.drivers.tls import context_of
from shardq.errors import InvalidUrl
from shardq.sinks.base import SENT, Failed, Message, Refused, Result, Sink, Unsent
from shardq.sinks.urls import options, split
from shardq.version import __version__

CONNECTIONS = 8

_WAITS = {401, 403, 404, 405, 407, 408, 421, 425, 429, 502, 503, 504}
_FAILS = {409}
_OWN = {"host", "content-length", "transfer-encoding", "connection", "authorization", "content-type", "user-agent"}
"""Header names that the request itself needs, in lower case; those that begin as ours are left out, too."""
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
_QUOTED = 300
"""Characters of an answer that a reason quotes."""


class HttpSink(Sink):
    """Posts each message."""

    batch = 64

    def __init__(self, url: str) -> None:
        parts = split(url, "HOST:PORT/PATH")
        scheme, host, port = parts.scheme, parts.hostname, parts.port
        if not host or _NOT_IN_A_URL.search(f"{host}{parts.path}{parts.query}"):
            raise InvalidUrl(
                f"a {scheme}:// URL needs a host, and no blanks or letters beyond ASCII: {scheme}://HOST:PORT/PATH"
            )
        # what follows the ? is the endpoint's
        self._options = options(scheme, parts.fragment, tls=scheme == "https", mark="#")
        self._host, self._port = host, port or (443 if scheme == "https" else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._login = _authorization(parts.username, parts.password)
        self._threads: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: list[http.client.HTTPConnection] = []
        self._down: Unsent | None = None
        """Why the rest of the batch is not sent."""

    def open(self) -> None:
        if self._options.tls is not None:
            context_of(self._options.tls)  # a file that can't be used is named now
        self._own, self._down = threading.local(), None
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="shardq-http")

    def send(self, batch: Sequence[Message]) -> Sequence[Future[Result]]:
        assert self._threads is not None, "it is open"
        self._down = None
        return [self._threads.submit(self._post, message) for message in batch]

    def interrupt(self) -> None:
        self._down = Unsent("the process ends")
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            sock = connection.sock
            if sock is not None:
                with contextlib.suppress(OSError):  # it is closed already
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # a TLS socket's own forgets its state

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    # ---- one message, in a thread of the pool

    def _post(self, message: Message) -> Result:
        down = self._down
        if down is not None:
            return down
        try:
            result = self._answered(message)
        except (OSError, http.client.HTTPException) as exc:
            result = Unsent(f"{self._host}:{self._port}: {type(exc).__name__}: {exc}")
        if isinstance(result, Unsent):
            self._down = result
        return result

    def _answered(self, message: Message) -> Result:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is not None and connection.sock is not None:
            try:
                return self._request(connection, message)
            except (ConnectionError, http.client.BadStatusLine):
                # the other side may have closed it while it was idle
                connection.close()
        if connection is None:
            connection = self._own.connection = self._connect()
        return self._request(connection, message)

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s, tls = self._options
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
            if tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context_of(tls))
        )
        with self._lock:
            self._connections.append(connection)
        return connection

    def _request(self, connection: http.client.HTTPConnection, message: Message) -> Result:
        try:
            connection.request("POST", self._target, body=message.payload, headers=self._headers(message))
            answer = connection.getresponse()
            text = answer.read(64 << 10)
            if not answer.isclosed():  # longer than anybody needs
                connection.close()
        except BaseException:
            connection.close()
            raise
        return result_of(answer.status, answer.reason, text, answer.getheader("Retry-After"))

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {
            name: value
            for name, value in message.headers.items()
            if _NAME.fullmatch(name)
            and _VALUE.fullmatch(value)
            and name.lower() not in _OWN
            and not name.lower().startswith(("idempotency-key", "shardq-"))
        }
        headers |= {
            "Content-Type": message.content_type,
            "Idempotency-Key": message.id,
            "Shardq-Topic": message.topic,
            "Shardq-Attempt": str(message.attempt),
            "User-Agent": f"shardq/{__version__}",
        }
        return headers | self._login


def _authorization(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    if password is None:
        return {"Authorization": f"Bearer {unquote(user)}"}
    login = f"{unquote(user)}:{unquote(password)}".encode()
    return {"Authorization": f"Basic {base64.b64encode(login).decode()}"}


def result_of(status: int, phrase: str, text: bytes, retry_after: str | None) -> Result:
    """The meaning of an answer.

    >>> result_of(204, "No Content", b"", None), result_of(429, "Too Many Requests", b"", "7")
    (Sent(), Unsent(reason='HTTP 429 Too Many Requests', again_s=7.0))
    """
    if 200 <= status < 300:
        return SENT
    said = text[:_QUOTED].decode("utf-8", "replace").strip()
    reason = f"HTTP {status} {phrase}".strip() + (f": {said}" if said else "")
    if status in _WAITS or status < 400:
        return Unsent(reason, _seconds(retry_after))
    if status >= 500 or status in _FAILS:
        return Failed(reason)
    return Refused(reason)


def _seconds(retry_after: str | None) -> float:
    """The header Retry-After: seconds, or a date."""
    text = (retry_after or "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
