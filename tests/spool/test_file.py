"""The spool's file: who may have it, what it holds at most, and what is said when it can't be used."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server
from shardq import Engine, InvalidOption, PushError, SpoolFault, SpoolFull, Task, Unanswered
from shardq.spool.commands import Command, Spooled, layers
from shardq.spool.file import SpoolFile
from tests.spool.conftest import Make, drained, seen
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until

NOBODY = "redis://127.0.0.1:1"


def engine_at(path: Any, **options: Any) -> Engine:
    return Engine(NOBODY, spool=path, timeout=0.1, connect_timeout=0.1, **options)


def test_only_its_owner_can_read_it(path: Path) -> None:
    with engine_at(path) as engine:
        engine.push("secret", delay=FAR_S)
        files = list(path.parent.glob(f"{path.name}*"))
        assert len(files) >= 3  # the log, and the lock
        assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


def test_a_path_that_cant_be_used_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpoolFault, match="can't be made: No such file or directory; give the path of a file"):
        engine_at(tmp_path / "missing" / "file")
    with pytest.raises(SpoolFault, match="can't be"):
        engine_at(tmp_path)
    for wrong in (5, "", b""):
        with pytest.raises(InvalidOption, match="give the path of a file"):
            engine_at(wrong)
    for bound in (0, 1.5, True, 65_535):
        with pytest.raises(InvalidOption, match="give bytes"):
            engine_at(tmp_path / "spool", spool_bytes=bound)


def test_an_embedded_server_has_no_spool(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDQ_URL", raising=False)
    for url in (None, "embedded://"):
        with pytest.raises(InvalidOption, match="spool= is not possible with an embedded server"):
            Engine(url, spool=path)
    assert not path.exists()


def test_a_spool_belongs_to_one_engine(path: Path) -> None:
    engine_at(path, name="orders")
    engine_at(path, name="orders")
    with pytest.raises(SpoolFault, match="belongs to the engine 'orders', not to 'mails': give each engine a file"):
        engine_at(path, name="mails")


def test_a_file_of_something_else_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE shop (id)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(SpoolFault, match="is a database of something else: give another path"):
        engine_at(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(path: Path) -> None:
    engine_at(path)
    with sqlite3.connect(path) as changed:
        changed.execute("PRAGMA user_version = 99")
    changed.close()
    with pytest.raises(SpoolFault, match="has the format 99, and this shardq knows the format 1"):
        engine_at(path)


@pytest.mark.parametrize("content", [b"no database at all" * 1000, None])
def test_a_broken_file_is_told(path: Path, content: bytes | None) -> None:
    """Overwritten as a whole, and its pages but the first."""
    with engine_at(path) as engine:
        engine.push_many([Task("x" * 1000, delay=FAR_S) for _ in range(100)])
    with sqlite3.connect(path) as checkpointed:
        checkpointed.execute("PRAGMA journal_mode = DELETE")
    checkpointed.close()
    whole = path.read_bytes()
    path.write_bytes(content or whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(SpoolFault, match=r"is broken \(.*\): move it away"):
        engine_at(path)


def test_a_removed_file_is_noticed(path: Path) -> None:
    """What went on being written there would be gone with the process."""
    with engine_at(path) as engine:
        assert engine.push("one").outcome == "spooled"
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()
        with pytest.raises(SpoolFault, match="was removed or replaced"):
            engine.push("two")


def test_a_full_spool_says_what_to_do(make: Make, own_server: Server, path: Path) -> None:
    engine = make(spool_bytes=64 << 10).open()
    engine.push("here", delay=FAR_S)
    own_server.kill()
    kept: list[str] = []

    def fill() -> None:
        while True:
            kept.append(engine.push("x" * 1000, delay=FAR_S))

    with pytest.raises(SpoolFull, match=r"65,536 are allowed: nothing of this call was spooled; bring Redis back"):
        fill()
    assert 50 < len(kept) < 66
    small = engine.push("small", delay=FAR_S)  # there is room for it
    with pytest.raises(SpoolFull):
        engine.push_many([Task("x" * 1000) for _ in range(3)])
    own_server.start()
    drained(path)
    for id in (*kept, small):
        assert state_of(engine, id) == "scheduled"


def test_what_may_be_stored_and_finds_no_room_is_unknown(make: Make, own_server: Server) -> None:
    engine = make(spool_bytes=64 << 10).open()
    engine.push("here", delay=FAR_S)
    own_server.pause()
    with pytest.raises(Unanswered) as one:
        engine.push("x" * 70_000, delay=FAR_S)
    assert "could not be spooled either" in "".join(one.value.__notes__)
    own_server.resume()
    wait_until(lambda: engine.stats().scheduled == 2, "it was stored")


def test_a_bulk_push_that_finds_no_room_says_so(make: Make, own_server: Server) -> None:
    engine = make(spool_bytes=64 << 10).open()
    engine.push("here", delay=FAR_S)
    own_server.kill()
    with pytest.raises((PushError, SpoolFull)) as many:
        engine.push_many([Task("x" * 1000, delay=FAR_S) for _ in range(100)])
    if isinstance(many.value, PushError):
        assert len(many.value.failed) + len(many.value.unknown) == 100
        assert all(isinstance(why, SpoolFull) for why in many.value.failed.values())


def test_what_may_have_been_executed_is_stored_in_any_case(path: Path) -> None:
    """Also when the outage is over before it is: sent again as new, it could be there twice."""
    engine = engine_at(path)
    spool = engine._spool
    assert spool is not None
    with ThreadPoolExecutor(2) as threads:
        with spool._writing:
            lost = threads.submit(spool.add, [Command("cancel", "a")], lost=Unanswered("its answer was lost"))
            new = threads.submit(spool.add, [Command("cancel", "b")])
            wait_until(lambda: len(spool._tickets) == 2, "both wait")
            spool.away = False
        assert (lost.result(), new.result()) == (True, False)
    assert spool.away
    assert seen(path).waiting == 1
    engine.close()


FILL = """
import resource, signal, sys
import shardq
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
engine = shardq.Engine("redis://127.0.0.1:1", spool=sys.argv[1], timeout=0.1, connect_timeout=0.1)
print(engine.push("first"), flush=True)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
try:
    while True:
        print(engine.push_many([shardq.Task("x" * 1000) for _ in range(10)])[0], flush=True)
