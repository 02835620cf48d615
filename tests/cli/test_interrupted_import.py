"""An import that is interrupted reports exactly what is stored; run again, it carries out the rest without doubles."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.cli.feed import Feed, opened_source
from shardq.cli.serving import Ending, apart
from tests.cli.ledger import lines, stored
from tests.cli.shell import LONGEST_S, SCRIPT, Shell
from tests.support.waiting import wait_until

COUNT = 24_000
"""Six windows."""

LONG = 5 * COUNT
"""So many that it is in the middle when the server stops, also on a busy machine."""

TRIES = 8

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def tasks(folder: Path, count: int) -> Path:
    file = folder / "tasks.jsonl"
    file.write_text(lines({"payload": n, "delay": 3600} for n in range(1, count + 1)))
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tasks(tmp_path, COUNT)


@pytest.fixture
def engine(own_server: Server, name: str) -> Iterator[Engine]:
    with Engine(own_server.url, name=name, shards=4) as engine:
        yield engine


@pytest.fixture
def words(own_server: Server, engine: Engine) -> tuple[str, ...]:
    return ("import", "--url", own_server.url, "--name", engine.name)


def settled(err: str) -> int:
    """The line behind which the same command goes on."""
    (line,) = re.findall(r"; the same command goes on behind line ([\d,]+)$", err, re.MULTILINE)
    return int(line.replace(",", ""))


def pushed(err: str) -> int:
    (count,) = re.findall(r"^([\d,]+) pushed$", err, re.MULTILINE)
    return int(count.replace(",", ""))


class Cut:
    """Pushes a file and sends signals to that in the middle of it, while the server stands still."""

    def __init__(
        self, shell: Shell, engine: Engine, server: Server, words: tuple[str, ...], file: Path, count: int
    ) -> None:
        self._engine, self._server, self._count = engine, server, count
        self._shell, self._words = shell, (*words, str(file))

    def by(self, *numbers: signal.Signals, resumed: bool) -> tuple[int, str]:
        """The exit code, and what it said on stderr. Begun again where it was at its end before we looked."""
        for _ in range(TRIES):
            process = self._shell.start(*self._words)
            wait_until(lambda: self._engine.stats().scheduled or process.poll() is not None, "some are stored")  # noqa: B023
            self._server.pause()
            for number in numbers:
                process.send_signal(number)
            if resumed:
                self._server.resume()
            out, err = process.communicate(timeout=LONGEST_S)
            self._server.resume()
            assert (out, "Traceback" in err) == ("", False)
            if pushed(err) < self._count:
                return process.returncode, err
            self._engine.purge(everything=True)
        raise AssertionError(f"{TRIES} times it was at its end before it could be cut short")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_it_pushes(
    shell: Shell, engine: Engine, own_server: Server, words: tuple[str, ...], file: Path, number: signal.Signals
) -> None:
    code, err = Cut(shell, engine, own_server, words, file, COUNT).by(number, resumed=True)
    assert code == 128 + number
    assert f"ended by {number.name}, {pushed(err):,} lines read; " in err
    assert stored(engine) == Counter(range(1, pushed(err) + 1))
    assert settled(err) == pushed(err)
    done = shell.run(*words, str(file))
    assert (done.code, pushed(done.err)) == (0, COUNT)
    assert stored(engine) == Counter(range(1, COUNT + 1))


def test_a_second_signal_does_not_wait_and_leaves_what_is_in_doubt_to_the_same_command(
    shell: Shell, engine: Engine, own_server: Server, words: tuple[str, ...], tmp_path: Path
) -> None:
    cut = Cut(shell, engine, own_server, words, tasks(tmp_path, LONG), LONG)
    # of two kinds, so that both are heard however close they are
    code, err = cut.by(signal.SIGINT, signal.SIGTERM, resumed=False)
    assert code == 130
    assert set(range(1, settled(err) + 1)) <= set(stored(engine))
    assert shell.run(*words, str(tmp_path / "tasks.jsonl")).code == 0
    assert stored(engine) == Counter(range(1, LONG + 1))


def test_signals_that_the_working_thread_takes_are_heard_while_it_works() -> None:
    """The system gives it the second one while the main thread has not handled the first."""
    ended, outcomes = threading.Event(), list[bool]()

    def joining() -> bool:
        stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])
        return "wait" in [frame.name for frame in stack]

    def work() -> None:
        wait_until(joining, "the main thread waits")
        for number in SIGNALS:
            signal.pthread_kill(threading.get_ident(), number)
        outcomes.append(ended.wait(LONGEST_S))

    with Ending(), pytest.raises(KeyboardInterrupt):
        apart(work)
    assert outcomes == []
    ended.set()
    wait_until(lambda: outcomes == [True], "the work ends")


@pytest.mark.parametrize("option", ["--ids", "--json"])
def test_who_reads_its_output_goes_away(
    shell: Shell, engine: Engine, words: tuple[str, ...], file: Path, option: str
) -> None:
    process = shell.start(*words, str(file), option)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(LONGEST_S) == 141
    assert "Traceback" not in err
    assert 0 < pushed(err) < COUNT
    assert settled(err) < pushed(err), "the last window was told in part only"
    assert shell.run(*words, str(file)).code == 0
    assert stored(engine) == Counter(range(1, COUNT + 1))


@pytest.fixture
def reading(shell: Shell, words: tuple[str, ...]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command as it reads from a pipe, and our end of that."""
    theirs, ours = os.pipe()
    process = shell.start(*words, "-", stdin=theirs)
    os.close(theirs)
    yield process, ours
    os.close(ours)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_line_is_pushed_as_it_comes(
    engine: Engine, reading: tuple[subprocess.Popen[str], int], number: signal.Signals
) -> None:
    process, pipe = reading
    for n in range(1, 4):
        os.write(pipe, f'\n{{"payload": {n}, "delay": 3600}}\n{{"payload": '.encode())
        wait_until(lambda: engine.stats().scheduled == 2 * n - 1, "it is stored while the pipe is open")  # noqa: B023
        os.write(pipe, f'{-n}, "delay": 3600}}\n'.encode())
        wait_until(lambda: engine.stats().scheduled == 2 * n, "so is one that came in two pieces")  # noqa: B023
    # half a line is none
    os.write(pipe, b'{"payload": 99')
    process.send_signal(number)
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 128 + number
    assert err == f"6 pushed\nended by {number.name}, 9 lines read; to carry out the rest, give those from line 10 on\n"


