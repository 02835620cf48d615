"""Several processes share an embedded server: which starts it, which ends it, and what survives when all are killed."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import redis

from shardq.features.embedded import enter
from tests.embedded.seen import client, gone, server_pid
from tests.embedded.user import comer_and_goer, user
from tests.support.waiting import wait_until


def test_the_first_starts_the_server_and_the_last_ends_it(folder: Path) -> None:
    with user(folder) as other:
        use = enter(folder)
        assert use.started
        pid = server_pid(use)
        other.go_in()
        assert other.is_in() == (False, use.socket)
        use.leave()
        assert not gone(pid)
        other.leave()
    assert gone(pid)
    assert not use.socket.exists()


def test_leaving_waits_until_the_server_has_ended_and_may_be_repeated(folder: Path) -> None:
    use = enter(folder)
    pid = server_pid(use)
    use.leave()
    assert gone(pid)
    use.leave()


def test_a_process_that_forgets_to_leave_leaves_at_its_exit(folder: Path) -> None:
    with user(folder) as other:
        other.go_in()
        _, socket = other.is_in()
        with redis.Redis(unix_socket_path=str(socket)) as connection:
            pid = int(connection.info("server")["process_id"])
        other.forget_to_leave()
    assert gone(pid)


def test_two_uses_in_one_process_count_as_two(folder: Path) -> None:
    with enter(folder) as first:
        with enter(folder) as second:
            assert (first.started, second.started) == (True, False)
            assert first.url == second.url
        with client(first) as connection:
            assert connection.ping()


def test_tasks_are_there_after_an_orderly_end(folder: Path) -> None:
    with enter(folder) as use, client(use) as connection:
        connection.set("a", "1")
    with enter(folder) as use, client(use) as connection:
        assert use.started
        assert connection.get("a") == "1"


def test_tasks_are_there_after_everybody_was_killed(folder: Path) -> None:
    with user(folder) as other:
        other.go_in()
        _, socket = other.is_in()
        with redis.Redis(unix_socket_path=str(socket)) as connection:
            for number in range(1000):
                connection.rpush("a", number)
            pid = int(connection.info("server")["process_id"])
        os.kill(pid, signal.SIGKILL)
        other.kill()
    assert socket.exists(), "a killed server leaves its socket behind"
    with enter(folder) as use, client(use) as again:
        assert use.started
        assert again.llen("a") == 1000


def test_a_server_whose_users_were_all_killed_is_found_again(folder: Path) -> None:
    with user(folder) as other:
        other.go_in()
        other.is_in()
        other.kill()
    with enter(folder) as use:
        assert not use.started
        pid = server_pid(use)
    assert gone(pid)


def test_of_six_who_enter_at_once_one_starts_the_server(folder: Path) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(user(folder)) for _ in range(6)]
        for each in users:
            each.wait_ready()
        for each in users:
            each.go_in()
        answers = [each.is_in() for each in users]
        assert [started for started, _ in answers].count(True) == 1
        assert len({socket for _, socket in answers}) == 1
        for each in users:
            each.leave()
    assert not answers[0][1].exists()


@pytest.mark.slow
def test_coming_and_going_of_many_loses_nothing(folder: Path) -> None:
    """Starts and ends race: whoever has entered has a server that answers, and nothing written is lost."""
    with ExitStack() as stack:
        comers = [stack.enter_context(comer_and_goer(folder, times=15)) for _ in range(4)]
        assert [each.wait(timeout=100) for each in comers] == [0] * 4
    with enter(folder) as use, client(use) as connection:
        assert use.started
        assert connection.get("visits") == "60"


def test_a_server_that_is_killed_in_use_is_started_by_the_next(folder: Path) -> None:
    with enter(folder) as use:
        os.kill(server_pid(use), signal.SIGKILL)
        with enter(folder) as second:
            assert second.started
            with client(use) as connection:
                wait_until(connection.ping, "the first user's address answers again")


def test_the_end_of_a_terminal_session_does_not_reach_the_server(folder: Path) -> None:
    with enter(folder) as use:
        server = psutil.Process(server_pid(use))
        assert os.getsid(server.pid) != os.getsid(0)
        assert server.terminal() is None


def test_a_running_server_keeps_its_fsync(folder: Path) -> None:
    with enter(folder, fsync="always") as use, enter(folder, fsync="everysec"), client(use) as connection:
        assert connection.config_get("appendfsync") == {"appendfsync": "always"}


def test_the_server_holds_no_file_of_its_starter(folder: Path) -> None:
    """Least of all the users' lock, which would then never be free."""
    with (folder.parent / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        with enter(folder) as use:
            names = {Path(file.path).name for file in psutil.Process(server_pid(use)).open_files()}
    assert not names & {"lock", "held"}