except shardq.SpoolFault as exc:
    print(exc, file=sys.stderr)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print(engine.push("last"), flush=True)
"""


def test_a_full_disk_is_told_and_leaves_nothing_half_written(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FILL, path], capture_output=True, text=True, timeout=100, check=True)
    assert "nothing of this call was spooled; make room on its disk" in done.stderr
    first, *tens, last = done.stdout.split()
    file = SpoolFile(path)
    held = []
    after = 0
    while page := file.page(after):
        after = page[-1].seq
        held += [each.command.id for each in page]
    file.close()
    assert held[0] == first
    assert held[-1] == last
    assert held[1:-1:10] == tens
    assert len(held) == 2 + 10 * len(tens) == seen(path).waiting


KILLED = """
import os, signal, sys
import shardq
engine = shardq.Engine("redis://127.0.0.1:1", spool=sys.argv[1], timeout=0.1, connect_timeout=0.1)
for _ in range(5):
    os.write(1, engine.push("one").encode() + b"\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_is_acknowledged_survives_a_kill(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, path], capture_output=True, text=True, timeout=100)
    assert done.returncode == -signal.SIGKILL
    file = SpoolFile(path)
    assert [each.command.id for each in file.page(0)] == done.stdout.split()
    file.close()


def test_layers_keep_the_order_of_an_id() -> None:
    def spooled(seq: int, id: str) -> Spooled:
        return Spooled(seq, Command("push", id))

    page = [spooled(seq, id) for seq, id in enumerate("abacabd")]
    assert [[each.seq for each in layer] for layer in layers(page)] == [[0, 1, 3, 6], [2, 5], [4]]


def test_failed_commands_are_retried_or_dropped(path: Path) -> None:
    file = SpoolFile(path, engine="orders", shards=4)
    last, _ = file.add([[Command("push", "a", record=b"x" * 100), Command("cancel", "b"), Command("cancel", "c")]])
    file.finish([1], [(2, "no"), (3, "never")])
    stats = file.stats()
    assert (last, stats.waiting, stats.failed, stats.replayed) == (3, 0, 2, 1)
    assert [(each.command.id, reason) for each, reason, _ in file.failed()] == [("b", "no"), ("c", "never")]
    assert file.retry_failed() == 2
    assert [(each.seq, each.command.id) for each in file.page(0)] == [(4, "b"), (5, "c")]
    file.finish([], [(4, "no")])
    assert file.drop_failed() == 1
    file.finish([5], [])
    file.finish([5], [(4, "again")])  # they are gone
    stats = file.stats()
    assert (stats.waiting, stats.failed, stats.replayed, stats.bytes) == (0, 0, 2, 0)
    file.close()


def test_the_disk_gets_back_what_an_outage_took(path: Path) -> None:
    file = SpoolFile(path, engine="orders", shards=4)
    file.add([[Command("push", str(n), record=os.urandom(10_000)) for n in range(500)]])
    while page := file.page(0):
        file.finish([each.seq for each in page], [])
    file.tidy()
    file.close()
    assert path.stat().st_size < 200_000
