"""A server that refuses a command halfway: no id is lost, whatever is refused, and a server without memory drains.

Each command that writes is refused in turn by permission, each key by its type, both on the model; and all memory by
``maxmemory`` of a server.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server
from shardq.core.calls import by_id, consume, dispatch, observe
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.request import Call, Word
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ControlKeys, ShardKeys, shard_keys
from shardq.core.scripts import script
from shardq.errors import OutOfMemory, Unanswered
from tests.lua.contract import FOLDER, NAMES
from tests.lua.modelled import ModelledShard
from tests.lua.samples import FULL, NUMBERS, WHOLE, named, on_a_meta, on_a_shard, on_the_whole
from tests.lua.shard import EPOCH, Shard, State, T, at, meta, record
from tests.lua.test_contracts import CONTROL, KEYS

LATER = at(10_000_000)

READS = {
    "EXISTS", "GETRANGE", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HRANDFIELD", "HSCAN", "INFO", "LLEN",
    "LPOS", "LRANGE", "TIME", "XLEN", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYSCORE", "ZRANK",
    "ZLEXCOUNT", "ZRANGEBYLEX", "ZSCAN", "ZSCORE",
}  # fmt: skip


def writes(name: str) -> list[str]:
    """The commands of a script that write, or publish."""
    return sorted(set(re.findall(r"redis\.p?call\('([A-Z]+)'", script(name).text)) - READS)


def test_what_reads_is_known(single: Server) -> None:
    """Otherwise a command that writes would be missing below."""
    commands = {command for name in NAMES for command in re.findall(r"redis\.p?call\('([A-Z]+)'", script(name).text)}
    for command in sorted(commands - {"SPUBLISH"}):
        flags = single.ask("COMMAND", "INFO", command)
        assert ("write" in str(flags)) == (command not in READS), command


SAMPLES = on_a_shard(KEYS, EPOCH)
REFUSED = {name: writes(SAMPLES[number].script.name) for name, number in NUMBERS.items()}
OF_EACH_CALL = pytest.mark.parametrize("sample", NUMBERS)


STATES: dict[str, State] = {
    "full": FULL,
    # what can't be read, and what is stale, is written down first, and hides what is refused afterwards
    "plain": FULL
    | {"ready/": ["ready"], "task": {id: record for id, record in FULL["task"].items() if id not in ("odd", "stale")}}
    | {"due": {id: due for id, due in FULL["due"].items() if id != "stale"}, "ghost": {"elsewhere": "1"}},
}


@pytest.fixture
def user(shard: Shard) -> Iterator[str]:
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "allchannels", "allkeys")
    yield user
    shard.do("ACL", "DELUSER", user)


def ids_of(state: State) -> set[str]:
    """All ids with a record that can be read, and with a place."""
    return {id for id in state.get("task", {}) if id != "odd"}


def claimed(shard: Shard, keys: ShardKeys, token: str, *, now_us: str) -> Counter[str]:
    """What is ready, claimed and acknowledged."""
    shares = {"": 100, "mail": 100}
    call = consume.claim(keys, EPOCH, shares, max=200, lease_ms=9_000_000, token=token).at(now_us)
    ids = shard.run(call).ids
    shard.run(consume.settle(keys, EPOCH, [SettleAck(id, token) for id in ids]).at(now_us))
    return Counter(ids)


def drained(shard: Shard, keys: ShardKeys) -> Counter[str]:
    """What is given out, and how often, when all is due and all leases have run out; and what is dead."""
    state = shard.state()
    # due and leased count before dead, as everywhere
    elsewhere = state.get("due", {}).keys() | state.get("leased", {}).keys()
    given = Counter((state.get("dead", {}).keys() & state.get("task", {}).keys()) - elsewhere)
    for turn in range(5):
        shard.run(dispatch.dispatch(keys, EPOCH, ["", "mail"], limit=1000, max_attempts=99).at(LATER))
        given += claimed(shard, keys, f"drain{turn}", now_us=LATER)
    # the unreadable one ends among the dead, sooner or later
    del given["odd"]
    return given


NEW = {"n", "x", "y", "mail/o"}
"""Ids that a sample adds."""


def removes(call: Call[Any]) -> set[str]:
    """The ids that a call is meant to end."""
    match call.script.name, call.words:
        case "cancel", [_, _, _, str(id), *_]:
            return {id}
        case "settle", [_, _, _, 1 | "1:700000:9", 1, str(id), *_]:
            return {id}
        case "cancel_tag", [_, _, _, _, "tag", _]:
            return {"due", "later", "stale", "ready", "mail/ready", "dead"}
        case "trim", _:
            return {"dead"}
        case "purge", [_, _, _, _, scope, *_]:
            return {"due", "later", "stale", "dead", "ready" if scope == "topic" else "mail/ready"}
    return set()


@pytest.mark.parametrize("before", STATES.values(), ids=STATES)
@OF_EACH_CALL
def test_without_a_permission_no_id_is_lost(
    modelled: ModelledShard, keys: ShardKeys, sample: str, before: State
) -> None:
    for command in REFUSED[sample]:
        _refused(modelled, keys, NUMBERS[sample], command, before)


def _refused(modelled: ModelledShard, keys: ShardKeys, number: int, command: str, before: State) -> None:
    call = on_a_shard(keys, EPOCH)[number]
    modelled.seed(before)
    error = modelled.refusal(call, without=command)
    assert re.search("^$|NOPERM|ACL|permission|can't run this command", error)
    assert not (error and command == "SPUBLISH"), "publishing is never a reason to fail"
    state = modelled.state()
    forwarded = len(state.get("ready/theirs", []))
    given = claimed(modelled, keys, "now", now_us=at(0))
    assert not given.keys() & state.get("due", {}).keys(), f"early without {command}"
    given += drained(modelled, keys)
    wanted = ids_of(before) - removes(call)
    lost = wanted - given.keys()
    without = f"without {command}"
    # a payload in a foreign list has left us, and so has a task on its way to another shard
    gone = {"ready"} if forwarded else set(state.get("moved", {}))
    assert lost <= gone, without
    assert not gone & given.keys(), f"here and there, {without}"
    assert [id for id, times in given.items() if times > 1] == [], without
    # nobody is told an id that a push did not store
    assert given.keys() - wanted <= removes(call) | NEW, without


@OF_EACH_CALL
def test_without_a_permission_a_second_try_is_good(modelled: ModelledShard, keys: ShardKeys, sample: str) -> None:
    """When it is permitted again, the same call leads to what it would have led to; no record stays without a place."""
    for command in REFUSED[sample]:
        call = on_a_shard(keys, EPOCH)[NUMBERS[sample]]
        modelled.seed(FULL)
        if modelled.refusal(call, without=command):
            modelled.ask(call)
        drained(modelled, keys)
        left = modelled.state()
        assert left.get("task", {}).keys() <= left.get("dead", {}).keys(), command
        assert not {"due", "leased", "ready/", "ready/mail", "ghost"} & left.keys(), command


# dispatch does all it can before it fails: what is due moves though dead, or a list, is broken
GOES_ON = {"dispatch"}


@OF_EACH_CALL
def test_a_key_of_another_type_loses_no_id(modelled: ModelledShard, keys: ShardKeys, sample: str) -> None:
    for index in range(len(SAMPLES[NUMBERS[sample]].keys)):
        call = on_a_shard(keys, EPOCH)[NUMBERS[sample]]
        broken = call.keys[index]
        modelled.seed(FULL)
        modelled.do("DEL", broken)
        modelled.do("SET", broken, "not ours")
        before = modelled.state()
        error = modelled.refusal(call)
        after = modelled.state()
        assert re.search("^$|WRONGTYPE", error), broken
        if error and call.script.name not in GOES_ON:
            assert after == before, broken
        # unmark removes its key whole, whatever it is, and so does a ring of ends that turns
        is_whole = call.script.name == "unmark" or "}:ends/" in broken
        assert is_whole or after[broken.removeprefix(modelled.prefix)] == "a string"
        assert _placed(before) <= _placed(after) | removes(call) | set(after.get("ready/theirs", [])), broken


def _placed(state: State) -> set[str]:
    """The ids that are somewhere."""
    return {
        id
        for name, place in state.items()
        if name in ("due", "leased", "dead") or name.startswith("ready/")
        if not isinstance(place, str)
        for id in place
        if id in state.get("task", {}) and state["task"] != "a string"
    }


@pytest.fixture(scope="module")
def full_server(server_binary: Path) -> Iterator[Server]:
    """A server whose memory ends when a test says so."""
    with Server(server_binary, options={"maxmemory-policy": "noeviction"}) as server:
        yield server


class Memory:
    """``maxmemory`` of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def end(self) -> None:
        self._server.ask("CONFIG", "SET", "maxmemory", "1")

    def come_back(self) -> None:
        self._server.ask("CONFIG", "SET", "maxmemory", "0")


