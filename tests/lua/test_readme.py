"""The tables of lua/README.md agree with the heads of the scripts, the names of keys, and the code."""

from __future__ import annotations

import json
import re

import pytest

from shardq.core.dispatcher.sharing import shares
from shardq.core.fleet.report import Report
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.lanes import lane_of
from shardq.core.layout.slots import slot_of, table, tag
from shardq.core.layout.topology import Topology
from shardq.core.model.record import codec_named, decode_record, encode_record
from shardq.core.producer.packing import place_ms
from tests.lua.contract import FOLDER, NAMES, Contract, contract
from tests.support.heads import encode_head
from tests.support.rows import each_row

TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")

Row = list[str]


def rows(first: str, *, width: int) -> list[Row]:
    """The rows of every table whose first column has this title and which has so many columns."""
    found: list[Row] = []
    inside = False
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] == first and len(cells) == width:
            inside = True
        elif not cells:
            inside = False
        elif inside and not re.fullmatch(r"-+", cells[0]):
            found.append(cells)
    assert found, f"no table of {width} columns begins with {first!r}"
    return found


def code(cell: str) -> list[str]:
    """What is between backticks."""
    return re.findall(r"`([^`]*)`", cell)


SCRIPTS = {row[0]: row for row in rows("script", width=4)}

LANES = ["keys", "placed", "alarms", "rests", "holds", "gates"]
"""The keys that *lanes* stands for."""


def keys_of(name: str) -> list[tuple[str, str, str]]:
    """Of each key in the head of a script its number, name and type."""
    return re.findall(r"^-- KEYS (\S+)(?: or \d+)? (\w+) ([A-Z]+)", contract(name).head, re.MULTILINE)


OF_EACH_SCRIPT = each_row("name", {name: name for name in NAMES})


def test_every_script_has_one_row() -> None:
    assert sorted(SCRIPTS) == NAMES
    assert len(rows("script", width=4)) == len(SCRIPTS)


@OF_EACH_SCRIPT
def test_a_row_has_the_keys_of_its_script_in_order(name: str) -> None:
    cell = SCRIPTS[name][1].replace(" *lanes*", "".join(f" `{key}`" for key in LANES))
    keys = re.findall(r"`(\w+)`(…?)", cell)
    assert keys == [(key, "…" if number.endswith("..") else "") for number, key, _ in keys_of(name)]


@OF_EACH_SCRIPT
def test_a_row_has_the_arguments_of_its_script(name: str) -> None:
    asked: Contract = contract(name)
    words = asked.words[2:] if {"guard", "control"} & set(asked.uses) else asked.words
    cell = SCRIPTS[name][2]
    told = [] if cell == "—" else cell.split("; ")
    assert [word.startswith("… ") for word in told] == [word.many for word in words]


def test_every_script_on_lanes_says_what_it_does_to_them() -> None:
    told = [name for row in rows("script on lanes", width=4) for name in row[0].split(", ")]
    assert sorted(told) == [name for name in NAMES if "lane" in contract(name).uses]


def test_every_answer_of_a_script_is_told() -> None:
    """Each word that an answer can be, as the heads say it."""
    for name in ("cancel", "reschedule", "requeue"):
        answers = re.search(r"RETURNS \{'ok', ([^:}]*)", contract(name).head)
        assert answers
        for answer in re.findall(r"\w+", answers[1]):
            assert f"`{answer}`" in SCRIPTS[name][3]


def test_every_field_of_a_report_has_a_row() -> None:
    assert [name for row in rows("in a report", width=3) for name in code(row[0])] == list(Report.__struct_fields__)


def test_every_key_and_channel_has_a_row() -> None:
    shard, whole = shard_keys("orders", 5), control_keys("orders")
    names = [shard.ends[0].replace("/0", "/SLOT"), shard.ready("TOPIC"), shard.waiting("TOPIC"), shard.wake("PROCESS")]
    names += [getattr(shard, field) for field in list(shard.__dataclass_fields__)[4:]]
    names += [
        whole.topology,
        whole.settings,
        whole.edits,
        whole.members,
        whole.bucket("TOPIC"),
        whole.permits("TOPIC"),
        whole.schedules,
    ]
    names += [whole.history, whole.changes, whole.workers, whole.reports, whole.unreached, whole.news]
    names += [whole.waiting("TOPIC"), whole.wake("PROCESS")]
    described = rows("key of a shard", width=3) + rows("key of the whole", width=3)
    channels = rows("channel (SPUBLISH, SSUBSCRIBE)", width=3)
    told = {code(row[0])[0] for row in [*described, *channels]}
    assert told == {name.rpartition("}:")[2] for name in names}


def test_the_type_of_every_key_is_the_one_of_the_scripts() -> None:
    told = {
        title.partition("/")[0]: row[1]
        for row in [*rows("key of a shard", width=3), *rows("key of the whole", width=3)]
        for title in code(row[0])
    }
    for name in NAMES:
        for _, key, kind in keys_of(name):
            assert key == "destination" or told[key] == kind


def test_every_field_of_the_topology_has_a_row() -> None:
    fields = Topology(epoch=1, shards=1, links={"far": "a"}).to_fields()
    assert [code(row[0])[0] for row in rows("field", width=3)] == [field.decode() for field in fields]


