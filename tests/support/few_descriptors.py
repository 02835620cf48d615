"""Engines of either kind in a process that may have few files open. Says OK, or what was wrong.

python -m tests.support.few_descriptors CASE KIND URL NAME
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardq import Task
from shardq.errors import TooManyOpenFiles
from tests.support.engines import Engines
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.support.workers import say

SHARDS = 60

SOON_S = 40.0


class Log(logging.Handler):
    """The log lines, and their loggers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: list[tuple[str, str]] = []
        logging.getLogger("shardq").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append((record.name, record.getMessage()))

    def of(self, name: str, part: str = "") -> list[str]:
        return [text for logger, text in self._said if logger == name and part in text]


def limit(files: int) -> None:
    """Sets the soft limit, which can be raised again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def open_now() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir()) - 1


@contextmanager
def none_left() -> Iterator[None]:
    """Takes every descriptor that the process may have, during the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit(open_now() + 10)
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    try:
        yield
    finally:
        for each in taken:
            os.close(each)
        limit(before)


def told_case(engines: Engines, log: Log, url: str, name: str) -> None:
    """The limit does for the pollers, and would not for all that may come."""
    limit(open_now() + SHARDS + 50)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    engine = engines.opened(url, name=name, shards=SHARDS)
    assert log.of("shardq.limits") == [], "an engine without pollers needs few"
    assert not any("files open" in text for text in engine.health().warnings)
    engine.start()
    (text,) = log.of("shardq.limits")
    assert text.startswith(f"this process may have {allowed} files open, and may come to need ")
    assert "ulimit -n, LimitNOFILE= in systemd" in text
    id = engine.push("x")
    wait_until(lambda: state_of(engine, id) == "ready", "the task is dispatched", timeout=SOON_S)
    assert any("files open" in text for text in engine.health().warnings)
    limit(allowed + 200)
    assert not any("files open" in text for text in engine.health().warnings)
    engine.close()


def opening_case(engines: Engines, log: Log, url: str, name: str) -> None:
    """What was not open can't be opened, and says why; it can be tried again."""
    url = url.replace("127.0.0.1", "localhost")  # a name takes descriptors, too
    engine = engines.make(url, name=name, shards=4, timeout=5.0, connect_timeout=2.0)
    allowed = open_now() + 10
    told = pytest.raises(TooManyOpenFiles, match=f"it may have {allowed} files open; raise that limit .ulimit -n")
    with none_left(), told:
        engine.open()
    engine.push("x", delay=60)
    engine.close()


def open_case(engines: Engines, log: Log, url: str, name: str) -> None:
    """What is open goes on, by the connections that there are."""
    engine = engines.opened(url, name=name, shards=4, timeout=30.0)
    engine.push("x", delay=60)
    failures: list[Exception] = []

    def push() -> None:
        try:
            for _ in range(20):
                engine.push("x", delay=60)
        except Exception as exc:  # noqa: BLE001  told below
            failures.append(exc)

    with none_left():
        assert engine.stats().scheduled == 1
        engine.push_many([Task(n, delay=60) for n in range(100)])
        threads = [threading.Thread(target=push) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert engine.stats().scheduled == 1 + 100 + 8 * 20
    engine.close()


def polling_case(engines: Engines, log: Log, url: str, name: str) -> None:
    """Pollers that find no descriptor: said once, of this process and not of its server; over when there are some."""
    engine = engines.opened(url, name=name, shards=SHARDS)
    engine.start()
    wait_until(lambda: engine.health().ok, "every poller is well", timeout=SOON_S)
    engine.stop()
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit(open_now() + 15)
    engine.start()
    wait_until(
        lambda: sum(shard.poller == "failing" for shard in engine.stats().shards) > SHARDS / 2,
        "most of them fail",
        timeout=SOON_S,
    )
    assert any("no file descriptor left" in str(shard.poller_error) for shard in engine.stats().shards)
    limit(allowed)
    wait_until(lambda: engine.health().ok, "every poller is well again", timeout=SOON_S)
    # nodes that stand still for long may be named beside it
    said = log.of("shardq.outages", "file descriptor")
    assert all(text.startswith("this process fails, some of its shards are not dispatched") for text in said), said
    assert all("ulimit -n" in text for text in said), said
    assert 0 < len(said) < SHARDS / 4, said
    assert log.of("shardq.outages", "this process: the outage is over after")
    assert log.of("shardq.dispatcher", "file descriptor") == []
    engine.close()


def many_case(engines: Engines, log: Log, url: str, name: str) -> None:
    """To look at 1,024 shards takes few connections."""
    engine = engines.make(url, name=name, shards=1024)
    limit(open_now() + 20)
    assert len(engine.open().stats().shards) == 1024
    assert not any(shard.error for shard in engine.stats().shards)
    engine.close()


CASES: dict[str, Callable[[Engines, Log, str, str], None]] = {
    "told": told_case,
    "opening": opening_case,
    "open": open_case,
    "polling": polling_case,
    "many": many_case,
}


def main(case: str, kind: str, url: str, name: str) -> None:
    logging.lastResort = None
    log = Log()
    engines = Engines("asyncio" if kind == "asyncio" else "sync")
    try:
        CASES[case](engines, log, url, name)
    except BaseException:  # noqa: BLE001  whatever it is, the test shows it
        say(traceback.format_exc().replace("\n", " | "))
        os._exit(1)
    engines.end()
    say("OK")


if __name__ == "__main__":
    main(*sys.argv[1:])
