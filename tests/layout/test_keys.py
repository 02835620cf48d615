"""The table of all key names: other clients, ACLs and stored data rely on each of them."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.slots import slot_of, target_slot

names = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)


def test_the_names_of_a_shard() -> None:
    keys = shard_keys("orders", 1)
    assert dataclasses.asdict(keys) == {
        "shard": 1,
        "slot": 8200,
        "prefix": "shardq:{orders:1.061o}:",
        "meta": "shardq:{orders:1.061o}:meta",
        "due": "shardq:{orders:1.061o}:due",
        "task": "shardq:{orders:1.061o}:task",
        "leased": "shardq:{orders:1.061o}:leased",
        "lease": "shardq:{orders:1.061o}:lease",
        "dead": "shardq:{orders:1.061o}:dead",
        "why": "shardq:{orders:1.061o}:why",
        "ghost": "shardq:{orders:1.061o}:ghost",
        "seen": "shardq:{orders:1.061o}:seen",
        "topics": "shardq:{orders:1.061o}:topics",
        "looks": "shardq:{orders:1.061o}:looks",
        "moved": "shardq:{orders:1.061o}:moved",
        "staged": "shardq:{orders:1.061o}:staged",
        "copy": "shardq:{orders:1.061o}:copy",
        "bell": "shardq:{orders:1.061o}:bell",
        "keyed": False,
        "keys": "shardq:{orders:1.061o}:keys",
        "placed": "shardq:{orders:1.061o}:placed",
        "alarms": "shardq:{orders:1.061o}:alarms",
        "rests": "shardq:{orders:1.061o}:rests",
        "holds": "shardq:{orders:1.061o}:holds",
        "gates": "shardq:{orders:1.061o}:gates",
    }
    assert keys.ready("email") == "shardq:{orders:1.061o}:ready/email"
    assert keys.ready("") == "shardq:{orders:1.061o}:ready/"
    assert keys.waiting("email") == "shardq:{orders:1.061o}:waiting/email"
    assert keys.wake("p1") == "shardq:{orders:1.061o}:wake/p1"


def test_the_names_of_the_engine_as_a_whole() -> None:
    assert dataclasses.asdict(control_keys("orders")) == {
        "slot": 105,
        "prefix": "shardq:{orders}:",
        "topology": "shardq:{orders}:topology",
        "settings": "shardq:{orders}:settings",
        "edits": "shardq:{orders}:edits",
        "members": "shardq:{orders}:members",
        "workers": "shardq:{orders}:workers",
        "reports": "shardq:{orders}:reports",
        "unreached": "shardq:{orders}:unreached",
        "limits": "shardq:{orders}:limits",
        "schedules": "shardq:{orders}:schedules",
        "history": "shardq:{orders}:history",
        "changes": "shardq:{orders}:changes",
        "news": "shardq:{orders}:news",
    }


@given(names, st.integers(0, 1023), names)
def test_everything_of_a_shard_is_in_its_slot(name: str, shard: int, word: str) -> None:
    keys = shard_keys(name, shard)
    made = [value for value in dataclasses.asdict(keys).values() if isinstance(value, str)]
    made += [keys.ready(word), keys.waiting(word), keys.wake(word), *keys.ends]
    assert {slot_of(key) for key in made} == {keys.slot} == {target_slot(shard)}


@given(names)
def test_everything_of_the_engine_is_in_one_slot(name: str) -> None:
    keys = control_keys(name)
    made = [value for value in dataclasses.asdict(keys).values() if isinstance(value, str)]
    assert {slot_of(key) for key in made} == {keys.slot}


def test_no_two_names_are_the_same() -> None:
    made: list[str] = []
    for name in ("orders", "orders.1", "1"):
        for shard in range(20):
            made += dataclasses.asdict(shard_keys(name, shard)).values()
        made += dataclasses.asdict(control_keys(name)).values()
    made = [value for value in made if isinstance(value, str)]
    assert len(made) == 3 * (20 * 22 + 13)
    assert len(made) == len(set(made))


def test_names_are_made_once() -> None:
    assert shard_keys("orders", 3) is shard_keys("orders", 3)
    assert control_keys("orders") is control_keys("orders")
