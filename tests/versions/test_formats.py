"""The number of the format, and features: a build that can't read them says so and does nothing, and they change only
when no process lives that would not understand them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from shardq import Engine, Task
from shardq.core.edits import edit_topology
from shardq.core.fleet.features import use_feature
from shardq.core.layout import formats
from shardq.core.layout.keys import control_keys
from shardq.engine.versions import upgrade
from shardq.errors import IncompatibleVersion
from tests.cli.shell import Shell
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Worker
from tests.versions.builds import carried_out

PRESENT = formats.FORMAT
NEXT = PRESENT + 1
PLANTED = "planted"

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
        ("format", str(NEXT), f"stored in format {NEXT}, and this shardq .* reads 0 to {formats.FORMAT}: .*upgrade"),
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


def test_an_engine_from_before_formats_is_used_as_it_is_and_raised(
    engines: Engines, url: str, name: str, servers: Servers, begin: Begin, tmp_path: Path
) -> None:
    engines.opened(url, name=name, shards=SHARDS).close()
    keys = control_keys(name)
    servers.ask(keys.slot, "HDEL", keys.topology, "format", "features")
    servers.ask(keys.slot, "HSET", keys.topology, "paused", '["mail"]')
    old = begin("member", format=0)
    engine = engines.opened(url, name=name)
    with pytest.raises(IncompatibleVersion, match="`shardq upgrade`"):
        engine.resume("mail")
    assert b"format" not in stored(servers, name)
    shell = Shell(tmp_path, {"SHARDQ_URL": url, "SHARDQ_NAME": name})
    wait_until(lambda: len(engine.fleet()) == 2, "it says what it is", timeout=SOON_S)
    done = shell.run("upgrade")
    assert (done.code, f":{old.pid} (shardq" in done.err) == (1, True), done
    assert "stored in format 0" in shell.run("doctor").out
    assert old.stop() == 0
    wait_until(lambda: engine.fleet() == [], "it has signed off", timeout=SOON_S)
    done = shell.run("upgrade")
    assert (done.code, f"format {formats.FORMAT} from now on; before it was 0" in done.out) == (0, True), done
    assert "already" in shell.run("upgrade").out
    assert servers.ask(keys.slot, "HGETALL", keys.settings) == {b"mail": b'{"paused":true}'}
    engine.resume("mail")
    engine.push("x", delay=60)
    assert engine.topology.format == formats.FORMAT


def test_settings_of_topics_that_an_earlier_build_stored_are_moved(
    engines: Engines, url: str, name: str, servers: Servers, tmp_path: Path
) -> None:
    engines.opened(url, name=name, shards=SHARDS).close()
    keys = control_keys(name)
    servers.ask(keys.slot, "HSET", keys.topology, "features", "[]", "limits", '{"mail": {"rate": 5}}')
    servers.ask(keys.slot, "HSET", keys.topology, "routes", '{"log": {"to": "there"}}', "ended", '{"a": "python://b"}')
    engine = engines.opened(url, name=name)
    before = engine.topology.topics
    assert (engine.topology.limits["mail"].rate, engine.topology.routes["log"].to) == (5, "there")
    engine.close()
    assert "as this version does" in Shell(tmp_path, {"SHARDQ_URL": url, "SHARDQ_NAME": name}).run("upgrade").out
    engine = engines.opened(url, name=name)
    assert engine.topology.topics == before
    engine.limit("mail", None)
    assert servers.ask(keys.slot, "HKEYS", keys.settings) in ([b"log", b"a"], [b"a", b"log"])


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
    assert engine.topology.features == (PLANTED, formats.SETTINGS)
    assert asked(knowing) == "pushed"
    assert asked(producer).startswith(f"IncompatibleVersion: the engine uses '{PLANTED}', which this shardq")
    assert (knowing.stop(), producer.stop()) == (0, 0)
    assert engine.stats().scheduled == 2
    engine.close()


@pytest.mark.slow
def test_keys_are_taken_up_when_no_process_lives_that_lacks_them(url: str, name: str, begin: Begin) -> None:
    lacking, producer = begin("member"), begin("producer")
    engine = Engine(url, name=name).open()
    wait_until(lambda: len(engine.fleet()) == 2, "both are members", timeout=SOON_S)
    for take_up in (
        lambda: engine.push("x", key="k"),
        lambda: list(engine.push_iter([Task("x", key="k")])),
        lambda: engine.limit("t", per_key=1),
        lambda: engine.configure(topics={"t": {"per_key": 1}}),
        lambda: engine.hold("t", key="k", until=None),
        lambda: engine.every("tick", interval=60, key="k"),
    ):
        with pytest.raises(IncompatibleVersion, match=f"'keys' live still: the dispatcher .*:{lacking.pid}"):
            take_up()
    assert (asked(lacking), asked(producer)) == ("pushed", "pushed")
    assert lacking.stop() == 0
    wait_until(lambda: not engine.fleet(), "it has signed off", timeout=SOON_S)
    id = engine.push("x", key="k", delay=60)
    assert engine.get(id) is not None
    assert asked(producer).startswith("IncompatibleVersion: the engine uses 'keys', which this shardq")
    assert producer.stop() == 0
    engine.close()


@pytest.mark.usefixtures("newer")
def test_builds_from_before_formats_know_of_no_features(url: str, name: str, servers: Servers) -> None:
    with Engine(url, name=name, shards=SHARDS).open() as engine:
        keys = control_keys(name)
        servers.ask(keys.slot, "HDEL", keys.topology, "format")
    words = "format 0; `shardq upgrade`"
    with Engine(url, name=name).open() as engine, pytest.raises(IncompatibleVersion, match=words):
        carried_out(engine, lambda cache: use_feature(cache, PLANTED))
