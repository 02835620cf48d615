"""demo: its counts are right, and it leaves nothing behind however it ends."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import shardq
from shardq.cli.demo import TrialResult
from tests.cli.shell import LONGEST_S, ON_BOTH, Shell, own
from tests.support.servers import Servers
from tests.support.waiting import wait_until

SMALL = ("--tasks", "500", "--seconds", "1", "--shards", "4")


def demo_servers(shell: Shell) -> list[int]:
    """Process ids of servers with their data in this shell's temporary directory."""
    found = []
    for process in psutil.process_iter(["cwd", "name"]):
        if (process.info["cwd"] or "").startswith(str(shell.temporary)):
            found.append(process.pid)
    return found


def keys(servers: Servers) -> set[str]:
    """Of all engines. Those of other tests may go meanwhile; a demo adds none that stay."""
    return {key.decode() for client in servers.masters for key in client.scan_iter(count=1000)}


def remains(shell: Shell) -> list[str]:
    return sorted(each.name for each in Path(shell.temporary).iterdir())


@pytest.mark.slow
def test_the_books_balance_and_nothing_is_left(shell: Shell) -> None:
    done = shell.run("demo", *SMALL)
    assert (done.code, done.own_err) == (0, "")
    books = dict(re.findall(r"^(\w+) +([\d,.]+)", done.out, re.MULTILINE))
    assert {name: books[name] for name in ("pushed", "dispatched", "claimed")} == dict.fromkeys(
        ("pushed", "dispatched", "claimed"), "500"
    )
    assert (books["early"], books["lost"], books["duplicates"]) == ("0", "0", "0")
    assert "4 shards, Python 3." in done.out
    title, flood, idle = done.lines[-3:]
    assert re.fullmatch(r"how late \(ms\) +p50 +p99 +most", title)
    assert re.fullmatch(r"in this flood( +(<1|[\d,]+)){3}  500 tasks in \d+ s, all at once", flood)
    assert re.fullmatch(r"in an idle second( +(<1|[\d,]+)){3}  100 tasks, and nothing else", idle)
    assert f"shardq {shardq.__version__}, " in done.out
    assert remains(shell) == []
    wait_until(lambda: not demo_servers(shell), "its server has ended")


@pytest.mark.slow
@ON_BOTH
def test_as_json_on_another_server_whose_data_stays(shell: Shell, url: str) -> None:
    with Servers(url) as servers:
        before = keys(servers)
        done = shell.run("demo", *SMALL, "--json", "--url", url)
        books = done.object
        assert done.code == 0
        assert {name: books[name] for name in ("pushed", "dispatched", "claimed", "early", "lost", "duplicates")} == {
            "pushed": 500,
            "dispatched": 500,
            "claimed": 500,
            "early": 0,
            "lost": 0,
            "duplicates": 0,
        }
        assert books["ok"] is True
        # a dispatch without an answer is told, and nobody knows how late its tasks were
        assert books["lateness"]["tasks"] == 500 or own(done.err) != done.err
        assert books["idle"]["tasks"] == 100 or own(done.err) != done.err
        assert books["versions"].keys() == {"shardq", "server", "python"}
        assert keys(servers) <= before


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (80, 10)])
def test_a_table_that_fits_its_terminal(shell: Shell, columns: int, rows: int) -> None:
    done = shell.on_terminal("demo", "--tasks", "300", "--seconds", "1", columns=columns, rows=rows)
    assert done.code == 0
    assert max(map(len, own(done.out).splitlines())) <= columns
    assert re.search(r"shard +scheduled +ready +leased +dispatched +per s +p50 ms +p99 ms", done.out)
    assert re.search(r"all +0 +0 +0 +300 ", done.out)
    assert "…" not in own(done.out), "nothing is cut off"
    assert ("+13" in done.out.split()) == (rows < 24), "shards without room are counted"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_midway_it_cleans_up(shell: Shell, number: signal.Signals, code: int) -> None:
    process = shell.start("demo", "--tasks", "20000", "--seconds", "60")
    assert process.stdout is not None
    process.stdout.readline()
    assert remains(shell) != []
    assert demo_servers(shell) != []
    process.send_signal(number)
    _, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, own(err)) == (code, "stopped before its end; everything it made is removed\n")
    assert remains(shell) == []
    wait_until(lambda: not demo_servers(shell), "its server has ended")


def test_an_impatient_user_leaves_nothing_behind_either(shell: Shell) -> None:
    process = shell.start("demo", "--tasks", "20000", "--seconds", "60")
    assert process.stdout is not None
    process.stdout.readline()

    def ended() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait_until(ended, "it has ended")
    assert process.returncode in (130, -signal.SIGINT), "the latter when one comes as Python is at its end"
    assert remains(shell) == []
    wait_until(lambda: not demo_servers(shell), "its server has ended")


@pytest.mark.slow
def test_killed_it_leaves_nothing_either(shell: Shell) -> None:
    process = shell.start("demo", "--tasks", "20000", "--seconds", "60")
    assert process.stdout is not None
    process.stdout.readline()
    assert demo_servers(shell) != []
    process.kill()
    process.communicate(timeout=LONGEST_S)
    wait_until(lambda: not demo_servers(shell) and remains(shell) == [], "its server has ended, its files are gone")


def test_stopped_midway_on_another_server_it_removes_its_keys(shell: Shell, url: str) -> None:
    with Servers(url) as servers:
        before = keys(servers)
        process = shell.start("demo", "--tasks", "20000", "--seconds", "60", "--url", url)
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LONGEST_S)
        assert process.returncode == 130
        assert keys(servers) <= before


def test_tasks_that_somebody_takes_away_are_lost(shell: Shell, url: str) -> None:
    # due over a minute: it ends long before, because nothing is left
    process = shell.start("demo", "--tasks", "50", "--seconds", "60", "--shards", "1", "--url", url)
    stolen = 0
    with Servers(url) as servers:

        def ended() -> bool:
            nonlocal stolen
            for key in servers.masters[0].scan_iter(match="shardq:{demo-*:due", count=1000):
                stolen += len(servers.ask(0, "ZPOPMAX", key, 50))
            return process.poll() is not None

        wait_until(ended, "all scheduled tasks are taken away, and it has ended", timeout=LONGEST_S)
    out, err = process.communicate()
    assert process.returncode == 1
    assert stolen
    assert re.search(rf"^lost +{stolen} ", out, re.MULTILINE)
    assert own(err) == "error: not every task was dispatched and claimed once, and none of them early\n"


@pytest.mark.parametrize(
    ("books", "good"),
    [
        ({}, True),
        ({"early": 1}, False),
        ({"lost": 1, "claimed": 9}, False),
        ({"duplicates": 1}, False),
        ({"dispatched": 11}, False),
    ],
)
def test_verdict(books: dict[str, int], good: bool) -> None:
    balanced = {"pushed": 10, "dispatched": 10, "claimed": 10, "early": 0, "lost": 0, "duplicates": 0}
    assert TrialResult(**(balanced | books)).good is good


@pytest.fixture(autouse=True)
def no_server_is_left(shell: Shell) -> Iterator[None]:
    yield
    shell.end()
    for pid in demo_servers(shell):  # of a demo that was killed because its test failed
        os.kill(pid, signal.SIGKILL)
