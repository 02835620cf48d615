"""A full disk is reported by the engine, and nothing is lost that was acknowledged.

The server may write no file beyond a size, from when a test says so: it gets an error as from a full disk (EFBIG in
place of ENOSPC), on every machine and without rights.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from shardq import Unanswered
from shardq.errors import EmbeddedFault, ReadOnly
from shardq.features.embedded import Embedded, enter
from tests.embedded.seen import client, servers_in
from tests.support.engines import Engines
from tests.support.waiting import wait_until

WORDS = "File too large"


@pytest.fixture
def limitable(folder: Path, wrapped: Callable[[str], None]) -> None:
    """Servers survive the signal that comes with the limit, and those that are started under it have it, too."""
    wrapped(f"trap '' XFSZ\nif [ -e '{_full(folder)}' ]; then ulimit -S -f 0; fi")


def _full(folder: Path) -> Path:
    return folder.parent / "full"


def fill(folder: Path) -> None:
    """From now on nothing can be appended."""
    _full(folder).touch()
    for server in servers_in(folder):
        _, most = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, most))


def make_room(folder: Path) -> None:
    _full(folder).unlink()
    for server in servers_in(folder):
        _, most = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (most, most))


def writes(use: Embedded) -> bool:
    with client(use) as connection:
        return bool(connection.info("persistence")["aof_last_write_status"] == "ok")


def refuses(folder: Path) -> bool:
    with redis.Redis(unix_socket_path=str(folder / "server.sock")) as connection:
        return bool(connection.info("persistence")["aof_last_write_status"] == "err")


@pytest.mark.usefixtures("limitable")
def test_a_close_says_so_and_leaves_the_server_up(
    engines: Engines, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines.opened(f"embedded://{folder}")
    engine.push("before", delay=3600)
    fill(folder)
    id = engine.push("the last", delay=3600)
    engine.close()
    [warning] = [each.getMessage() for each in caplog.records if each.name == "shardq.embedded"]
    assert str(folder) in warning
    assert WORDS in warning
    assert "stays up" in warning
    assert "make room" in warning
    make_room(folder)
    with enter(folder) as use:
        assert not use.started
        wait_until(lambda: writes(use), "it has written what was left")
    assert not servers_in(folder)
    again = engines.opened(f"embedded://{folder}")
    assert again.stats().scheduled == 2
    assert again.get(id) is not None


@pytest.mark.slow
@pytest.mark.usefixtures("limitable")
def test_pushes_are_refused_in_words(engines: Engines, folder: Path) -> None:
    with enter(folder):
        engine = engines.opened(f"embedded://{folder}", timeout=4.0)
        fill(folder)
        engine.push("acknowledged", delay=3600)
        wait_until(lambda: refuses(folder), "the server knows")
        with pytest.raises(ReadOnly, match=f"{folder}.*{WORDS}.*can save to its disk"):
            engine.push("refused", delay=3600)
        make_room(folder)
        wait_until(lambda: not refuses(folder), "it has written what was left")
        engine.push("stored", delay=3600)
        assert engine.stats().scheduled == 2


@pytest.mark.slow
@pytest.mark.usefixtures("limitable")
def test_with_fsync_always_no_push_is_acknowledged(engines: Engines, folder: Path) -> None:
    """The server ends itself then, rather than to answer for what it can't write."""
    with enter(folder, fsync="always"):
        engine = engines.opened(f"embedded://{folder}", timeout=4.0)
        id = engine.push("before", delay=3600)
        fill(folder)
        with pytest.raises(Unanswered):
            engine.push("refused", delay=3600)
        make_room(folder)
        engine.close()
    again = engines.opened(f"embedded://{folder}")
    assert again.get(id) is not None
    assert again.stats().scheduled == 1


@pytest.mark.usefixtures("limitable")
def test_a_start_says_so(folder: Path) -> None:
    fill(folder)
    with pytest.raises(EmbeddedFault, match=f"(?s)the embedded server in {folder} ended at its start"):
        enter(folder)
    assert not servers_in(folder)
