"""The number of the format, and features: a build that can't read them says so and does nothing, and they change only
when no process lives that would not understand them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from shardq import Engine
from shardq.core.layout import formats
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.topology_edits import edit_topology
from shardq.engine.versions import upgrade, use_feature
from shardq.errors import IncompatibleVersion
from tests.cli.shell import Shell
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Worker
from tests.versions.builds import NEXT, PLANTED, PRESENT, carried_out

Begin = Callable[..., Worker]


@pytest.fixture
def begin(url: str, name: str) -> Iterator[Begin]:
    """Begins a process of this build, as far as formats go, or of another."""
    with ExitStack() as stack:

        def begin(kind: str, *, format: int = PRESENT, features: str = "") -> Worker:
            process = stack.enter_context(Worker("tests.versions.build", format, features, url, name, kind))
            assert process.said() == "ready"
            return process

        yield begin


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is of a newer build."""
    monkeypatch.setattr(formats, "FORMAT", NEXT)
    monkeypatch.setattr(formats, "FEATURES", formats.FEATURES | {PLANTED})


def asked(process: Worker) -> str:
    process.tell()
    return process.said()


def stored(servers: Servers, name: str) -> dict[bytes, bytes]:
    keys = control_keys(name)
    fields: dict[bytes, bytes] = servers.ask(keys.slot, "HGETALL", keys.topology)
    return fields


def raise_by_force(engine: Engine) -> None:
    """As if a process had hidden from the look at the fleet."""
    carried_out(engine, lambda cache: edit_topology(cache, lambda known: msgspec.structs.replace(known, format=NEXT)))


# ---- what can't be read


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", str(NEXT), f"stored in format {NEXT}, and this shardq .* reads {PRESENT} alone: .*upgrade"),
        ("features", f'["{PLANTED}"]', f"the engine uses '{PLANTED}', which this shardq .* does not know: .*upgrade"),
    ],
)
def test_a_build_that_cannot_read_an_engine_does_nothing(
    engines: Engines, url: str, name: str, servers: Servers, field: str, value: str, words: str, tmp_path: Path
) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS)
    engine.push("x", delay=3600)
    engine.close()
    keys = control_keys(name)
    servers.ask(keys.slot, "HSET", keys.topology, field, value)
    before = stored(servers, name)
    for attempt in ("open", "start", "push"):
        other = engines.make(url, name=name)
        with pytest.raises(IncompatibleVersion, match=words):
            other.push("x") if attempt == "push" else getattr(other, attempt)()
        other.close()
    shell = Shell(tmp_path, {"SHARDQ_URL": url, "SHARDQ_NAME": name})
    for words_of_command in (("stats",), ("push", "1"), ("upgrade",)):
        done = shell.run(*words_of_command)
        assert done.code == 1
        assert "upgrade shardq here" in done.err
    assert shell.run("health").code == 2
    assert stored(servers, name) == before
    servers.ask(keys.slot, "HDEL", keys.topology, field)


def test_new_engines_have_the_format_of_this_build(engine: Engine, servers: Servers, name: str) -> None:
    assert stored(servers, name)[b"format"] == str(formats.FORMAT).encode()
    assert carried_out(engine, upgrade) == formats.FORMAT
    assert engine.changes() == []


def test_a_build_reads_its_format_and_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FORMAT", PRESENT + 2)
    for format in (PRESENT + 1, PRESENT + 2):
        formats.check(format, ())
    with pytest.raises(IncompatibleVersion, match=f"reads {PRESENT + 1} to {PRESENT + 2}: .*use an earlier version"):
        formats.check(PRESENT, ())


OF_BEFORE = {
    "without a number": ("epoch", "7", "shards", "2", "paused", '["mail"]'),
    "the first": ("epoch", "7", "shards", "2", "priors", "[]", "format", "1", "features", '["settings"]'),
    "the second": ("epoch", "7:w:e", "shards", "2", "format", "2", "features", '["keys","settings"]', "created", "17"),
}


@pytest.mark.parametrize("fields", OF_BEFORE.values(), ids=OF_BEFORE)
def test_what_was_written_before_the_first_release_is_refused_and_removed(
    engines: Engines, url: str, name: str, servers: Servers, tmp_path: Path, fields: tuple[str, ...]
) -> None:
    keys, shard = control_keys(name), shard_keys(name, 1)
    words = "written by a build of before the first release; `shardq engines --remove NAME` removes it"
    servers.ask(keys.slot, "HSET", keys.topology, *fields)
    servers.ask(keys.slot, "SET", keys.members, "a key of another type: who reads it fails")
    servers.ask(shard.slot, "SET", shard.meta, "this, too")
    for call in (engines.make(url, name=name).open, lambda: engines.make(url, name=name).push("x")):
        with pytest.raises(IncompatibleVersion, match=words):
            call()
    shell = Shell(tmp_path, {"SHARDQ_URL": url, "SHARDQ_NAME": name})
    for command in ("upgrade", "stats", "engines"):
        done = shell.run(command)
        assert (done.code, words in done.err) == (1, True), done
    assert shell.run("health").code == 2
    assert dict(zip(fields[::2], fields[1::2], strict=True)) == {
        field.decode(): text.decode() for field, text in stored(servers, name).items()
    }
    done = shell.run("engines", "--remove", name, "--yes")
    assert (done.code, done.out) == (0, f"the engine {name!r} is removed\n")
    assert not servers.ask(keys.slot, "EXISTS", keys.topology, keys.members)
    assert not servers.ask(shard.slot, "EXISTS", shard.meta)
    assert engines.make(url, name=name, shards=SHARDS).open().topology.format == formats.FORMAT


