"""Reading CLUSTER NODES, without a server."""

from __future__ import annotations

from cluster.view import layout, parse

_ANSWER = """\
a1 127.0.0.1:7000@17000,host myself,master - 0 0 1 connected 0-99 200 [300->-b2]
b2 127.0.0.1:7001@17001 master,fail? - 1 2 5 disconnected 100-199
c3 127.0.0.1:7002@17002 slave a1 0 0 1 connected
d4 :0@0 handshake - 0 0 0 disconnected
"""


def test_slots_on_the_move_have_not_moved() -> None:
    view = parse(_ANSWER)
    assert view["a1"].slots == ((0, 99), (200, 200))
    assert [view["a1"].owns(slot) for slot in (0, 99, 100, 200, 300)] == [True, True, False, True, False]


def test_roles_ports_and_doubts() -> None:
    view = parse(_ANSWER)
    assert [seen.port for seen in view.values()] == [7000, 7001, 7002, 0]
    assert [seen.is_master for seen in view.values()] == [True, True, False, False]
    assert [seen.in_doubt for seen in view.values()] == [False, True, False, True]
    assert view["c3"].master_id == "a1"
    assert (view["b2"].epoch, view["b2"].connected) == (5, False)


def test_who_is_failing_is_no_part_of_the_layout() -> None:
    assert layout(parse(_ANSWER)) == layout(parse(_ANSWER.replace("master,fail?", "master")))
    assert layout(parse(_ANSWER)) != layout(parse(_ANSWER.replace("100-199", "100-198")))