def test_every_field_of_a_meta_is_told() -> None:
    (told,) = (row[2] for row in rows("key of a shard", width=3) if row[0] == "`meta`")
    bodies = "".join(contract(name).whole for name in NAMES)
    written = set(re.findall(r"'(?:HSET|HINCRBY)', KEYS\[1\], '(\w+)'", bodies)) - {"tokens"}
    written |= set(re.findall(r"KEYS\[1\], 'wake_at', wake_at, '(\w+)'", bodies)) | {"topology", "since", "numbers"}
    written |= set(re.findall(r"'(clock|ahead)', string.format", contract("dispatch").whole))
    fields = r"(?:'(?:HSET|HINCRBY)', KEYS\[1\],|local field =) '(\w+)/'"
    written |= {f"{kind}/TOPIC" for kind in re.findall(fields, bodies)} | {"beat/OUTBOX"}
    assert written == set(code(told))


def test_the_parts_of_the_picture_are_states_and_scripts() -> None:
    picture = TEXT.split("## States")[1].split("A task is in exactly")[0]
    for word in ("push", "dispatch", "claim", "forward", "reschedule", "requeue", "cancel"):
        assert word in picture
        assert word in NAMES
    for verb in ("ack", "retry", "back", "hold", "bury"):
        assert verb in picture
        assert verb in contract("settle").head


@pytest.mark.parametrize("row", rows("engine", width=4), ids=lambda row: f"{row[0]} {row[1]}")
def test_tags(row: Row) -> None:
    (name,), shard, (told,), slot = code(row[0]), int(row[1]), code(row[2]), int(row[3])
    assert tag(name, shard) == told
    assert slot_of(f"shardq:{{{told}}}:due") == slot
    # by the words of the text, not by the code
    assert slot == int(f"{shard:014b}"[::-1], 2) + 8
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    salts = (a + b + c + d for a in digits for b in digits for c in digits for d in digits)
    assert told == next(salted for salt in salts if slot_of(salted := f"{name}:{shard}.{salt}") == slot)


@pytest.mark.parametrize("row", rows("id", width=8), ids=lambda row: str(row[0]))
def test_shards_of_ids(row: Row) -> None:
    (id,), bucket, *told = code(row[0]), *map(int, row[1:])
    assert _murmur3(id.encode()) & 16383 == bucket
    for count, shard in zip((1, 2, 3, 16, 64, 1000), told, strict=True):
        assert Topology(epoch=1, shards=count).shard_of(id) == table(count)[bucket] == shard


@pytest.mark.parametrize("row", rows("id with a key", width=4), ids=lambda row: str(row[0]))
def test_shards_of_ids_with_a_key(row: Row) -> None:
    (id,), (lane,), bucket, shard = code(row[0]), code(row[1]), int(row[2]), int(row[3])
    assert lane_of(id) == lane
    assert _murmur3(lane.encode()) & 16383 == bucket
    assert Topology(epoch=1, shards=16, is_keyed=True).shard_of(id) == table(16)[bucket] == shard


def test_tables_of_buckets_made_one_by_one() -> None:
    """By the words of the text, with nothing clever."""
    told = {int(row[0]): [int(cell) for cell in row[1:]] for row in rows("shards", width=8)}
    held = [list(range(16384))]
    for n in range(2, 6):
        new: list[int] = []
        for _ in range(16384 // n):
            fullest = max(held, key=len)  # of equals the first
            new.append(fullest.pop())  # its highest: each list is in order
        held.append(sorted(new))
        owners = {bucket: shard for shard, buckets in enumerate(held) for bucket in buckets}
        assert [owners[bucket] for bucket in range(16384)] == list(table(n))
        assert [owners[bucket] for bucket in (0, 4096, 5461, 8192, 12287, 12288, 16383)] == told[n]


@pytest.mark.parametrize("row", rows("id", width=3), ids=lambda row: str(row[0]))
def test_places_in_a_window(row: Row) -> None:
    (id,), hashed, place = code(row[0]), int(row[1]), int(row[2])
    assert _murmur3(id.encode(), seed=0x57494E44) == hashed
    assert hashed * 60_000 // 2**32 == place == place_ms(id, 60_000)


@pytest.mark.parametrize("row", rows("payload", width=8), ids=lambda row: str(row[7]))
def test_records(row: Row) -> None:
    (payload,), name, attempts, headers, expires, nonce, tags, (record,) = code(row[0]), *row[1:7], code(row[7])
    value = json.loads(payload)
    head = encode_head(
        max_attempts=None if attempts == "—" else int(attempts),
        headers=None if headers == "—" else json.loads(code(headers)[0]),
        expires=None if expires == "—" else int(expires),
        nonce=None if nonce == "—" else int(nonce),
        tags=() if tags == "—" else tuple(json.loads(code(tags)[0])),
    )
    value = value.encode() if name == "raw" else value
    assert encode_record(codec_named(name), value, head).hex() == record
    assert decode_record(bytes.fromhex(record)).payload == value


def test_shares_of_members() -> None:
    ((names, *owners),) = rows("members", width=9)
    owned = shares(code(names), len(owners))
    assert [next(member for member in owned if shard in owned[member]) for shard in range(len(owners))] == owners


def test_no_word_of_what_there_is_not() -> None:
    """A script is named in the text only if it exists."""
    for row in rows("call", width=3):
        for name in row[0].split(", "):
            assert name in {*NAMES, "all others"}


def _murmur3(key: bytes, *, seed: int = 0) -> int:
    """MurmurHash3 x86 32-bit, by its definition."""

    def mixed(block: int) -> int:
        block = block * 0xCC9E2D51 & 0xFFFFFFFF
        return (block << 15 | block >> 17) * 0x1B873593 & 0xFFFFFFFF

    whole = len(key) // 4 * 4
    state = seed
    for start in range(0, whole, 4):
        state ^= mixed(int.from_bytes(key[start : start + 4], "little"))
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= mixed(int.from_bytes(key[whole:], "little"))
    state ^= len(key)
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16
