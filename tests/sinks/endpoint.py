"""An HTTP endpoint as users write them, in a process of its own, so that a test can kill it.

``python -m tests.sinks.endpoint PORT FILE [FOLDER]`` appends a line to FILE for each request: its idempotency key, a
tab, the headers as JSON. With the FOLDER of certificates it speaks TLS, and asks for a client's certificate. The
payload decides its answer: ``{"status": 500}``, with ``"until": n`` only up to attempt n; ``{"close": true}`` has none,
and ``{"hold": true}`` waits for a ``{"release": true}``.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.workers import say, wait_for_the_end


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    file: Path
    lock = threading.Lock()
    released = threading.Event()

    def answer(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = payload if isinstance(payload, dict) else {}
        status = asked.get("status", 204)
        if int(self.headers["Shardq-Attempt"]) > asked.get("until", 1 << 30):
            status = 204
        line = json.dumps([self.path, status, payload, {**self.headers, "method": self.command}])
        with self.lock, self.file.open("a") as file:
            file.write(f"{self.headers['Idempotency-Key']}\t{line}\n")
        if asked.get("close"):
            self.close_connection = True
            return
        if asked.get("hold"):
            self.released.wait(600)
        if asked.get("release"):
            self.released.set()
        body = b"" if status == 204 else b"this is why"
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    _Handler.file = Path(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler)
    if len(sys.argv) > 3:
        folder = Path(sys.argv[3])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say("up")
    wait_for_the_end()


if __name__ == "__main__":
    main()
