"""HTTP: each task is a request of its own to the URL, with the id as its idempotency key.

    https://[USER:PASSWORD@ | TOKEN@]HOST[:PORT]/PATH[?QUERY][#OPTION=VALUE&…]

The standard library's client is enough for this, and needs no further package: connections that are kept open, one
request at a time on each, in threads. ``README.md`` has the options, and what each status means.

A request that gets no answer is a failure of its task if the endpoint is there all the same: if it answers an OPTIONS
request, or has answered other tasks between two tries of this one.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from urllib.parse import parse_qsl, unquote

from shardq.core.consumer.policy import Backoff
from shardq.core.drivers.settings import bracketed
from shardq.core.drivers.sockets import connect_to, context_of, resolve
from shardq.core.model.checks import MAX_ATTEMPTS
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.base import SENT, Failed, Message, Refused, Result, Sink, Unsent, shut_down
from shardq.features.sinks.pool import SLOW_S
from shardq.features.sinks.urls import UNKNOWN, options, split, unreached
from shardq.version import __version__

CONNECTIONS = 8
MOST_CONNECTIONS = 64
QUEUED = 8
"""Messages of each connection, under way and waiting for it: a sender has as many of all of them."""
REMEMBERED = 10_000
METHODS = ("POST", "PUT", "PATCH")
PROBE_S = 2.0
"""The longest wait for an endpoint that has left one request without an answer."""

_WAITS = {401, 403, 405, 407, 421, 425, 429, 503}
_FAILS = {404, 408, 409}
_LOGIN = "; check the login or the Authorization of the route"
_ADVICE = {401: _LOGIN, 403: _LOGIN, 405: "; check the method= of the route"} | dict.fromkeys(
    (301, 302, 307, 308), "; give the route the URL to which this one redirects"
)
_BUSY = {429, 502, 503, 504}
"""The statuses with which an endpoint answers any request while it is down or overloaded."""
_HEADER = "header."
_OPTIONS = ("method", "connections", "max_attempts", "outage", "backoff", "sign")
_FRAMING = {"host", "content-length", "transfer-encoding", "connection"}
"""Header names that the client writes, in lower case."""
_OWN = {*_FRAMING, "authorization", "content-type", "user-agent"}
"""Header names that a task's own headers can't have; those that begin as ours are left out, too."""
_OURS = ("idempotency-key", "shardq-", "webhook-")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_KEY = "whsec_"
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
_QUOTED = 300
"""Characters of an answer that a reason quotes."""


class HttpSink(Sink):
    """Sends each message as a request."""

    def __init__(self, url: str) -> None:
        parts = split(url, "HOST:PORT/PATH")
        scheme, host, port = parts.scheme, parts.hostname, parts.port
        if not host or _NOT_IN_A_URL.search(f"{host}{parts.path}{parts.query}"):
            raise InvalidUrl(
                f"a {scheme}:// URL needs a host, and no blanks or letters beyond ASCII: {scheme}://HOST:PORT/PATH"
            )
        if "@" in parts.fragment:
            raise InvalidUrl(f"a {scheme}:// URL has no @ after the #; write %40")
        # what follows the ? is the endpoint's
        headers = [name for name, _ in parse_qsl(parts.fragment, keep_blank_values=True) if name.startswith(_HEADER)]
        tls = scheme == "https"
        self._options = options(scheme, parts.fragment, tls=tls, mark="#", also=(*_OPTIONS, f"{_HEADER}NAME", *headers))
        others = self._options.others
        self._host, self._port = host, port or (443 if tls else 80)
        self.addresses = (f"{host}:{self._port}",)
        self._address = bracketed(self.addresses[0])
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._method = others.get("method", "POST")
        if self._method not in METHODS:
            raise InvalidUrl(f"method= of an HTTP URL is not possible; give one of {', '.join(METHODS)}")
        self._at_once = _whole("connections", others.get("connections", str(CONNECTIONS)), MOST_CONNECTIONS)
        self.batch: int = QUEUED * self._at_once
        if "max_attempts" in others:
            self.max_attempts: int | None = _whole("max_attempts", others["max_attempts"], MAX_ATTEMPTS)
        if others.get("outage", "wait") != "wait":
            raise InvalidUrl(
                "outage= of an HTTP URL is not possible; give outage=wait, so that a try while the endpoint is down is "
                "no attempt, or leave it out"
            )
        # who says how often a task is tried means any try
        self.counts_outages: bool = self.max_attempts is not None and "outage" not in others
        if "backoff" in others:
            self.backoff: Backoff = _backoff(others["backoff"])
        self._sign = others.get("sign")
        if self._sign is not None and UNKNOWN not in self._sign.removeprefix(_KEY).split():
            signing_keys(self._sign)
        self._keys: list[bytes] = []
        self._route_headers: dict[str, str] = {}
        if parts.username is not None:
            said = f"Bearer {unquote(parts.username)}"
            if parts.password is not None:
                login = f"{unquote(parts.username)}:{unquote(parts.password)}".encode()
                said = f"Basic {base64.b64encode(login).decode()}"
            self._route_headers["Authorization"] = said
        for name in headers:
            _add_header(self._route_headers, name.removeprefix(_HEADER), others[name])
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Message, Future[Result]]] = deque()
        self._under_way = 0
        self._is_slow = False
        """True if the last request took long."""
        self._connections: list[http.client.HTTPConnection] = []
        self._free: list[http.client.HTTPConnection] = []
        """Those of them that no request has now."""
        self._down: Unsent | None = None
        """Why the rest of what waits is not sent."""
        self._answered_from = 0.0
        """The instant of the last request that was answered."""
        self._unanswered: dict[str, float] = {}
        """The id of a message whose request had no answer → when that was known."""

    def open(self) -> None:
        if self._options.tls is not None:
            context_of(self._options.tls)  # a file that can't be used is named now
        self._keys = [] if self._sign is None else signing_keys(self._sign)
        self._down = None

    def send(self, batch: Sequence[Message]) -> Sequence[Future[Result]]:
        self._down = None
        answers = [Future[Result]() for _ in batch]
        with self._lock:
            self._waiting.extend(zip(batch, answers, strict=True))
            more = min(len(self._waiting), self._at_once - self._under_way)
            self._under_way += more
        for _ in range(more):
            self.pool.submit(self._next, slow=self._is_slow)
        return answers

    def interrupt(self) -> None:
        self._down = _ENDS
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            shut_down(connection.sock)

    def close(self) -> None:
        with self._lock:
            connections, self._connections, self._free = self._connections, [], []
        for connection in connections:
            connection.close()

    # ---- one message, in a thread of the pool

    def _next(self) -> None:
        """Sends the message that waits longest, and asks for the turn of another one."""
        with self._lock:
            if not self._waiting:
                self._under_way -= 1
                return
            message, answer = self._waiting.popleft()
        began = time.monotonic()
        try:
            answer.set_result(self._sent(message))
        except BaseException as exc:  # noqa: BLE001  the sender tells it
            answer.set_exception(exc)
        self._is_slow = time.monotonic() - began > SLOW_S
        self.pool.submit(self._next, slow=self._is_slow)

    def _sent(self, message: Message) -> Result:
        down = self._down
        if down is not None:
            return down
        was_tried = True
        try:
            result = self._answered(message)
        except InvalidUrl as exc:  # a file of TLS that can't be used any more
            result, was_tried = Unsent(str(exc)), False
        if isinstance(result, Unsent):
            self._down = self._down or result
            if self.counts_outages and was_tried and result is not _ENDS:
                return Failed(result.reason, result.again_s)
        return result

    def _answered(self, message: Message) -> Result:
        with self._lock:
            connection = self._free.pop() if self._free else None
        if connection is None:
            connection = self._new_connection(self._options.timeout_s)
            with self._lock:
                self._connections.append(connection)
        try:
            return self._answered_on(connection, message)
        finally:
            with self._lock:
                self._free.append(connection)

    def _answered_on(self, connection: http.client.HTTPConnection, message: Message) -> Result:
        if connection.sock is not None:
            try:
                return self._request(connection, message)
            except TimeoutError as exc:
                return self._without_answer(message, exc)
            except (OSError, http.client.HTTPException):
                # the other side may have closed it while it was idle
                if self._down is not None:
                    return self._down
        try:
            connection.connect()
        except OSError as exc:
            connection.close()
            return Unsent(unreached(self._address, exc))
        try:
            return self._request(connection, message)
        except (OSError, http.client.HTTPException) as exc:
            if isinstance(exc, ssl.SSLError) and "ALERT" in (exc.reason or ""):  # our certificate is not accepted
                return Unsent(unreached(self._address, exc))
            return self._without_answer(message, exc)

    def _without_answer(self, message: Message, exc: Exception) -> Result:
        """The result of a request that has no answer: its own failure, if the endpoint has answered another one since
        the last time, or does so now.
        """
        reason = f"no answer to this request within {self._options.timeout_s:g} s (timeout=)"
        if not isinstance(exc, TimeoutError):
            # the text of an answer that is not HTTP's is what another service said
            told = f"{type(exc).__name__}: {exc}".removesuffix(": ") if isinstance(exc, OSError) else "it is not HTTP"
            reason = f"the connection ended without an answer to this request: {told}"
        before = self._unanswered.get(message.id)
        if len(self._unanswered) >= REMEMBERED:
            self._unanswered.clear()
        self._unanswered[message.id] = time.monotonic()
        if self._down is not None:
            return self._down
        reason = f"{self._address}: {reason}"
        if (before is not None and self._answered_from > before) or self._is_there():
            return Failed(f"{reason}; the endpoint answers others: see its log of this id")
        return Unsent(f"{reason}; check that the endpoint runs")

    def _is_there(self) -> bool:
        """True if the endpoint answers a request that changes nothing there."""
        try:
            with contextlib.closing(self._new_connection(min(PROBE_S, self._options.timeout_s))) as connection:
                connection.request("OPTIONS", self._target, headers={"User-Agent": _AGENT})
                return connection.getresponse().status not in _BUSY
        except (InvalidUrl, OSError, http.client.HTTPException):
            return False

    def _new_connection(self, timeout_s: float) -> http.client.HTTPConnection:
        tls = None if self._options.tls is None else context_of(self._options.tls)
        return _Connection(self._host, self._port, timeout_s, tls, self.check_ip)

    def _request(self, connection: http.client.HTTPConnection, message: Message) -> Result:
        began = time.monotonic()
        try:
            connection.request(self._method, self._target, body=message.payload, headers=self._headers(message))
            answer = connection.getresponse()
            text = answer.read(64 << 10)
            if not answer.isclosed():  # longer than anybody needs
                connection.close()
        except BaseException:
            connection.close()
            raise
        self._answered_from = max(self._answered_from, began)
        # the answer of a server that nobody has named may be an inner page, which a route must not read
        said = (answer.reason, text) if self.is_named else (http.client.responses.get(answer.status, ""), b"")
        return result_of(answer.status, *said, answer.getheader("Retry-After"))

    def _headers(self, message: Message) -> dict[str, str]:
        given, id = {name.lower() for name in self._route_headers}, message.ascii_id
        headers = {"Idempotency-Key": id, "Shardq-Topic": message.topic, "Shardq-Attempt": str(message.attempt)}
        headers |= self._route_headers
        for name, value in (("Content-Type", message.content_type), ("User-Agent", _AGENT)):
            if name.lower() not in given:
                headers[name] = value
        for name, value in message.headers.items():
            taken = name.lower() in _OWN | given or name.lower().startswith(_OURS)
            if not taken and _NAME.fullmatch(name) and _VALUE.fullmatch(value):
                headers[name] = value
        return headers | (signature(self._keys, id, int(time.time()), message.payload) if self._keys else {})


class _Connection(http.client.HTTPConnection):
    """A connection to an address that ``check_ip`` lets pass, with TLS if there is a context."""

    def __init__(
        self, host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None, check_ip: Callable[[str], None]
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self.default_port = 80 if tls is None else 443
        self._seconds, self._tls, self._check_ip = timeout_s, tls, check_ip

    def connect(self) -> None:
        deadline = time.monotonic() + self._seconds
        sock = connect_to(resolve(f"{self.host}:{self.port}", deadline, self._check_ip), deadline)
        self.sock = sock
        sock.settimeout(self._seconds)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(sock, server_hostname=self.host)


_AGENT = f"shardq/{__version__}"
_ENDS = Unsent("the process ends")


def signature(keys: Sequence[bytes], id: str, timestamp: int, payload: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks: the id, the seconds since 1970, and the HMAC-SHA256 of both and the payload, by
    each key.

    >>> signature([b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], "hooks/1", 1674087231, b"{}")["webhook-signature"]
    'v1,AI76/TFU/Sq85Fhlcr8sZPJMQvhAtVdl/GGQAAxU7gs='
    """
    signed = b"%s.%d.%s" % (id.encode(), timestamp, payload)
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


