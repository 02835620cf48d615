"""`shardq top` on terminals of some sizes, driven by keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from typing import Self

import pytest

from shardq import Engine
from shardq.cli.top_keys import VIEWS
from tests.cli.conftest import SHARDS
from tests.cli.shell import LONGEST_S, SCRIPT, Shell
from tests.support.waiting import wait_until

HOME = "\x1b[H"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Top:
    """The command on a terminal of its own."""

    def __init__(self, shell: Shell, *words: str, columns: int, rows: int) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._theirs = theirs
        self.before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [SCRIPT, "top", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=shell.environment
        )
        self._seen = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        self._thread.join(LONGEST_S)
        os.close(self._ours)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while chunk := os.read(self._ours, 1 << 16):
                self._seen += chunk.decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    @property
    def screen(self) -> list[str]:
        """The lines that are to be seen, of the last screen that was drawn whole."""
        frames = self._seen.split(HOME)
        return [line.rstrip() for line in _ESCAPES.sub("", frames[-2] if len(frames) > 2 else "").split("\r\n")]

    def shows(self, text: str) -> list[str]:
        """Waits until a screen has the text, and returns its lines."""

        def found() -> list[str]:
            assert self.process.poll() is None, self._seen[-2000:]
            screen = self.screen
            return screen if text in "\n".join(screen) else []

        return wait_until(found, f"the screen shows {text!r}", timeout=LONGEST_S)

    def resize(self, *, columns: int, rows: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._theirs)


@pytest.fixture
def served(shardq: Shell, engine: Engine) -> Engine:
    """An engine with tasks in all states, which this process serves."""
    engine.start()
    for number in range(20):
        engine.push(number, delay=1_800, topic="mail")
    engine.push("x", topic="later")
    engine.push("y", topic="bad", max_attempts=1)
    wait_until(lambda: engine.stats().ready == 2, "two tasks are ready")
    (delivery,) = engine.consumer("bad").claim(1, wait=30.0)
    engine.consumer().bury(delivery, "no such address")
    engine.pause("later")
    return engine


@pytest.mark.slow
def test_every_view_and_the_end(shardq: Shell, served: Engine) -> None:
    with Top(shardq, columns=80, rows=24) as top:
        screen = top.shows("scheduled 20")
        assert screen[0].startswith(f"{served.name}: {SHARDS} shards at redis")
        assert screen[1] == "ok"
        assert any("ready 1" in line and "dead 1" in line for line in screen)
        assert any("next hour" in line for line in screen)
        assert len(screen) <= 24
        assert max(map(len, screen)) <= 80
        top.press("2")
        assert any("127.0.0.1" in line for line in top.shows("replicas"))
        top.press("3")
        assert any(line.split()[:1] == ["later"] and "paused" in line for line in top.shows("taken/s"))
        top.press("4")
        assert any("dispatcher" in line and f"0-{SHARDS - 1}" in line for line in top.shows("process"))
        top.press("5")
        assert any("bad" in line for line in top.shows("no such address"))
        top.press("6")
        top.shows("█")
        top.press("?")
        top.shows("any key goes back")
        top.press("qq")
        assert top.process.wait(LONGEST_S) == 0
        assert top.settings() == top.before


@pytest.mark.slow
def test_a_verdict_is_shown_whole_and_tabs_are_no_counts(shardq: Shell, engine: Engine) -> None:
    engine.forward("mail", to="http://127.0.0.1:1/hooks")
    engine.push("x", topic="mail", delay=3_600)
    with Top(shardq, columns=60, rows=20) as top:
        screen = top.shows("not ok: no dispatcher runs")
        assert screen[1].endswith("…")
        assert [line.split() for line in screen if "nodes" in line] == [[*VIEWS]]
        top.press("v")
        words = " ".join(" ".join(top.shows("any")).split())
        assert "call engine.start() in a process that stays up, or start `shardq run`" in words
        top.resize(columns=20, rows=8)
        top.shows("more: down")
        top.press("\x1b[F")
        wait_until(lambda: "more: down" not in "\n".join(top.shows("any")), "the end is shown")
        top.press("x")
        top.shows("not ok:")
        top.press("q")
        assert top.process.wait(LONGEST_S) == 0


@pytest.mark.slow
def test_rows_are_sorted_and_filtered_and_the_screen_paused(shardq: Shell, served: Engine) -> None:
    with Top(shardq, "--view", "topics", "--every", "0.3", columns=100, rows=30) as top:
        top.shows("mail")
        top.press("ss")
        rows = [line.split()[0] for line in top.shows("scheduled ▼") if line[:5].strip() in ("mail", "later", "bad")]
        assert rows[0] == "mail"
        top.press("/late\r")
        screen = top.shows("/late")
        assert wait_until(lambda: not any(line.lstrip().startswith("mail") for line in top.screen), "only one is left")
        assert any(line.lstrip().startswith("later") for line in screen)
        top.press("\x1b")
        top.shows("mail")
        top.press("p")
        top.shows("paused")
        served.push("z", delay=3_600)
        top.press("p")
        top.shows("scheduled 21")


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), [(40, 12), (30, 6), (200, 60)])
def test_any_window_has_room_for_the_verdict(shardq: Shell, served: Engine, columns: int, rows: int) -> None:
    with Top(shardq, columns=columns, rows=rows) as top:
        screen = top.shows("ok")
        assert len(screen) <= rows
        assert max(map(len, screen)) <= columns
        top.resize(columns=80, rows=24)
        top.shows("next hour")
        top.process.send_signal(signal.SIGINT)
        assert top.process.wait(LONGEST_S) == 130
        assert top.settings() == top.before


def test_without_a_terminal_it_says_what_to_use(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("top")
    assert done.code == 2
    assert "shardq stats --json" in done.err
    done = shardq.on_terminal("top", "--every", "0.01", columns=80, rows=24)
    assert done.code == 2
    assert "at most" in done.out
