"""The ledger of recurring tasks: a consumer that acks every task and notes its id, payload and time."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

from shardq import Engine
from shardq.core.layout.keys import control_keys
from tests.support.servers import Servers


class Runs:
    """The runs of a topic, as a context manager: claims in a thread of its own."""

    def __init__(self, url: str, name: str, topics: tuple[str, ...] = ("t",)) -> None:
        self._engine = Engine(url, name=name, timeout=60.0)
        self._topics = list(topics)
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="runs")
        self.seen: list[tuple[str, Any]] = []
        """Id and payload of each run, in order."""

    def __enter__(self) -> Self:
        self._engine.open()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._engine.close()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            # a lease that no standstill outlasts: each task is delivered once
            consumer = self._engine.consumer(self._topics, lease=600)
            while not self._stopping.is_set():
                for delivery in consumer.claim(100, wait=0.5):
                    self.seen.append((delivery.id, delivery.payload))
                    consumer.ack(delivery)
        except BaseException as exc:  # noqa: BLE001  told at the end
            self._error = exc

    def __len__(self) -> int:
        return len(self.seen)

    def instants(self, name: str = "tick") -> list[int]:
        """The occurrences of a schedule that ran, in ms, in the order of time."""
        assert self._error is None, f"the consumer failed: {self._error}"
        ids = [id.rpartition("/")[2] for id, _ in list(self.seen)]
        found = [id.partition("@")[2].partition("~")[0] for id in ids if id.startswith(f"every-{name}@")]
        return sorted(round(dt.datetime.fromisoformat(text).timestamp() * 1000) for text in found)

    def check(self, interval_ms: int, name: str = "tick") -> None:
        """Fails unless each occurrence from the first to the last ran exactly once."""
        instants = self.instants(name)
        assert instants, "none ran"
        twice = [at for at, count in Counter(instants).items() if count > 1]
        every = set(range(instants[0], instants[-1] + 1, interval_ms))
        assert (twice, sorted(every - set(instants)), sorted(set(instants) - every)) == ([], [], [])


def server_ms(servers: Servers, name: str) -> float:
    """The clock by which occurrences are counted."""
    return servers.now_ms(control_keys(name).slot)


def sleep_until(servers: Servers, name: str, ms: float) -> None:
    """Waits for an instant by that clock: that is what is tried, and nothing else says it."""
    while (left := ms - server_ms(servers, name)) > 0:
        time.sleep(left / 1000)
