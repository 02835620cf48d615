"""A forked child uses the embedded server in its own right: neither process takes it from the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shardq.features.embedded import enter, locks
from shardq.features.embedded.places import Place
from tests.embedded.seen import answers
from tests.support.waiting import wait_until


class Child:
    """A fork of this process that does ``work`` when told to."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._write)
            os.read(self._read, 1)
            try:
                work()
            except BaseException:  # noqa: BLE001 - whatever it was, the parent sees the exit code
                os._exit(1)
            os._exit(0)

    def run(self) -> int:
        """Tell it, and wait for its exit code."""
        os.write(self._write, b"g")
        _, status = os.waitpid(self._pid, 0)
        os.close(self._read)
        os.close(self._write)
        return os.waitstatus_to_exitcode(status)


def test_a_child_that_leaves_does_not_end_its_parents_server(tmp_path: Path) -> None:
    with enter(tmp_path / "data") as use:
        assert Child(use.leave).run() == 0
        assert answers(use.socket)
    assert not answers(use.socket)


def test_a_parent_that_leaves_does_not_end_its_childs_server(tmp_path: Path) -> None:
    use = enter(tmp_path / "data")

    def work() -> None:
        assert answers(use.socket)
        use.leave()

    child = Child(work)
    use.leave()
    assert answers(use.socket)
    assert child.run() == 0
    assert not answers(use.socket)


def test_a_child_that_just_ends_leaves_the_server_to_the_next(tmp_path: Path) -> None:
    use = enter(tmp_path / "data")
    child = Child(lambda: None)
    use.leave()
    assert child.run() == 0
    with enter(tmp_path / "data") as again:
        assert not again.started
    assert not answers(use.socket)


def test_a_child_that_is_forked_while_another_thread_enters_is_no_user(tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")

    def entered() -> bool:
        with locks.alone(place.users_lock) as free:
            return free is None

    with ThreadPoolExecutor(1) as threads:
        # it waits for a server that another process seems to be starting
        with locks.alone(place.server_lock):
            entering = threads.submit(enter, place.folder)
            wait_until(entered, "the thread counts as a user")
            child = Child(lambda: None)
        use = entering.result()
    use.leave()
    assert not answers(use.socket)
    assert child.run() == 0
