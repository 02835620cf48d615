"""--http: several processes of one engine are scraped, and their metrics go together as the page says."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Sequence

import pytest

from shardq import Engine, Task
from tests.cli.shell import LONGEST_S, Shell, own
from tests.metrics.scraping import Samples, got, parsed, total
from tests.support.waiting import wait_until

ANYWHERE = "127.0.0.1:0"

SHARDS = 8

APP = """
import os, shardq

engine = shardq.Engine(os.environ["SHARDQ_URL"], name=os.environ["SHARDQ_NAME"])
worker = engine.worker(concurrency=4)

@worker.on("mail")
def handle(delivery: shardq.Delivery) -> None: ...
"""


def url_of(process: subprocess.Popen[str]) -> str:
    """The URL that it says on stderr."""
    assert process.stderr is not None
    for line in iter(process.stderr.readline, ""):
        if said := re.fullmatch(r"probes and metrics at (http://127\.0\.0\.1:\d+)\n", line):
            return said[1]
    raise AssertionError("it has ended without a word of where it listens")


def scraped(urls: Sequence[str]) -> list[Samples]:
    answers = [got(f"{url}/metrics") for url in urls]
    assert [status for status, _ in answers] == [200] * len(urls)
    return [parsed(text) for _, text in answers]


def added(urls: Sequence[str], name: str, **labels: str) -> float:
    """The sum over all processes."""
    return sum(total(samples, name, **labels) for samples in scraped(urls))


@pytest.mark.slow
def test_several_processes_go_together(shardq: Shell, url: str, name: str) -> None:
    shardq.cwd = shardq.temporary
    (shardq.temporary / "shopapp.py").write_text(APP)
    with Engine(url, name=name, shards=SHARDS) as engine:
        runs = [shardq.start("run", "--quiet", "--http", ANYWHERE) for _ in range(2)]
        works = [shardq.start("work", "shopapp:worker", "--http", ANYWHERE) for _ in range(2)]
        pollers, workers = [url_of(each) for each in runs], [url_of(each) for each in works]
        every = [*pollers, *workers]
        wait_until(lambda: {got(f"{each}/readyz")[0] for each in every} == {200}, "all are ready", timeout=60)
        assert {got(f"{each}/livez")[0] for each in every} == {200}

        engine.push_many([Task(n, topic="mail") for n in range(1000)] + [Task(n, topic="later") for n in range(30)])
        engine.push_many([Task(n, topic="mail", delay=3600) for n in range(7)])
        wait_until(lambda: added(every, "shardq_handled_total", outcome="done") == 1000, "all are handled", timeout=60)
        # each of them has its own part
        wait_until(lambda: added(pollers, "shardq_dispatched_total", topic="mail") == 1000, "what they did is counted")
        assert added(workers, "shardq_dispatched_total") == added(pollers, "shardq_handled_total") == 0
        assert added(every, "shardq_handler_seconds_count", topic="mail") == 1000
        assert added(every, "shardq_pushed_total") == 0
        wait_until(
            lambda: [total(each, "shardq_dispatched_total") > 0 for each in scraped(pollers)] == [True, True],
            "both have dispatched",
        )

        def alike() -> bool:
            """The engine is the same from each of them."""
            return all(
                total(samples, "shardq_up") == 1
                and total(samples, "shardq_unserved_shards") == 0
                and total(samples, "shardq_tasks", state="scheduled") == 7
                and total(samples, "shardq_tasks", state="ready", topic="later") == 30
                and total(samples, "shardq_tasks", state="leased") == 0
                for samples in scraped(every)
            )

        wait_until(alike, "all tell the same of the engine", timeout=60)
        runs[0].kill()
        wait_until(lambda: total(scraped(every[1:])[0], "shardq_unserved_shards") == 0, "the other serves all")
        for process in (runs[1], *works):
            process.send_signal(signal.SIGTERM)
        for process in (runs[1], *works):
            process.communicate(timeout=LONGEST_S)
            assert process.returncode == 0
        assert [got(f"{each}/livez")[0] for each in every] == [0] * 4


def test_it_ends_at_ctrl_c_as_ever(shardq: Shell) -> None:
    process = shardq.start("run", "--create", "--http", ANYWHERE)
    where = url_of(process)
    wait_until(lambda: got(f"{where}/readyz")[0] == 200, "it is ready", timeout=60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, own(err)) == (0, "stopped\n")


@pytest.mark.parametrize("words", [("run", "--create"), ("work", "shopapp:worker")])
def test_addresses_that_are_not_possible(shardq: Shell, words: tuple[str, ...]) -> None:
    shardq.cwd = shardq.temporary
    (shardq.temporary / "shopapp.py").write_text(APP)
    bad = shardq.run(*words, "--http", "9100")
    assert (bad.code, bad.own_err) == (
        2,
        "error: '9100' is no HOST:PORT; write 127.0.0.1:9100, 0.0.0.0:9100 or [::1]:9100; port 0 takes a free one\n",
    )
    several = shardq.run(*words, "--http", ANYWHERE, "--processes", "2")
    assert several.code == 2
    assert "--http serves one process" in several.err
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = shardq.run(*words, "--http", f"127.0.0.1:{other.getsockname()[1]}")
    assert taken.code == 2
    assert "Address already in use; give another HOST:PORT" in taken.err
