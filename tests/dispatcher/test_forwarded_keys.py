"""Tasks with keys in a topic that is forwarded: fair, in order, and free when they have left."""

from __future__ import annotations

from shardq import Engine, Task
from tests.dispatcher.test_forwarding import on_list
from tests.support.servers import Servers
from tests.support.states import state_of
from tests.support.waiting import wait_until


def test_each_key_leaves_in_its_order(running: Engine, name: str, servers: Servers) -> None:
    key = f"mine:{name}"
    running.forward("t", to=key)
    ids = running.push_many([Task([of, n], topic="t", key=f"k{of}") for n in range(40) for of in range(5)])
    wait_until(lambda: len(on_list(servers, key)) >= len(ids), "all have arrived", timeout=30)
    arrived = on_list(servers, key)
    for of in range(5):
        assert [each for each in arrived if each.startswith(b"[%d," % of)] == [b"[%d,%d]" % (of, n) for n in range(40)]
    wait_until(lambda: {state_of(running, id) for id in ids} == {"gone"}, "none is left with us")
    late = running.push("late", topic="t", key="k0")
    wait_until(lambda: state_of(running, late) == "gone", "its key is free")
