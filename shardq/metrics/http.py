"""A small HTTP server in a process that serves: ``/livez``, ``/readyz`` and ``/metrics``. ``run --http``,
``work --http`` and ``outbox run --http`` start one; so can a program of the user's.

An outage of the servers is no reason to restart a process: it tries again by itself. So a process lives while its
threads run, and is ready while they get through. Neither is asked of the servers.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

from shardq import Engine
from shardq.core.dispatcher.poller import STUCK_S
from shardq.core.model.printable import printable, quoted
from shardq.engine.around import EngineAccess, EngineBase
from shardq.errors import InvalidOption
from shardq.http.listener import Listener, listening, url_of

if TYPE_CHECKING:
    from shardq import AsyncEngine

log: logging.Logger = logging.getLogger("shardq.metrics")

MOST_BYTES = 16 * 1024
"""The longest request: browsers send cookies of other sites on the same host."""

MOST_CLIENTS = 64
"""Requests under way at once, with a thread each."""

PIP_LINE = "/metrics needs prometheus-client: pip install 'shardq[metrics]'\n"

TEXT = "text/plain; charset=utf-8"

Duty = Literal["pollers", "worker", "relay"]
"""The work for which a process was started."""


class Answer(NamedTuple):
    status: HTTPStatus
    text: bytes
    type: str = TEXT


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parsed(cls, text: str) -> Address:
        """
        >>> Address.parsed("127.0.0.1:9100"), Address.parsed("[::1]:0")
        (Address(host='127.0.0.1', port=9100), Address(host='::1', port=0))
        """
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        if not host or not colon or not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise InvalidOption(
                f"{quoted(text)} is no HOST:PORT; write 127.0.0.1:9100, 0.0.0.0:9100 or [::1]:9100; port 0 takes a "
                "free one"
            )
        return cls(host, int(port))


def serve(engine: Engine | AsyncEngine, address: str, *, duty: Duty = "pollers") -> ProbeServer:
    """Listens at HOST:PORT from now on; port 0 takes a free one. Close it, or use it in a ``with`` block.

    ``duty`` says what ``/readyz`` waits for: the "pollers" of ``engine.start()``, a "worker", or an outbox "relay".

    >>> with shardq.metrics.serve(engine, "127.0.0.1:0") as server:
    ...     print(server.url)
    """
    return ProbeServer(engine, Address.parsed(address), duty=duty)


class ProbeServer:
    """The server, with a thread that listens, and one for each request. A connection serves one request."""

    def __init__(self, engine: Engine | AsyncEngine, address: Address, *, duty: Duty) -> None:
        self._engine = engine
        self._duty = duty
        self._stopping = False
        self._metrics = metrics_of(engine)
        answers = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
        listener = listening(*address, advice="another HOST:PORT")
        self.url: str = url_of(*listener.getsockname()[:2])
        self._listener = Listener(listener, self._serve, most=MOST_CLIENTS, name="shardq-http")
        self._handler = type("_Handler", (_Handler,), {"answers": answers, "listener": self._listener})
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ProbeServer of {self._engine.name!r} at {self.url}>"

    def stopping(self) -> None:
        """Answers ``/readyz`` with 503 from now on: the process is about to end."""
        self._stopping = True

    def close(self) -> None:
        """Ends the server; requests under way are left."""
        self._stopping = True
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        threading.Thread(target=self._answer, args=(client,), name="shardq-http-request", daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            try:
                with contextlib.suppress(OSError):  # clients that break off are no event
                    self._handler(client, ("", 0), cast("Any", self))
                    client.shutdown(socket.SHUT_WR)
            finally:
                self._listener.left(client)

    def _livez(self) -> Answer:
        return _probed(not_alive(self._engine))

    def _readyz(self) -> Answer:
        return _probed(["stopping"] if self._stopping else not_ready(self._engine, self._duty))


def not_alive(engine: EngineBase) -> Iterator[str]:
    """The reasons why only a new process would help, a sentence each."""
    dispatcher = EngineAccess(engine).running.dispatcher
    for shard, report in (dispatcher.reports() if dispatcher else {}).items():
        if report.state == "stopped":
            yield f"the poller of shard {shard} has ended"
        elif report.state != "failing" and report.idle_s > STUCK_S:
            yield f"the poller of shard {shard} has completed no step for {report.idle_s:,.0f} s"
    for processor in EngineAccess(engine).running.processors:
        for reason in processor.ended:
            yield f"worker: {reason}"


def not_ready(engine: EngineBase, duty: Duty) -> Iterator[str]:
    """The reasons why the process does not serve now, a sentence each."""
    if not EngineAccess(engine).is_open:
        yield "not connected yet, or stopping: the number of shards is not known"
        return
    if duty == "pollers":
        dispatcher = EngineAccess(engine).running.dispatcher
        if dispatcher is None:
            yield "no pollers run: they are starting, or stopping"
            return
        for shard, report in dispatcher.reports().items():
            if report.state == "failing":
                yield f"shard {shard} can't be dispatched: {report.error}"
            elif report.state == "starting":
                yield f"the poller of shard {shard} has not completed its first step"
    elif duty == "relay":
        relays = [relay.stats() for relay in list(EngineAccess(engine).running.relays)]
        if not relays:
            yield "no outbox relay runs: it is starting, or stopping"
        for relay in relays:
            if relay.problem:
                yield f"rows of the outbox {relay.table} can't be moved: {relay.problem}"
    else:
        processors = [processor for processor in EngineAccess(engine).running.processors if processor.at_work]
        if not processors:
            yield "no worker runs: it is starting, or stopping"
        for processor in processors:
            yield from processor.not_ready()


def _probed(reasons: Iterable[str]) -> Answer:
    told = "".join(f"{reason}\n" for reason in reasons).encode()
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, told) if told else Answer(HTTPStatus.OK, b"ok\n")


def metrics_of(engine: Engine | AsyncEngine) -> Callable[[], Answer]:
    """Returns what answers ``/metrics``, from a registry of its own."""
    try:
        from prometheus_client import CollectorRegistry  # here: probes need none of it
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    except ModuleNotFoundError:
        return lambda: Answer(HTTPStatus.NOT_IMPLEMENTED, PIP_LINE.encode())
    from shardq.metrics.exposition import collector

    registry = CollectorRegistry()
    registry.register(collector(engine))
    return lambda: Answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)


class _Handler(BaseHTTPRequestHandler):
    server_version = "shardq"
    sys_version = ""
    answers: dict[str, Callable[[], Answer]]
    listener: Listener

    def handle(self) -> None:
        """Answers one request: connections are not kept. All of it is read before any of it is looked at."""
        head = self._head()
        self.listener.answered(self.connection)
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        self.handle_one_request()

    def _head(self) -> bytes:
        """The request, empty when it did not come in time or is too long."""
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            more = self.connection.recv(4096)
            if not more or len(head) > MOST_BYTES:
                return b""
            head += more
        return head

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        try:
            answer = self.answers[path]() if path in self.answers else self._unknown(path)
        except Exception as exc:
            # a platform ends a process whose probe has no answer, and the reason would be lost
            log.error("no answer for %s: %s", path, exc, exc_info=exc)
            told = f"{type(exc).__name__}; see the log of this process\n"
            answer = Answer(HTTPStatus.INTERNAL_SERVER_ERROR, told.encode())
        self._answer(answer)

    do_HEAD = do_GET

    def _unknown(self, path: str) -> Answer:
        return Answer(
            HTTPStatus.NOT_FOUND, f"{printable(path)} is not here; there are {', '.join(self.answers)}\n".encode()
        )

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses a request that is not understood, without a word of it. It is the client's mistake, also where the
        library of Python says that the server can't do it.
        """
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            status = HTTPStatus.BAD_REQUEST
        self._answer(Answer(status, f"{status.phrase.lower()}; GET {', '.join(self.answers)}\n".encode()))

    def _answer(self, answer: Answer) -> None:
        self.listener.awaited(self.connection)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.type)
        self.send_header("Content-Length", str(len(answer.text)))
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.text)

    def log_message(self, format: str, *args: object) -> None:
        """Logs no request: probes come every few seconds."""
