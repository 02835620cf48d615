"""One call at a time, on one server and on a cluster, with both drivers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.server import Server
from shardq.core.layout.slots import slot_of
from shardq.errors import EngineClosed, ServerFault, ShardqError, Unanswered, Unavailable
from tests.drivers.calls import STORE, command, in_blpop, keys_of, script_call, store
from tests.drivers.carriers import Carrier, Carriers
from tests.support.waiting import wait_until


def test_scripts_and_commands_reach_the_node_of_their_slot(carrier: Carrier, name: str) -> None:
    for key in keys_of(name, 30):
        assert carrier.call(store(key, "f")) == 1
        assert carrier.call(store(key, "f")) == 2
        assert carrier.call(command(key, "HGETALL", key)) in ({b"f": b"2"}, [b"f", b"2"])
        assert carrier.node_of(slot_of(key)) in carrier.nodes()
        carrier.call(command(key, "DEL", key))


def test_a_forgotten_script_is_sent_in_full(carrier: Carrier, name: str) -> None:
    carrier.call(store(name, "f"))
    carrier.call(command(name, "SCRIPT", "FLUSH"))
    assert carrier.call(store(name, "f")) == 2


def test_resp2_on_request(carriers: Carriers, single: Server, name: str) -> None:
    carrier = carriers.opened(single.url, protocol=2)
    carrier.call(store(name, "f"))
    assert carrier.call(command(name, "HGETALL", name)) == [b"f", b"1"]


def test_resp3_by_default(carriers: Carriers, single: Server, name: str) -> None:
    carrier = carriers.opened(single.url)
    carrier.call(store(name, "f"))
    assert carrier.call(command(name, "HGETALL", name)) == {b"f": b"1"}
    assert carrier.call(script_call("redis.setresp(3) return false", name)) in (None, False)


def test_a_database_of_choice(carriers: Carriers, single: Server, name: str) -> None:
    carriers.opened(f"{single.url}/3").call(command(name, "SET", name, "three"))
    assert carriers.opened(f"{single.url}/0").call(command(name, "GET", name)) is None
    assert carriers.opened(f"{single.url}/3").call(command(name, "GET", name)) == b"three"


def test_a_unix_socket(carriers: Carriers, server_binary: object, name: str) -> None:
    with Server(unix=True) as server:
        carrier = carriers.opened(server.url)
        assert carrier.call(store(name, "f")) == 1
        assert carrier.nodes() == [server.address]


def test_connections_bear_our_name(carrier: Carrier, name: str) -> None:
    assert b"name=shardq " in carrier.call(command(name, "CLIENT", "INFO"))


def test_an_error_of_the_server_has_its_text(carrier: Carrier, name: str) -> None:
    carrier.call(command(name, "SET", name, "text"))
    with pytest.raises(ServerFault, match="store was not done: WRONGTYPE"):
        carrier.call(store(name, "f"))


def test_what_decode_raises_passes(carrier: Carrier, name: str) -> None:
    class Refused(ShardqError):
        pass

    def refuse(answer: object) -> None:
        raise Refused(f"no {answer!r}")

    call = store(name, "f")
    call.decode = refuse
    with pytest.raises(Refused, match="no 1"):
        carrier.call(call)


def test_big_answers_and_big_calls(carrier: Carrier, name: str) -> None:
    text = "x" * 5_000_000
    carrier.call(command(name, "SET", name, text))
    assert carrier.call(command(name, "GET", name)) == text.encode()
    carrier.call(command(name, "DEL", name))


def test_many_threads(carrier: Carrier, name: str) -> None:
    keys = keys_of(name, 8)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda n: carrier.call(store(keys[n % 8], f"f{n}")), range(1000)))
    fields = sum(carrier.call(command(key, "HLEN", key)) for key in keys)
    assert fields == 1000
    assert all(counted.shared <= counted.bound for counted in carrier.connections().values())


def test_a_slow_answer_is_waited_for_no_longer_than_asked(carriers: Carriers, single: Server, name: str) -> None:
    carrier = carriers.opened(single.url)
    carrier.call(command(name, "PING"))  # to be connected: connecting has an error of its own
    blocking = command(name, "BLPOP", name, 30)
    with pytest.raises(Unanswered, match=r"within 0\.2 s"):
        carrier.call(blocking, timeout=0.2)
    # The answer that comes too late is nobody else's.
    single.ask("RPUSH", name, "late", "later")
    assert carrier.call(command(name, "ECHO", "mine")) == b"mine"


def test_close_ends_calls_under_way(carriers: Carriers, single: Server, name: str) -> None:
    carrier = carriers.opened(single.url)
    ended: list[BaseException] = []

    def block() -> None:
        try:
            carrier.call(command(name, "BLPOP", name, 0))
        except EngineClosed as exc:
            ended.append(exc)

    before = in_blpop(single)
    thread = threading.Thread(target=block)
    thread.start()
    wait_until(lambda: in_blpop(single) - before, "the call blocks")
    carrier.close()
    thread.join(4)  # a silent server is left after five seconds
    assert ended
    with pytest.raises(EngineClosed, match="closed"):
        carrier.call(store(name, "f"))
    carrier.open()
    assert carrier.call(store(name, "f")) == 1


def test_not_opened(carriers: Carriers, name: str) -> None:
    with pytest.raises(EngineClosed, match="open the engine first"):
        carriers.make("redis://127.0.0.1:1").call(store(name, "f"))


def test_nothing_listens(carriers: Carriers) -> None:
    carrier = carriers.make("redis://me:pw9@127.0.0.1:1", connect_timeout=0.2)
    with pytest.raises(Unavailable) as caught:
        carrier.open()
    assert "redis://me:***@127.0.0.1:1: could not connect within 0.2 s" in str(caught.value)
    assert "check that the server runs" in str(caught.value)
    assert "pw9" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_version(carrier: Carrier) -> None:
    kind, _, version = carrier.server_version.partition(" ")
    assert kind in ("redis", "valkey")
    assert int(version.split(".")[0]) >= 7


def test_the_text_of_a_script_is_sent_once(carriers: Carriers, single: Server, name: str) -> None:
    carrier = carriers.opened(single.url)
    call = script_call(f"{STORE} -- {name}", name, words=("f",))
    carrier.call(call)
    assert single.ask("SCRIPT", "EXISTS", call.script.sha) == [1]
    assert carrier.call(call) == 2
