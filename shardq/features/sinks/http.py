"""HTTP: each task is a request of its own to the URL, with the id as its idempotency key.

    https://[USER:PASSWORD@ | TOKEN@]HOST[:PORT]/PATH[?QUERY][#OPTION=VALUE&…]

``client`` sends the requests, ``connections=`` of them at a time. ``README.md`` has the options, and what each status
means.

A request that gets no answer is a failure of its task if the endpoint is there all the same: if it answers an OPTIONS
request, or has answered other tasks between two tries of this one.
"""

from __future__ import annotations

import base64
import email.utils
import re
import ssl
import time
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import SplitResult, parse_qsl, unquote

from shardq.core.consumer.policy import Backoff
from shardq.core.drivers.settings import bracketed
from shardq.core.drivers.sockets import context_of
from shardq.core.model.checks import MAX_ATTEMPTS
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.answer import NotHttp
from shardq.features.sinks.base import SENT, AsyncSink, Failed, Message, Refused, Result, Unsent
from shardq.features.sinks.client import Client, Server, Unreached
from shardq.features.sinks.connection import NoAnswer
from shardq.features.sinks.urls import UNKNOWN, options, split, unreached
from shardq.features.webhooks.signing import PREFIX, signature, signing_keys
from shardq.version import __version__

CONNECTIONS = 8
MOST_CONNECTIONS = 64
QUEUED = 8
"""Messages of each connection, under way and waiting for it."""
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
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_SIGN = "sign= of an HTTP URL, best written as ${NAME},"
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
_QUOTED = 300
"""Characters of an answer that a reason quotes."""