def test_lines_of_a_file_are_never_held_up(file: Path) -> None:
    size = 0

    def advance(step: int) -> None:
        nonlocal size
        size += step

    with opened_source(str(file)) as source, Ending() as ending:
        feed = Feed(source, limit=100, ending=ending, advance=advance)
        assert [line and line[0] for line in feed] == file.read_bytes().splitlines()
    assert feed.exhausted
    assert size == file.stat().st_size


def test_lines_that_are_too_long_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_bytes(b"x" * 1_000_000 + b"\nshort\n" + b"y" * 600_000)
    with opened_source(str(file)) as source, Ending() as ending:
        found = list(Feed(source, limit=10, ending=ending, advance=lambda _: None))
    assert [line and (len(line[0]), line[1]) for line in found] == [(12, 1_000_001), (5, 6), (12, 600_000)]


def test_closed_streams(shell: Shell, engine: Engine, words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text(lines({"payload": n, "delay": 3600} for n in range(10)))
    command = [str(SCRIPT), *words]
    for redirected, code, err in (
        (["-", "<&-"], 1, "error: there are no lines to read: stdin is closed\n"),
        ([str(file), ">&-", "<&-"], 0, "10 pushed\n"),
        ([str(file), "--ids", ">&-", "2>&-"], 0, ""),
    ):
        line = " ".join([*command, *redirected])
        done = subprocess.run(
            ["sh", "-c", line], env=shell.environment, stderr=subprocess.PIPE, text=True, check=False, timeout=LONGEST_S
        )
        assert (done.returncode, done.stderr) == (code, err)
    assert engine.stats().scheduled == 2 * 10
