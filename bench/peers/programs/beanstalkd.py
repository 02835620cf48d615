"""beanstalkd through greenstalk; puts are pipelined by hand, which its protocol allows and greenstalk does not offer.

Its delays are whole seconds. A task is due at an instant only if it is put whole seconds before: ``push`` waits for
that where few tasks are asked for. It rounds up otherwise, so that the tasks of a burst are due within one second.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import greenstalk

from bench.peers.programs import kit

address = urlsplit(kit.url())
place = (str(address.hostname), int(address.port or 0))

SOON_S = 60.0
"""Tasks that are due at different instants within this time are put one by one."""


def push() -> None:
    connection = socket.create_connection(place)
    answers = connection.makefile("rb")

    def put(dues: Sequence[float], now: float) -> None:
        parts = []
        for due in dues:
            body = kit.payload(due).encode()
            delay = max(0, math.ceil(due - now))
            parts.append(b"put 65536 %d 60 %d\r\n%b\r\n" % (delay, len(body), body))
        connection.sendall(b"".join(parts))
        for _ in dues:
            if not (answer := answers.readline()).startswith(b"INSERTED"):
                raise RuntimeError(f"beanstalkd answered {answer!r}")

    def push_all(dues: Sequence[float]) -> None:
        if min(dues) == max(dues) or max(dues) > time.time() + SOON_S:
            put(dues, time.time())
            return
        for due in sorted(dues):
            time.sleep(max(0.0, due - time.time()) % 1.0)
            put([due], due - max(0, round(due - time.time())))

    kit.serve_sync(push_all, chunk=500)


def work() -> None:
    with greenstalk.Client(place) as client:
        while True:
            job = client.reserve()
            kit.handled(job.body)
            client.delete(job)


if __name__ == "__main__":
    push() if kit.role() == "push" else work()