@pytest.fixture
def memory(full_server: Server) -> Iterator[Memory]:
    memory = Memory(full_server)
    yield memory
    memory.come_back()


@pytest.fixture
def there(full_server: Server, memory: Memory, name: str) -> Iterator[Driver]:
    driver = Driver(Settings.from_url(full_server.url, protocol=2))
    driver.open()
    yield driver
    memory.come_back()
    driver.close()


NEED_MEMORY = {"push", "push_unique", "adopt", "reschedule", "reserve", "remember", "history"}
"""These are refused, with nothing written; all others do what they always do."""


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_out_of_memory_what_needs_none_goes_on(there: Driver, memory: Memory, keys: ShardKeys, number: int) -> None:
    shard = Shard(there, keys)
    call = on_a_shard(keys, EPOCH)[number]
    shard.seed(FULL)
    answer = shard.ask(call)
    after = shard.state()
    shard.seed(FULL)
    memory.end()
    try:
        if call.script.name in NEED_MEMORY:
            # the resend of what may have been executed can't say that it was not
            with pytest.raises(Unanswered if call.in_doubt else OutOfMemory):
                shard.run(call)
            assert shard.state() == FULL
        else:
            assert shard.ask(call) == answer
            state = shard.state()
            if call.script.name == "wake" or (call.script.name == "claim" and "p2" in call.words):
                # a wake-up more or less: who waits looks by itself too
                state, after = ({k: v for k, v in s.items() if "waiting" not in k} for s in (state, after))
            elif call.script.name == "peek":
                # a note less: the next look makes it
                state, after = ({k: v for k, v in s.items() if k != "looks"} for s in (state, after))
            elif call.script.name == "retire":
                # marks less: the next look makes them
                for each in (state, after):
                    each["meta"] = {field: text for field, text in each["meta"].items() if field[:5] != "idle/"}
            assert state == after
    finally:
        memory.come_back()
        shard.clear()


