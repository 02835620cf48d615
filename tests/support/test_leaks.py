"""The leak checker notices what a test leaves behind."""

from __future__ import annotations

import logging
import socket
import threading

import pytest

from tests.support.leaks import Leaks


def test_an_open_socket_is_reported() -> None:
    leaks = Leaks()
    one, other = socket.socketpair()
    with one, other, pytest.raises(AssertionError, match="the test left behind: socket"):
        leaks.check(grace=0)
    leaks.check()


def test_logging_that_was_set_up_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    leaks = Leaks()
    with monkeypatch.context() as patched:
        patched.setattr(logging.getLogger("shardq.advice"), "propagate", False)
        with pytest.raises(AssertionError, match=r"the test left behind: settings of the logger shardq.advice$"):
            leaks.check(grace=0)
    leaks.check()


@pytest.mark.slow
def test_a_thread_of_the_engine_is_reported_and_no_other() -> None:
    leaks = Leaks()
    end = threading.Event()
    threads = [threading.Thread(target=end.wait, name=name) for name in ("shardq poller 3", "of the test")]
    for thread in threads:
        thread.start()
    with pytest.raises(AssertionError, match=r"the test left behind: thread shardq poller 3$"):
        leaks.check(grace=0)
    end.set()
    leaks.check()
    for thread in threads:
        thread.join()
