"""Servers that are no Redis, for a URL whose port is wrong."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler


class Web(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


class Banner(socketserver.BaseRequestHandler):
    """Speaks first, as SSH and SMTP do."""

    def handle(self) -> None:
        self.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        self.request.recv(1000)


class Echo(socketserver.BaseRequestHandler):
    """Gives back what it gets: that is good Redis protocol, and no answer."""

    def handle(self) -> None:
        while data := self.request.recv(1000):
            self.request.sendall(data)


class TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True


def serving(server: socketserver.TCPServer) -> Iterator[str]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