@pytest.mark.parametrize("number", range(len(on_the_whole(CONTROL))), ids=named(on_the_whole(CONTROL)))
def test_out_of_memory_the_whole(there: Driver, memory: Memory, control: ControlKeys, number: int) -> None:
    centre = Shard(there, control)
    call = on_the_whole(control)[number]
    centre.seed(WHOLE)
    answer = centre.ask(call)
    centre.seed(WHOLE)
    memory.end()
    try:
        if call.script.name in NEED_MEMORY:
            with pytest.raises(OutOfMemory):
                centre.run(call)
        else:
            assert centre.ask(call) == answer
    finally:
        memory.come_back()
        centre.clear()


@pytest.mark.parametrize("anew", [0, 1])
def test_out_of_memory_a_shard_is_opened(there: Driver, memory: Memory, keys: ShardKeys, anew: int) -> None:
    """One that a failover lost would drain nothing."""
    shard = Shard(there, keys)
    memory.end()
    try:
        assert shard.ask(on_a_meta(keys, EPOCH)[anew]) == ["ok", 1]
        state: Any = shard.state()
        assert state["meta"].pop("opened")
        assert state == {"meta": {"epoch": f"{EPOCH}", "topology": "{}", "since": "1", "numbers": "1"}}
    finally:
        memory.come_back()
        shard.clear()


LOST: State = {"meta": meta(), "task": {"a": record("a")}}
"""A task that is nowhere."""


def test_a_lost_task_is_scheduled_out_of_memory_too(there: Driver, memory: Memory, keys: ShardKeys) -> None:
    shard = Shard(there, keys)
    shard.seed(LOST)
    memory.end()
    try:
        assert shard.run(observe.restore(keys, EPOCH, "a").at(at(0)))
        assert shard.state()["due"] == {"a": T}
    finally:
        memory.come_back()
        shard.clear()


@pytest.mark.parametrize("command", ["HSETNX", "HSET", "SPUBLISH"])
def test_a_lost_task_is_scheduled_by_who_may_do_little_else(
    shard: Shard, keys: ShardKeys, user: str, command: str
) -> None:
    shard.seed(LOST)
    shard.do("ACL", "SETUSER", user, f"-{command.lower()}")
    with shard.as_user(user) as asker:
        assert asker.ask(observe.restore(keys, EPOCH, "a").at(at(0))) == ["ok", 1]
    assert shard.state()["due"] == {"a": T}


