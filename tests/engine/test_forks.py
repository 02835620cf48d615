"""After a fork the child's engine has nothing of the parent's: it says so until it is opened or started again."""

from __future__ import annotations

from tests.support.workers import Worker


def test_a_fork(url: str, name: str) -> None:
    with Worker("tests.support.forking", url, name) as worker:
        assert worker.said() == "OK"
