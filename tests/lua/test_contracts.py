"""The head of each script says what its body does: keys, arguments, parts; the calls give what the heads ask for.

The heads of the functions in ``lua/common/`` are compared in ``test_heads_of_common_functions``.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from shardq.core.calls.request import Call
from shardq.core.layout.keys import ControlKeys, ShardKeys, control_keys, shard_keys
from shardq.core.layout.slots import slot_of
from shardq.core.scripts import script
from tests.lua.contract import FOLDER, NAMES, TYPES, Contract, Slot, contract, touched, without_comments
from tests.lua.samples import FULL, NUMBERS, WHOLE, named, on_a_meta, on_a_shard, on_the_whole
from tests.lua.shard import EPOCH, ON_BOTH, Shard
from tests.support.rows import each_row

PARTS = sorted(file.name.removesuffix(".lua") for file in (FOLDER / "common").iterdir())

KEYS = shard_keys("orders", 5)
CONTROL = control_keys("orders")


def key_names(keys: ShardKeys | ControlKeys) -> list[str]:
    """Every name that ``keys`` can make."""
    fields = [getattr(keys, field) for field in keys.__dataclass_fields__]
    names = [name for name in fields if isinstance(name, str) and name != keys.prefix]
    if isinstance(keys, ShardKeys):
        return [*names, keys.ready("mail"), keys.waiting("mail")]
    return [*names, keys.bucket("mail"), keys.permits("mail"), keys.waiting("mail")]


def kind_of(key: str) -> str:
    """A key as the heads call it."""
    name = key.rpartition("}:")[2].removeprefix("limits/").partition("/")[0]
    return "bucket" if name == "rate" else name


OF_EACH_SCRIPT = each_row("each", {name: contract(name) for name in NAMES})


@OF_EACH_SCRIPT
def test_the_head_is_whole(each: Contract) -> None:
    assert each.title == each.name
    assert each.purpose.endswith(".")
    assert each.fields == {"RETURNS", "ATOMIC", "COST"}
    unread = [
        line
        for line in each.head.splitlines()[1 + each.purpose.count("\n") :]
        if not re.match(r"-- (USES: |(KEYS|ARGV) \d+(\+[\w*]+)?(\.\.)? |RETURNS |ATOMIC|COST |        )", line)
    ]
    assert unread == []


@pytest.mark.parametrize("what", ["keys", "words"])
@OF_EACH_SCRIPT
def test_numbers_follow_each_other(each: Contract, what: str) -> None:
    slots: list[Slot] = getattr(each, what)
    single = [slot for slot in slots if not slot.many]
    many = slots[len(single) :]
    assert [slot.number for slot in single] == list(range(1, len(single) + 1))
    # runs come last, and begin where the others end
    assert all(slot.many and slot.number == len(single) + 1 for slot in many)
    assert len(many) <= (2 if what == "keys" else 1)


LANES = [
    ("keys", "ZSET"),
    ("placed", "ZSET"),
    ("alarms", "ZSET"),
    ("rests", "ZSET"),
    ("holds", "HASH"),
    ("gates", "HASH"),
]


@OF_EACH_SCRIPT
def test_the_keys_of_lanes_follow_the_others(each: Contract) -> None:
    assert bool(each.lanes) == ("lane" in each.uses)
    names = [(name, type) for _, name, type in each.lanes]
    assert names in ([], LANES, [*LANES, ("due", "ZSET")])
    runs = sum(key.many for key in each.keys)
    begin = len(each.keys) - runs + 1
    behind = {0: "", 1: "+topics", 2: "+2*topics"}[runs]
    assert [number for number, *_ in each.lanes] == [f"{begin + n}{behind}" for n in range(len(names))]


@OF_EACH_SCRIPT
def test_the_ring_of_ends_follows_all_others(each: Contract) -> None:
    assert bool(each.ends) == ("ends" in each.uses)
    runs, single = sum(key.many for key in each.keys), sum(not key.many for key in each.keys)
    behind = {0: "", 1: "+topics", 2: "+2*topics"}[runs]
    assert each.ends in ([], [f"{single + len(each.lanes) + 1}{behind}.."])


@OF_EACH_SCRIPT
def test_every_key_has_a_type_and_a_name_of_ours(each: Contract) -> None:
    assert {key.type for key in each.keys} <= TYPES
    names = {kind_of(key) for key in key_names(KEYS) + key_names(CONTROL)}
    assert {key.name for key in each.keys} <= names | {"destination"}


@pytest.mark.parametrize(("what", "slots"), [("KEYS", "keys"), ("ARGV", "words")])
@OF_EACH_SCRIPT
def test_the_body_touches_what_is_declared_and_all_of_it(each: Contract, what: str, slots: str) -> None:
    declared: list[Slot] = getattr(each, slots)
    numbers = touched(each.whole, what)
    single, more = each.counts(declared)
    assert {slot.number for slot in declared} <= numbers, "declared, and not used"
    if not more:
        assert max(numbers) <= single, "used, and not declared"
    assert min(numbers) == 1


# what every body after them may use
ENTRANCES = {"guard", "control"}


@functools.cache
def part(name: str) -> str:
    return without_comments((FOLDER / "common" / f"{name}.lua").read_text(encoding="utf-8"))


@OF_EACH_SCRIPT
def test_it_uses_what_it_says_and_no_other_part(each: Contract) -> None:
    assert set(each.uses) <= set(PARTS)
    for name in set(PARTS) - ENTRANCES:
        defined = re.findall(r"^local (?:function )?(\w+)", part(name), re.MULTILINE)
        others = each.body + "".join(part(used) for used in each.uses if used != name)
        used = any(re.search(rf"\b{word}\b", others) for word in defined)
        assert used == (name in each.uses), f"the part {name}"
    # a part comes after those it uses itself, or what it names would be nil
    for number, name in enumerate(each.uses):
        for later in each.uses[number + 1 :]:
            functions = re.findall(r"^local function (\w+)", part(later), re.MULTILINE)
            assert not any(re.search(rf"\b{function}\(", part(name)) for function in functions), (name, later)


def test_every_part_is_used_by_a_script() -> None:
    assert {part for name in NAMES for part in contract(name).uses} == set(PARTS)


@OF_EACH_SCRIPT
def test_the_guard_comes_first(each: Contract) -> None:
    """open makes what the guard asks for; the topology is guarded where its epoch counts; the rest has no epoch."""
    entrance = next((part for part in each.uses if part not in ("epoch", "clock")), "")  # which control uses
    if entrance in ENTRANCES:
        assert each.keys[0].name == {"guard": "meta", "control": "topology"}[entrance]
        assert [word.name for word in each.words[:2]] == ["epoch", "now_us"]
    else:
        assert each.name in {
            *(
                "open",
                "declare",
                "learn",
                "heartbeat",
                "report",
                "fleet",
                "release",
                "renew",
                "schedules",
                "set_schedule",
                "history",
            )
        }
        assert not ENTRANCES & set(each.uses)


@OF_EACH_SCRIPT
def test_a_part_that_rings_has_the_bell_where_it_looks_for_it(each: Contract) -> None:
    if "rouse" in each.uses:
        assert each.words[2].name == "bell"


CALL = re.compile(r"redis\.(\w+)\((.*)")


@each_row("name", {name: name for name in NAMES})
def test_commands_are_literal_and_keys_are_given(name: str) -> None:
    for line in script(name).text.splitlines():
        for function, arguments in CALL.findall(re.sub(r"--.*", "", line)):
            assert function in ("call", "pcall"), line
            command = re.match(r"'([A-Z]+)'[,)]\s*([^,)]*)", arguments)
            assert command, f"a command that is not a literal name: {line}"
            key = command[2].strip()
            keyless = command[1] in ("TIME", "SPUBLISH", "INFO")
            assert keyless or re.match(r"(KEYS\[|[a-z])", key), f"no key is first: {line}"
    # no name of a key is built in a script: braces are written by one module only
    assert "shardq:" not in script(name).text


ALL = [*on_a_shard(KEYS, EPOCH), *on_a_meta(KEYS, EPOCH), *on_the_whole(CONTROL)]


def test_every_script_has_a_sample() -> None:
    assert sorted({call.script.name for call in ALL}) == NAMES


@each_row("call", dict(zip(named(ALL), ALL, strict=True)))
def test_a_call_gives_what_its_script_asks_for(call: Call[Any]) -> None:
    asked = contract(call.script.name)
    assert {slot_of(key) for key in call.keys} == {call.slot}
    keys = [kind_of(key) for key in call.keys]
    if asked.ends and keys[-1] == "ends":
        assert call.keys[-8:] == KEYS.ends
        keys = keys[:-8]
    single = [key.name for key in asked.keys if not key.many]
    runs = [key.name for key in asked.keys if key.many]
    # a foreign list, and as many of one run as of the other
    per_run = (len(keys) - len(single)) // len(runs) if runs else 0
    wanted = single + [name for name in runs for _ in range(per_run)]
    assert keys == ["ready" if name == "destination" else name for name in wanted]
    least, more = asked.counts(asked.words)
    assert len(call.words) >= least if more else len(call.words) == least
    # channels are in the slot too: another's would abort the script
    channels = [word for word in call.words if isinstance(word, str) and word.startswith("shardq:")]
    assert {slot_of(channel) for channel in channels} <= {call.slot}


@pytest.fixture
def allowed(shard: Shard, name: str) -> Iterator[str]:
    """A user of the shard's server who may touch no key until told which."""
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "allchannels", "resetkeys")
    yield user
    shard.do("ACL", "DELUSER", user)


@ON_BOTH
@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_it_runs_for_who_may_touch_its_keys_only(shard: Shard, keys: ShardKeys, allowed: str, number: int) -> None:
    call = on_a_shard(keys, EPOCH)[number]
    shard.seed(FULL)
    answer = shard.ask(call)
    state = shard.state()
    shard.seed(FULL)
    shard.do("ACL", "SETUSER", allowed, *(f"~{key}" for key in call.keys))
    with shard.as_user(allowed) as user:
        assert user.ask(call) == answer
    assert shard.state() == state


@ON_BOTH
@pytest.mark.parametrize("number", range(len(on_the_whole(CONTROL))), ids=named(on_the_whole(CONTROL)))
def test_so_do_those_on_the_control_keys(centre: Shard, control: ControlKeys, number: int) -> None:
    call = on_the_whole(control)[number]
    centre.seed(WHOLE)
    user = f"u{uuid.uuid4().hex}"
    centre.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "allchannels", *(f"~{key}" for key in call.keys))
    with centre.as_user(user) as allowed:
        allowed.ask(call)
    centre.do("ACL", "DELUSER", user)