class HttpSink(AsyncSink):
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
        self.addresses: Sequence[str] = (f"{host}:{self._port}",)
        self._address = bracketed(self.addresses[0])
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._method = others.get("method", "POST")
        if self._method not in METHODS:
            raise InvalidUrl(f"method= of an HTTP URL is not possible; give one of {', '.join(METHODS)}")
        self.connections: int = _whole("connections", others.get("connections", str(CONNECTIONS)), MOST_CONNECTIONS)
        self.batch: int = QUEUED * self.connections
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
        if self._sign is not None and UNKNOWN not in self._sign.removeprefix(PREFIX).split():
            signing_keys(self._sign, _SIGN)
        self._keys: list[bytes] = []
        self._route_headers = authorization(parts)
        for name in headers:
            _add_header(self._route_headers, name.removeprefix(_HEADER), others[name])
        self._given = {name.lower() for name in self._route_headers}
        """The names of the route's headers, in lower case."""
        if "user-agent" not in self._given:
            self._route_headers["User-Agent"] = AGENT
        self._server = Server(scheme, host, self._port)
        self._client: Client | None = None
        self._answered_from = 0.0
        """The instant of the last request that was answered."""
        self._unanswered: dict[str, float] = {}
        """The id of a message whose request had no answer → when that was known."""

    async def open(self) -> None:
        if self._options.tls is not None:
            context_of(self._options.tls)  # a file that can't be used is named now
        self._keys = [] if self._sign is None else signing_keys(self._sign, _SIGN)
        self._client = Client(
            most=self.connections, most_of_host=self.connections, check_ip=self.check_ip, context=self._context
        )

    def _context(self) -> ssl.SSLContext:
        assert self._options.tls is not None, "it is https"
        return context_of(self._options.tls)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # ---- one message

    async def send(self, message: Message) -> Result:
        """Raises InvalidUrl for a file of TLS that can't be used any more, and for an address that must not be."""
        assert self._client is not None, "it is open"
        began, timeout_s = time.monotonic(), self._options.timeout_s
        headers, payload = self._headers(message), message.payload
        try:
            answer = await self._client.request(
                self._server, self._method, self._target, headers, payload, timeout_s=timeout_s
            )
        except Unreached as exc:
            return Unsent(unreached(self._address, exc.why))
        except NoAnswer as exc:
            if isinstance(exc.why, ssl.SSLError) and "ALERT" in (exc.why.reason or ""):  # it refuses our certificate
                return Unsent(unreached(self._address, exc.why))
            return await self._without_answer(message, exc.why)
        self._answered_from = max(self._answered_from, began)
        # the answer of a server that nobody has named may be an inner page, which a route must not read
        said = (answer.phrase, answer.body) if self.is_named else (_PHRASES.get(answer.status, ""), b"")
        return result_of(answer.status, *said, answer.retry_after)

    async def _without_answer(self, message: Message, why: OSError | NotHttp) -> Result:
        """The result of a request that has no answer: its own failure, if the endpoint has answered another one since
        the last time, or does so now.
        """
        reason = f"no answer to this request within {self._options.timeout_s:g} s (timeout=)"
        if not isinstance(why, TimeoutError):
            # the text of an answer that is not HTTP's is what another service said
            told = f"{type(why).__name__}: {why}".removesuffix(": ") if isinstance(why, OSError) else "it is not HTTP"
            reason = f"the connection ended without an answer to this request: {told}"
        before = self._unanswered.get(message.id)
        if len(self._unanswered) >= REMEMBERED:
            self._unanswered.clear()
        self._unanswered[message.id] = time.monotonic()
        reason = f"{self._address}: {reason}"
        if (before is not None and self._answered_from > before) or await self._is_there():
            return Failed(f"{reason}; the endpoint answers others: see its log of this id")
        return Unsent(f"{reason}; check that the endpoint runs")

    async def _is_there(self) -> bool:
        """True if the endpoint answers a request that changes nothing there."""
        assert self._client is not None, "it is open"
        headers, timeout_s = {"User-Agent": AGENT}, min(PROBE_S, self._options.timeout_s)
        try:
            answer = await self._client.request(
                self._server, "OPTIONS", self._target, headers, None, timeout_s=timeout_s
            )
        except (InvalidUrl, Unreached, NoAnswer):
            return False
        return answer.status not in _BUSY

    def _headers(self, message: Message) -> dict[str, str]:
        id = message.ascii_id
        headers = {"Idempotency-Key": id, "Shardq-Topic": message.topic, "Shardq-Attempt": str(message.attempt)}
        headers |= self._route_headers
        if "content-type" not in self._given:
            headers["Content-Type"] = message.content_type
        headers |= passed_on(message.headers, self._given)
        return headers | (signature(self._keys, id, int(time.time()), message.payload) if self._keys else {})


AGENT = f"shardq/{__version__}"


def passed_on(headers: Mapping[str, str], given: Collection[str] = ()) -> dict[str, str]:
    """The headers of a task that go along: text of ASCII, and none that a request has from us, or among those ``given``
    (in lower case).
    """
    return {
        name: value
        for name, value in headers.items()
        if (lower := name.lower()) not in _OWN
        and lower not in given
        and not lower.startswith(_OURS)
        and _NAME.fullmatch(name)
        and _VALUE.fullmatch(value)
    }


def authorization(parts: SplitResult) -> dict[str, str]:
    """The header for the login in a URL: USER:PASSWORD@ as Basic, TOKEN@ as a bearer token."""
    if parts.username is None:
        return {}
    user = unquote(parts.username)
    if parts.password is None:
        return {"Authorization": f"Bearer {user}"}
    login = f"{user}:{unquote(parts.password)}".encode()
    return {"Authorization": f"Basic {base64.b64encode(login).decode()}"}


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
        return Unsent(reason + _ADVICE.get(status, ""), asked_s(retry_after) or 0.0)
    if status >= 500 or status in _FAILS:
        return Failed(reason)
    return Refused(reason)


def asked_s(retry_after: str | None) -> float | None:
    """The header Retry-After, seconds or a date, as seconds from now. None if it is not there, or neither of these.

    >>> asked_s("12"), asked_s("Wed, 21 Oct 2015 07:28:00 GMT"), asked_s("soon")
    (12.0, 0.0, None)
    """
    text = (retry_after or "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
