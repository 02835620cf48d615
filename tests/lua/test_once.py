"""A cancel and a reschedule that are carried out at most once: by their nonce, until an instant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq.core.calls import by_id
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from shardq.errors import Conflict, ServerFault
from tests.lua.shard import EPOCH, Shard, State, T, at, meta, record

A = record("a")
OPEN: State = {"meta": meta(clock=T)}
SCHEDULED: State = OPEN | {"task": {"a": A}, "due": {"a": T + 50}}
MEMORY = 800

Make = Callable[..., Call[Any]]


def cancel(keys: ShardKeys, **options: Any) -> Call[Any]:
    return by_id.cancel(keys, EPOCH, "a", **options)


def reschedule(keys: ShardKeys, **options: Any) -> Call[Any]:
    return by_id.reschedule(keys, EPOCH, "a", T + 900, **options)


@pytest.fixture(params=[cancel, reschedule])
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


STATES: dict[str, State] = {
    "scheduled": SCHEDULED,
    "ready": OPEN | {"task": {"a": A}, "ready/": ["a"]},
    "leased": OPEN | {"task": {"a": A}, "leased": {"a": T + 9}, "lease": {"a": "0:0:9:tok"}},
    "dead": OPEN | {"task": {"a": A}, "dead": {"a": T - 9}},
    "gone": OPEN,
}


@pytest.mark.parametrize("state", STATES)
def test_a_later_task_of_the_id_is_left_alone(shard: Shard, keys: ShardKeys, make: Make, state: str) -> None:
    """The command was answered, whatever it met; another push of the id came, and the command is sent again."""
    shard.seed(STATES[state])
    call = make(keys, once=f"7-{MEMORY}")
    shard.run(call.at(at(0)))
    assert shard.state()["seen"] == {"a\n7": T + MEMORY}
    later = SCHEDULED | {"seen": {"a\n7": T + MEMORY}}
    shard.seed(later)
    assert shard.ask(call.at(at(MEMORY - 1))) == ["ok", "known"]
    assert shard.state() == later | {"seen": {"a\n7": T + 2 * MEMORY - 1}}, "known from the last send on"


def test_another_command_is_carried_out(shard: Shard, keys: ShardKeys, make: Make) -> None:
    shard.seed(SCHEDULED | {"seen": {"a\n7": T + MEMORY}})
    answers = [
        shard.ask(make(keys, once=once).at(at(ms))) for once, ms in ((f"8-{MEMORY}", 0), (f"7-{MEMORY}", MEMORY))
    ]
    assert "known" not in [word for _, word in answers], "of another nonce; and when it is forgotten"


def test_the_outcome_of_a_known_one_is_what_was_asked(shard: Shard, keys: ShardKeys, make: Make) -> None:
    shard.seed(OPEN | {"seen": {"a\n7": T + MEMORY}})
    assert shard.run(make(keys, once=f"7-{MEMORY}").at(at(0)))


def test_after_its_instant_it_is_refused_unless_it_is_known(shard: Shard, keys: ShardKeys, make: Make) -> None:
    shard.seed(SCHEDULED)
    late = make(keys, once=f"7-{MEMORY}-{T + 5}")
    assert shard.ask(late.at(at(6))) == ["ok", "late"]
    assert shard.state() == SCHEDULED
    with pytest.raises(Conflict) as raised:
        shard.run(late.at(at(6)))
    assert raised.value.state == "late"
    assert shard.ask(late.at(at(5)))[1] in ("cancelled", "moved")
    assert shard.ask(late.at(at(6))) == ["ok", "known"]


def test_of_an_earlier_shard_it_is_not_noted_that_the_id_is_gone(shard: Shard, keys: ShardKeys, make: Make) -> None:
    """The task may have moved on, to a shard that is asked next."""
    shard.seed(OPEN)
    assert shard.ask(make(keys, once=f"7-{MEMORY}", earlier="1").at(at(0))) == ["ok", "gone"]
    assert shard.state() == OPEN
    shard.seed(OPEN | {"moved": {"a": "n1|2|…"}})
    assert shard.ask(make(keys, once=f"7-{MEMORY}").at(at(0))) == ["ok", "moving"]
    assert "seen" not in shard.state()
    shard.seed(SCHEDULED)
    assert shard.ask(make(keys, once=f"7-{MEMORY}", earlier="1").at(at(0)))[1] in ("cancelled", "moved")
    assert shard.state()["seen"] == {"a\n7": T + MEMORY}


@pytest.mark.parametrize("word", ["x", "7", "7-", "-800", "7-800-1-2"])
def test_what_is_no_such_word_changes_nothing(shard: Shard, keys: ShardKeys, make: Make, word: str) -> None:
    shard.seed(SCHEDULED)
    with pytest.raises(ServerFault):
        shard.run(make(keys, once=word).at(at(0)))
    assert shard.state() == SCHEDULED
