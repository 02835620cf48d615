"""Claims that wait, and what the servers know of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from shardq import Delivery, Engine
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.traffic import waiting
from tests.support.waiting import wait_until

LONG_S = 30.0
PROMPT_S = 5.0
"""Below the 8 s after which a waiter looks by itself at the earliest; a few ms on an idle machine."""

Claim = Future[list[Delivery]]


def idle(servers: Servers, name: str, processes: int, topic: str = "") -> set[str]:
    """Waits until so many processes are known to be idle everywhere; their names."""

    def known() -> set[str]:
        names = waiting(servers, name, SHARDS, topic)
        return names if len(names) == processes else set()

    return wait_until(known, f"{processes} processes wait")


def leave_name(engine: Engine, all_wait: Callable[[int], set[str]]) -> None:
    """Claims that find nothing, until every list knows this process, the first that does; then nobody waits here."""
    consumer, ended = engine.consumer(), threading.Event()

    def claim() -> None:
        # one claim may end before its wake channels are confirmed, and then it leaves no name
        while not ended.is_set():
            assert consumer.claim(1, wait=0.2) == []

    with ThreadPoolExecutor(1) as threads:
        claims = threads.submit(claim)
        try:
            all_wait(1)
        finally:
            ended.set()
        claims.result()


def others(engines: Engines, url: str, name: str, count: int) -> list[Engine]:
    """More processes of the same fleet, as the servers see it."""
    return [engines.opened(url, name=name, shards=SHARDS) for _ in range(count)]


def prompt(claim: Claim) -> Delivery:
    (delivery,) = claim.result(PROMPT_S)
    return delivery