def signing_keys(text: str) -> list[bytes]:
    """The keys of the option ``sign``. Raises InvalidUrl."""
    words = text.split()
    with contextlib.suppress(ValueError):
        keys = [base64.b64decode(word.removeprefix(_KEY), validate=True) for word in words]
        if keys and all(word.startswith(_KEY) for word in words) and all(24 <= len(key) <= 64 for key in keys):
            return keys
    raise InvalidUrl(
        f"sign= of an HTTP URL is not a key of Standard Webhooks; give {_KEY} and 24 to 64 bytes in base64, or several "
        "of them with blanks between, as ${NAME}"
    )


def _whole(name: str, text: str, most: int) -> int:
    if not re.fullmatch(r"\d{1,6}", text) or not 1 <= int(text) <= most:
        raise InvalidUrl(f"{name}= of an HTTP URL is not possible; give a whole number from 1 to {most}")
    return int(text)


def _backoff(text: str) -> Backoff:
    first, comma, longest = text.partition(",")
    try:
        return Backoff(base=float(first), cap=float(longest)) if comma else Backoff(base=float(first))
    except (ValueError, InvalidOption) as exc:
        raise InvalidUrl(
            "backoff= of an HTTP URL is not possible; give the first and the longest pause in seconds: backoff=1,3600"
        ) from exc


def _add_header(headers: dict[str, str], name: str, value: str) -> None:
    """Adds a header of the route. Raises InvalidUrl."""
    lower = name.lower()
    if not _NAME.fullmatch(name) or lower in _FRAMING or lower.startswith(_OURS):
        raise InvalidUrl(
            f"an option {_HEADER}NAME= of an HTTP URL names a header that can't be given; all can but Host, "
            "Connection, Content-Length, Transfer-Encoding, Idempotency-Key, Shardq-… and Webhook-…"
        )
    if not value.strip() or not _VALUE.fullmatch(value):
        raise InvalidUrl(f"{_HEADER}{name}= of an HTTP URL is not possible; give text of ASCII, in one line")
    if any(lower == other.lower() for other in headers):
        raise InvalidUrl(
            f"{_HEADER}{name}= of an HTTP URL is given twice; give it once, and Authorization not beside a login"
        )
    headers[name] = value.strip()


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
        return Unsent(reason + _ADVICE.get(status, ""), _seconds(retry_after))
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
