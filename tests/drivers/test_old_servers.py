"""Servers that are too old are refused. As none can be installed, a few lines of this file answer like one."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator

import pytest

from shardq.errors import EngineClosed, ServerTooOld
from tests.drivers.calls import store
from tests.drivers.carriers import Carriers

INFO = b"redis_version:6.2.14\r\nredis_mode:standalone\r\n"
HELLO = b"*2\r\n$5\r\nproto\r\n:3\r\n".replace(b"*2", b"%1")
UNKNOWN = b"-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `me`, `pw9`, \r\n"


class Speaks6(socketserver.StreamRequestHandler):
    """Redis 6.2, as far as a hand-shake and INFO go."""

    knows_hello = True

    def handle(self) -> None:
        while dedicated := self.rfile.readline():
            words = [self._word() for _ in range(int(dedicated[1:]))]
            if words[0] == b"HELLO":
                self.wfile.write(HELLO if self.knows_hello else UNKNOWN)
            elif words[0] == b"INFO":
                self.wfile.write(b"$%d\r\n%b\r\n" % (len(INFO), INFO))
            else:
                self.wfile.write(b"+OK\r\n")

    def _word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]


class Speaks5(Speaks6):
    """Redis 5, which has no HELLO and quotes what it does not understand."""

    knows_hello = False


@pytest.fixture(params=[Speaks6, Speaks5])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), request.param) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_refused_with_its_version(carriers: Carriers, address: str) -> None:
    carrier = carriers.make(f"redis://me:pw9@{address}")
    with pytest.raises(ServerTooOld, match=r"needs Redis 7\.0 or newer") as caught:
        carrier.open()
    with pytest.raises(EngineClosed):
        carrier.call(store("key", "f"))
    assert "6.2.14" in str(caught.value) or "HELLO" in str(caught.value)
    assert "pw9" not in str(caught.value)
    assert "pw9" not in repr(caught.value.__cause__)