def test_a_copy_of_before_the_first_release_is_refused_and_removed(
    engines: Engines, url: str, name: str, servers: Servers, tmp_path: Path
) -> None:
    """Its control slot was lost: what a shard knows of it is not taken for an engine of today."""
    shard = shard_keys(name, 0)
    copy = '{"epoch":7,"shards":2,"priors":[],"format":2,"features":["settings"],"word":"w","engine":"e"}'
    servers.ask(shard.slot, "HSET", shard.meta, "epoch", "7:w:e", "topology", copy)
    with pytest.raises(IncompatibleVersion, match="written by a build of before the first release"):
        engines.make(url, name=name).open()
    shell = Shell(tmp_path, {"SHARDQ_URL": url})
    assert shell.run("engines", "--remove", name, "--yes").code == 0
    assert not servers.ask(shard.slot, "EXISTS", shard.meta)


# ---- the format is raised


@pytest.mark.usefixtures("newer")
def test_the_format_is_raised_when_no_older_process_lives(
    engines: Engines, url: str, name: str, servers: Servers, begin: Begin, tmp_path: Path
) -> None:
    member, producer = begin("member"), begin("producer")
    engine = engines.opened(url, name=name)
    assert engine.topology.format == NEXT - 1
    engine.start()
    wait_until(lambda: len(engine.fleet()) == 3, "two dispatchers and a worker are there", timeout=SOON_S)
    assert {member.format for member in engine.fleet()} == {NEXT - 1, NEXT}
    with pytest.raises(IncompatibleVersion, match=f"know format {NEXT} live still: the dispatcher .*:{member.pid}"):
        carried_out(engine, upgrade)
    assert asked(member) == asked(producer) == "pushed"
    assert member.stop() == 0
    wait_until(lambda: len(engine.fleet()) == 1, "they have signed off", timeout=SOON_S)

    assert carried_out(engine, upgrade) == NEXT
    assert stored(servers, name)[b"format"] == str(NEXT).encode()
    assert [change.what for change in engine.changes()] == [f"upgraded to format {NEXT}"]
    assert asked(producer).startswith(f"IncompatibleVersion: the engine is stored in format {NEXT}")
    assert producer.stop() == 0
    assert engine.stats().scheduled == 2


@pytest.mark.slow
@pytest.mark.usefixtures("newer")
def test_what_was_raised_nevertheless_is_left_to_others(engines: Engines, url: str, name: str, begin: Begin) -> None:
    """The older process stops by itself; what it served others serve, and nothing is lost."""
    member = begin("member")
    engine = engines.opened(url, name=name)
    engine.start()
    wait_until(lambda: len(engine.stats().dispatchers) == 2, "both serve", timeout=SOON_S)
    ids = {str(engine.push(number, delay=2.0, topic="mail")) for number in range(40)}
    with Engine(url, name=name) as other:
        raise_by_force(other.open())
    wait_until(lambda: len(engine.stats().dispatchers) == 1, "the older one has signed off", timeout=SOON_S)
    said = asked(member)
    assert said.startswith("IncompatibleVersion")
    assert "this process dispatches nothing any more" in said
    consumer = engine.consumer("mail", lease=60)
    taken: set[str] = set()

    def all_taken() -> bool:
        deliveries = consumer.claim(50)
        consumer.ack(deliveries)
        assert not taken & {each.id for each in deliveries}
        taken.update(each.id for each in deliveries)
        return taken == ids

    wait_until(all_taken, "each is given once", timeout=SOON_S)
    assert member.stop() == 0


@pytest.mark.slow
def test_a_dispatcher_comes_back_when_that_is_undone(running: Engine, servers: Servers, name: str) -> None:
    """As after a restore, or where another program wrote the field."""
    keys, topology = control_keys(name), running.topology

    def write(format: int, epoch: int) -> None:
        stamp = topology.following(epoch=topology.epoch + epoch).stamp
        servers.ask(keys.slot, "HSET", keys.topology, "format", format, "epoch", stamp)

    write(NEXT, 1)
    wait_until(lambda: servers.ask(keys.slot, "ZCARD", keys.members) == 0, "it has signed off", timeout=SOON_S)
    assert any("dispatches nothing any more" in reason for reason in running.health().reasons)
    running.push("x")
    write(PRESENT, 2)
    (delivery,) = running.consumer().claim(1, wait=SOON_S)
    running.consumer().ack(delivery)
    assert not any("dispatches nothing any more" in reason for reason in running.health().reasons)


# ---- a feature comes into use


@pytest.mark.slow
@pytest.mark.usefixtures("newer")
def test_a_feature_is_used_when_no_process_lives_that_lacks_it(url: str, name: str, begin: Begin) -> None:
    lacking = begin("member", format=NEXT)
    knowing, producer = begin("member", format=NEXT, features=PLANTED), begin("producer", format=NEXT)
    engine = Engine(url, name=name).open()
    wait_until(lambda: len(engine.fleet()) == 4, "all are members", timeout=SOON_S)
    with pytest.raises(IncompatibleVersion, match=f"'{PLANTED}' live still: the dispatcher .*:{lacking.pid}"):
        carried_out(engine, lambda cache: use_feature(cache, PLANTED))
    assert lacking.stop() == 0
    wait_until(lambda: len(engine.fleet()) == 2, "it has signed off", timeout=SOON_S)
    for _ in range(2):
        carried_out(engine, lambda cache: use_feature(cache, PLANTED))
    engine.push("x", delay=60)
    assert engine.topology.features == (PLANTED,)
    assert [change.what for change in engine.changes()] == [f"uses the feature {PLANTED!r} from now on"]
    assert asked(knowing) == "pushed"
    assert asked(producer).startswith(f"IncompatibleVersion: the engine uses '{PLANTED}', which this shardq")
    assert (knowing.stop(), producer.stop()) == (0, 0)
    assert engine.stats().scheduled == 2
    engine.close()