@pytest.mark.parametrize("command", ["HSETNX", "HDEL", "SPUBLISH"])
def test_a_task_with_an_id_of_its_own_is_stored_by_who_may_do_little_else(
    shard: Shard, keys: ShardKeys, user: str, command: str
) -> None:
    shard.seed({"meta": meta()})
    shard.do("ACL", "SETUSER", user, f"-{command.lower()}")
    with shard.as_user(user) as asker:
        push = by_id.push_unique(keys, EPOCH, ["a", T, record("a"), "keep", 0])
        assert asker.ask(push.at(at(0))) == ["ok", "pushed"]
    assert shard.state()["due"] == {"a": T}


def test_the_contract_names_what_is_refused_without_memory() -> None:
    text = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    (named,) = re.findall(r"Out of memory, (.*?): no task moves into a full server\. All others go on", text)
    assert {name for name in NAMES if re.search(rf"\b{name}\b", named)} == NEED_MEMORY


def test_a_full_server_drains(there: Driver, memory: Memory, keys: ShardKeys) -> None:
    """Pushed before it was full: all is dispatched, claimed, forwarded and acknowledged, and then there is room."""
    shard = Shard(there, keys)
    shard.seed({"meta": meta()})
    ids = [f"{topic}i{n}" for n in range(500) for topic in ("", "mail/")]
    tasks: list[Word] = [word for id in ids for word in (id, -5, record(id))]
    shard.run(by_id.push(keys, EPOCH, tasks).at(at(0)))
    memory.end()
    later = at(100)
    with pytest.raises(OutOfMemory):
        shard.run(by_id.push(keys, EPOCH, ["n", 0, record()]).at(later))
    moved = shard.run(dispatch.dispatch(keys, EPOCH, ["", "mail"], limit=1000, max_attempts=3).at(later)).moved
    assert moved == 1000
    claim = consume.claim(keys, EPOCH, {"": 500}, max=500, lease_ms=50, token="tok").at(later)
    claimed = shard.run(claim).ids
    half = claimed[:250]
    assert shard.run(consume.settle(keys, EPOCH, [SettleAck(id, "tok") for id in half]).at(later)) == {}
    # the others lapse, and are claimed again
    later = at(200)
    assert shard.run(dispatch.dispatch(keys, EPOCH, [""], limit=9, max_attempts=3).at(later)).reaped == 200
    assert shard.run(dispatch.dispatch(keys, EPOCH, [""], limit=9, max_attempts=3).at(later)).reaped == 50
    claim = consume.claim(keys, EPOCH, {"": 500}, max=500, lease_ms=50, token="tok2").at(later)
    again = shard.run(claim).ids
    assert sorted(again) == sorted(claimed[250:])
    assert shard.run(consume.settle(keys, EPOCH, [SettleAck(id, "tok2") for id in again]).at(later)) == {}
    theirs = keys.ready("theirs")
    forward = dispatch.forward(keys, EPOCH, "mail", to=theirs, side="right", limit=1000).at(later)
    assert shard.run(forward).sent == 500
    state = shard.state()
    assert sorted(state.pop("ready/theirs")) == sorted(id for id in ids if id.startswith("mail/"))
    assert state.keys() == {"meta", "topics"}
    memory.come_back()
    shard.clear()


LANE, AHEAD = "w/k/", 10**15
ALARMS: dict[str, State] = {
    "an alarm that comes too early": {"due": {f"{LANE}a": 4 * 10**15 + AHEAD}, "keys": {f"{LANE}{AHEAD:015}/a": 0}},
    "a lane on hold": {"holds": {LANE: f"{AHEAD}:{AHEAD}"}},
    "a hold that is over": {"holds": {LANE: "1:1"}},
    "lanes to be looked over": {"alarms": {"w/": 0}},
}


@pytest.mark.parametrize("state", ALARMS.values(), ids=ALARMS)
def test_out_of_memory_lanes_are_looked_at(there: Driver, memory: Memory, name: str, state: State) -> None:
    """Otherwise one of them would keep all that is due in its shard."""
    keys = shard_keys(name, 1, keyed=True)
    shard = Shard(there, keys)
    shard.seed({"meta": meta(**{"cursor/w": ""}), "alarms": {LANE: 1}} | state)
    memory.end()
    try:
        shard.run(dispatch.dispatch(keys, EPOCH, ["w"], limit=9, max_attempts=9).at(at(0)))
    finally:
        memory.come_back()
        shard.clear()
