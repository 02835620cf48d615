"""Dramatiq: messages with a delay; its command with one process of eight threads, which is its default."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.programs import kit

dramatiq.set_broker(RedisBroker(url=kit.url()))  # type: ignore[no-untyped-call]  # brokers have no types
handle = dramatiq.actor(actor_name="handle")(kit.handled)


def push(dues: Sequence[float]) -> None:
    for due in dues:
        delay_ms = max(0, math.ceil((due - time.time()) * 1000))
        handle.send_with_options(args=(kit.payload(due),), delay=delay_ms)


if __name__ == "__main__":
    if kit.role() == "push":
        kit.serve_sync(push, chunk=200)
    else:
        this = "bench.peers.programs.dramatiq"
        os.execv(sys.executable, [sys.executable, "-m", "dramatiq", this, "--processes", "1", "--threads", "8"])
