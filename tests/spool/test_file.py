"""The spool's file: who may have it, what it holds at most, and what is said when it can't be used."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from cluster.server import Server
from shardq import Engine, PushError, Task, Unanswered
from shardq.engine.access import EngineAccess
from shardq.engine.wiring import spool_mover
from shardq.errors import InvalidOption, SpoolFault, SpoolFull
from shardq.features.embedded import locks
from shardq.features.spool.spool import lock_of
from shardq.relay.file import SpoolFile
from shardq.relay.row import Command, Numbered, layers
from tests.spool.conftest import Make, drained, seen
from tests.support.listed import listed
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until

NOBODY = "redis://127.0.0.1:1"


def engine_at(path: Any, **options: Any) -> Engine:
    return Engine(NOBODY, spool=path, timeout=0.1, connect_timeout=0.1, **options)


@pytest.mark.slow
def test_only_its_owner_can_read_it(path: Path) -> None:
    with engine_at(path) as engine:
        engine.push("secret", delay=FAR_S)
        files = list(path.parent.glob(f"{path.name}*"))
        assert len(files) >= 2  # the journal; the lock, once it is replayed
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
    with pytest.raises(SpoolFault, match="has the format 99, and this shardq knows the format 3"):
        engine_at(path)


@pytest.mark.slow
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


@pytest.mark.slow
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
import os, resource, signal, sys
import shardq
from shardq.relay.file import RESERVE_BYTES
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
url, name, path = sys.argv[1:]
engine = shardq.Engine(url, name=name, shards=4, spool=path, timeout=0.5, connect_timeout=0.5)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (RESERVE_BYTES, most))
print(engine.push("first", id="taken", on_conflict="reject", delay=3600), flush=True)
try:
    while True:
        count = 100 if os.path.getsize(path) < RESERVE_BYTES - 500_000 else 1
        print(*engine.push_many([shardq.Task("x" * 3000, delay=3600) for _ in range(count)]), flush=True)
except shardq.errors.SpoolFault as exc:
    print(exc, file=sys.stderr)
print("full", flush=True)
sys.stdin.readline()
outcome = "spooled"
while outcome == "spooled":
    try:
        receipt = engine.push("after", delay=3600)
    except shardq.ShardqError:
        continue  # until the replay has met the server
    outcome = receipt.outcome
    print(receipt, flush=True)
print("back", flush=True)
while engine.stats().spool.waiting:
    pass
engine.close()
"""


def test_a_full_disk_stops_neither_the_replay_nor_pushes(own_server: Server, path: Path, name: str) -> None:
    """The limit makes each write fail that would lengthen a file beyond the size of the journal, which is the longest
    one, while writes in place succeed: so does a full disk. A file system that is really full takes the rights of root.
    """
    engine = Engine(own_server.url, name=name, shards=4)
    engine.push("before", id="taken", delay=FAR_S)
    own_server.kill()
    words = [sys.executable, "-c", FILL, own_server.url, name, str(path)]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        spooled = list(itertools.takewhile(lambda word: word != "full", words_of(child.stdout)))
        assert len(spooled) > 1000
        own_server.start()
        out, said = child.communicate("go on\n", timeout=100)
        # Looked at only now: a process without the limit could move pages from one file to the other.
    assert child.returncode == 0, said
    assert "nothing of this call was spooled; make room on its disk" in said
    *after, told = out.split()
    assert told == "back"
    stats = seen(path)
    assert (stats.waiting, stats.failed) == (0, 1), "the conflict was put aside"
    assert stats.replayed - len(spooled) + 1 in range(len(after) + 1), "each was noted once"
    assert {task.id for task in listed(engine)} >= {*spooled, *after}
    engine.close()


def vanish(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def corrupt(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)


def write_protect(path: Path) -> None:
    """As the owner's rights do for all but root: SQLite writes no file whose head names a later format for writers."""
    head = bytearray(path.read_bytes()[:100])
    head[18] = 3
    head[24:28] = head[92:96] = b"\0\1\0\0"  # the counter of changes, so that the head is read again
    with path.open("r+b") as file:
        file.write(head)


def fill(path: Path) -> None:
    """Other commands that take all of its bytes, and wait for a shard that is away."""
    with sqlite3.connect(path) as file:
        file.execute("UPDATE spool SET bytes = 65536")
    file.close()


@pytest.mark.parametrize(
    ("break_it", "told", "held"),
    [
        (vanish, "was removed or replaced", False),
        (corrupt, "is broken", False),
        (write_protect, "attempt to write a readonly database", True),
        (fill, "65,536 are allowed", True),
    ],
)
def test_pushes_go_to_a_healthy_server_whatever_the_file_is(
    make: Make,
    own_server: Server,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    break_it: Callable[[Path], None],
    told: str,
    held: bool,
) -> None:
    """And what can't be noted as replayed is not sent: it would be sent again by the next process."""
    engine = make(spool_bytes=64 << 10).open()
    engine.push("before", delay=FAR_S)
    with locks.alone(lock_of(path), deadline=time.monotonic() + 30):  # nothing is replayed before the file is broken
        own_server.kill()
        assert engine.push("old", id="own", on_conflict="replace", delay=FAR_S).outcome == "spooled"
        break_it(path)
        own_server.start()
        ids = [pushed_past(engine)]
        ids += [engine.push(n, delay=FAR_S) for n in range(100)]
        ids += engine.push_many([Task(n, delay=FAR_S) for n in range(10)])
        if held:
            with pytest.raises(SpoolFault, match=told):
                engine.push("new", id="own", on_conflict="replace", delay=FAR_S)
        else:
            ids.append(engine.push("new", id="own", on_conflict="replace", delay=FAR_S))
        assert all(state_of(engine, id) == "scheduled" for id in ids)
        assert engine.stats().scheduled == 1 + len(ids)
    if break_it is not fill:
        assert any(told in reason for reason in engine.health().reasons)
        assert caplog.text.count("commands go to Redis only") == 1


def test_an_engine_opens_with_a_file_that_broke_before(make: Make, own_server: Server, path: Path) -> None:
    engine = make()
    corrupt(path)
    assert engine.push("direct", delay=FAR_S).outcome == "pushed"
    assert any("is broken" in reason for reason in engine.health().reasons)
    stats = engine.stats().spool
    assert stats is not None
    assert (stats.waiting, stats.failed) == (None, None), "unknown is not 0"


def test_what_cant_be_noted_is_not_replayed(own_server: Server, path: Path, name: str) -> None:
    """The next process would replay it again, and Redis remembers a replay for ten minutes only."""
    engine = Engine(own_server.url, name=name, shards=4)
    file = SpoolFile(path, engine=name)
    file.add([[Command("cancel", engine.push("here", delay=FAR_S))]])
    write_protect(path)
    mover = spool_mover(file, EngineAccess(engine).options)
    with pytest.raises(SpoolFault, match="attempt to write a readonly database"):
        mover.run(lambda: False)
    mover.close()
    file.close()
    assert engine.stats().scheduled == 1
    engine.close()


def pushed_past(engine: Engine) -> str:
    """The first push that a server took."""

    def pushed() -> str | None:
        try:
            receipt = engine.push("first", delay=FAR_S)
        except SpoolFault:
            return None  # until the replay has met the server
        return receipt if receipt.outcome == "pushed" else None

    id = wait_until(pushed, "pushes go past the file", timeout=30)
    assert id is not None
    return id


def words_of(lines: Iterable[str]) -> Iterator[str]:
    return (word for line in lines for word in line.split())


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
    def spooled(seq: int, id: str) -> Numbered:
        return Numbered(seq, Command("push", id))

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
