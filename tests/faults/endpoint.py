"""An HTTP endpoint that keeps what it gets in a file: ``python -m tests.faults.endpoint PORT FOLDER``.

The payload decides its answer: ``{"id": …, "fault": …}``. With a file ``full`` in the folder it takes nothing; a bearer
token ``wrong`` is refused.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.workers import say, wait_for_the_end

_SLOW_S = 0.3
_ENDED = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    lock = threading.Lock()

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self._status(payload))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _status(self, payload: dict[str, str]) -> int:
        if self.headers["Authorization"] == "Bearer wrong":
            return 401
        if (self.folder / "full").exists():
            return 507
        match payload.get("fault"):
            case "refusing one item":
                return 400
            case "timing out on one item":
                _ENDED.wait()
            case "slow on one item":
                _ENDED.wait(_SLOW_S)
        with self.lock, (self.folder / "arrived").open("a") as file:
            file.write(json.dumps(payload["id"]) + "\n")
        return 204

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    _Handler.folder = Path(sys.argv[2])
    server = _Server(("127.0.0.1", int(sys.argv[1])), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say("up")
    wait_for_the_end()


if __name__ == "__main__":
    main()
