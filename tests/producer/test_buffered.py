"""engine.buffered() sends the pushes of many threads in batches, and tells each thread what became of its own."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.server import Server
from shardq import Buffer, Conflict, Engine, Pending, PushError, ServerFault, ShardqError
from shardq.core.producer.buffer import MAX_FAILED
from shardq.errors import EngineClosed, InvalidDelay
from tests.support.buffers import together
from tests.support.engines import SHARDS
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """For threads: the asyncio engine has no buffered()."""
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as engine:
        yield engine


def test_every_thread_learns_that_its_task_is_stored(engine: Engine) -> None:
    with engine.buffered() as buffer:

        def push(n: int) -> str:
            pending = buffer.push(n, delay=FAR_S, id=f"mine-{n}" if n % 2 else None)
            receipt = pending.result(10)
            assert pending.done()
            assert receipt == pending.id
            assert receipt.outcome == "pushed"
            return receipt

        with ThreadPoolExecutor(32) as threads:
            ids = list(threads.map(push, range(2000)))
    assert len(set(ids)) == 2000
    assert ids[1::2] == [f"mine-{n}" for n in range(1, 2000, 2)]
    assert engine.stats().scheduled == 2000


def test_pushes_are_coalesced(engine: Engine, servers: Servers) -> None:
    def calls() -> int:
        infos = [client.info("commandstats") for client in servers.masters]
        return sum(info.get(f"cmdstat_{verb}", {}).get("calls", 0) for info in infos for verb in ("evalsha", "eval"))

    before = calls()
    with engine.buffered() as buffer, together(buffer):
        for n in range(1000):
            buffer.push(n, delay=FAR_S)
    assert engine.stats().scheduled == 1000
    assert calls() - before < 100


def test_closing_sends_the_rest(engine: Engine) -> None:
    buffer = engine.buffered()
    with together(buffer):
        pendings = [buffer.push(n, delay=FAR_S) for n in range(10)]
        assert not pendings[0].done()
    buffer.close()
    assert all(pending.done() for pending in pendings)
    assert [state_of(engine, pending.result()) for pending in pendings] == ["scheduled"] * 10
    with pytest.raises(EngineClosed, match=r"the buffer is closed; make another with engine\.buffered\(\)"):
        buffer.push("x")
    buffer.close()


def test_a_flush_waits_for_what_was_pushed_so_far(engine: Engine) -> None:
    with engine.buffered() as buffer:
        buffer.flush()
        pendings = [buffer.push(n, delay=FAR_S) for n in range(10)]
        buffer.flush()
        assert all(pending.done() for pending in pendings)


def test_a_result_that_takes_too_long(engine: Engine) -> None:
    with engine.buffered() as buffer, together(buffer):
        pending = buffer.push("x", delay=FAR_S)
        with pytest.raises(TimeoutError, match=r"still under way after 0\.01 s; wait on, or look with get"):
            pending.result(0.01)


def test_what_is_wrong_is_told_at_once_and_harms_nobody_else(engine: Engine) -> None:
    with engine.buffered() as buffer:
        good = buffer.push("x", delay=FAR_S)
        with pytest.raises(InvalidDelay):
            buffer.push("y", delay=-1)
        assert state_of(engine, good.result(10)) == "scheduled"


def test_each_is_told_its_own_fate(engine: Engine, servers: Servers, name: str) -> None:
    taken = next(id for n in range(99) if engine.topology.shard_of(id := f"mine-{n}") != 1)
    engine.push("x", delay=FAR_S, id=taken)
    broken = keys_of(name, SHARDS)[1]
    servers.ask(broken.slot, "SET", broken.due, "not a sorted set")
    buffer = engine.buffered()
    with together(buffer):  # the last sending has errors
        kept = [buffer.push("y", id=taken), buffer.push("y", id=taken)]
        pendings = [buffer.push(n, delay=FAR_S) for n in range(200)]
        replaced = buffer.push("y", id=taken, on_conflict="replace", delay=FAR_S)
    with pytest.raises(ShardqError):
        buffer.close()
    homes = [engine.topology.shard_of(pending.id) for pending in pendings]
    assert 1 in homes
    for pending, home in zip(pendings, homes, strict=True):
        assert isinstance(fate(pending), ServerFault if home == 1 else str)
    assert [pending.result().outcome for pending in (*kept, replaced)] == ["kept", "kept", "replaced"]


def test_a_refused_push_is_told_to_its_thread(engine: Engine) -> None:
    engine.push("x", delay=FAR_S, id="taken")
    buffer = engine.buffered()
    with together(buffer):
        refused, other = buffer.push("y", id="taken", on_conflict="reject"), buffer.push("z", delay=FAR_S)
    with pytest.raises(PushError):
        buffer.close()
    assert isinstance(fate(refused), Conflict)
    assert state_of(engine, other.result(10)) == "scheduled"


def broken_shard(engine: Engine, servers: Servers) -> Callable[[int], str]:
    """Breaks shard 1; makes ids of the shards asked for."""
    broken = keys_of(engine.name, SHARDS)[1]
    servers.ask(broken.slot, "SET", broken.due, "not a sorted set")
    numbers = itertools.count()
    return lambda shard: next(id for n in numbers if engine.topology.shard_of(id := f"mine-{n}") == shard)


@pytest.mark.parametrize("tell", [Buffer.flush, Buffer.close])
def test_what_failed_earlier_is_told_too(engine: Engine, servers: Servers, tell: Callable[[Buffer], None]) -> None:
    an_id = broken_shard(engine, servers)
    buffer = engine.buffered()
    for shard in (0, 1, 2):  # three sendings, of which the second fails
        fate(buffer.push("x", id=an_id(shard), delay=FAR_S))
    with pytest.raises(PushError) as told:
        tell(buffer)
    assert [engine.topology.shard_of(id) for id in told.value.failed] == [1]
    buffer.close()  # told once


def test_a_flush_tells_of_all_sendings_since_the_last(engine: Engine, servers: Servers) -> None:
    an_id = broken_shard(engine, servers)
    with engine.buffered() as buffer:
        bad = [an_id(1) for _ in range(MAX_FAILED + 2)]
        fate(buffer.push("x", id=bad[0], delay=FAR_S))
        with pytest.raises(PushError) as first:
            buffer.flush()
        assert first.value.ids == bad[:1]
        for id in bad[1:]:
            fate(buffer.push("x", id=id, delay=FAR_S))
        with pytest.raises(
            PushError, match=f"0 of {MAX_FAILED} tasks are stored, {MAX_FAILED} are not, 0 have"
        ) as later:
            buffer.flush()
        assert later.value.ids == bad[2:]  # so many are kept
        assert later.value.__notes__ == ["1 task of sendings before these failed too: each Pending tells its own fate"]
        buffer.flush()


def fate(pending: Pending) -> str | ShardqError:
    try:
        return pending.result(10)
    except ShardqError as exc:
        return exc


def test_an_outage_holds_the_callers_back_and_no_longer(own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=SHARDS, timeout=60.0) as engine, engine.buffered() as buffer:
        buffer.push("x", delay=FAR_S).result()
        own_server.kill()
        pending = buffer.push("y", delay=FAR_S)
        assert not pending.done()
        own_server.start()
        assert state_of(engine, pending.result(60)) == "scheduled"


def test_a_full_buffer_bounds_its_callers(own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=SHARDS, timeout=60.0) as engine, engine.buffered() as buffer:
        own_server.pause()
        pushed = 0

        def push() -> None:
            nonlocal pushed
            for n in range(30_000):
                buffer.push(n, delay=FAR_S)
                pushed += 1

        thread = threading.Thread(target=push)
        thread.start()
        seen = -1

        def stands_still() -> bool:
            nonlocal seen
            seen, before = pushed, seen
            return 8_000 <= seen == before

        wait_until(stands_still, "the pusher is held back")
        assert pushed < 30_000
        own_server.resume()
        thread.join()
        buffer.flush()
        assert engine.stats().scheduled == 30_000


def test_an_engine_that_closes_sends_what_a_buffer_holds(url: str, name: str) -> None:
    with Engine(url, name=name, shards=SHARDS) as engine:
        buffer, closed = engine.buffered(), engine.buffered()
        closed.push("x", delay=FAR_S).result()
        closed.close()
        pendings = [buffer.push(n, delay=FAR_S) for n in range(100)]
        with pytest.warns(ResourceWarning, match="a buffer was not closed: close it") as told:
            engine.close()
        assert len(told) == 1
        assert [pending.result(0).outcome for pending in pendings] == ["pushed"] * 100
        engine.open()
        assert engine.stats().scheduled == 101
        with pytest.raises(EngineClosed, match="the buffer is closed"):
            buffer.push("x")


def test_an_engine_that_closes_says_what_a_buffer_loses(
    own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(own_server.url, name=name, shards=SHARDS, timeout=0.5).open()
    buffer = engine.buffered()
    own_server.pause()
    pendings = [buffer.push(n, delay=FAR_S) for n in range(100)]
    with pytest.warns(ResourceWarning):
        engine.close()
    own_server.resume()
    assert "a buffer was not closed, and 100 of its pushes are not known to be stored: " in caplog.text
    assert all(isinstance(fate(pending), ShardqError) for pending in pendings)


LEFT = """
import sys, shardq
engine = shardq.Engine(sys.argv[1], name=sys.argv[2], shards=4, timeout=float(sys.argv[3]))
buffer = engine.buffered()
print("open", flush=True)
sys.stdin.readline()
for n in range(100):
    buffer.push(n, delay=3600)
"""


@pytest.mark.parametrize("away", [False, True])
def test_a_program_that_ends_with_pushes_in_a_buffer(own_server: Server, name: str, away: bool) -> None:
    words = [sys.executable, "-W", "always::ResourceWarning", "-c", LEFT, own_server.url, name, "1" if away else "30"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        if away:
            own_server.pause()
        _, errors = process.communicate("push\n", timeout=60)
    own_server.resume()
    assert process.returncode == 0
    assert "ResourceWarning: a buffer was not closed" in errors
    assert ("100 of its pushes are not known to be stored" in errors) == away
    if not away:
        with Engine(own_server.url, name=name) as engine:
            assert engine.stats().scheduled == 100
