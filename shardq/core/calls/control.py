"""The control slot, and the metas of shards: topology, members with their reports, changes. What a feature keeps there
is read and written by its own ``requests``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardq.core.calls.request import NOW, Call, Command, Epoch, Word, body, by_name
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.slots import slot_of
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.layout.words import number_of, text_of
from shardq.errors import ShardqError

Fields = Mapping[bytes, bytes]

OPENED = "opened"  # the first word of the news that shards were opened; their numbers follow

OF_A_FEATURE = "/"  # is in the news that only a feature reads: KIND/NAME


@dataclass(frozen=True, slots=True)
class Declared:
    changed: bool
    fields: Fields  # the fields of the present topology, the caller's or another


def declare(
    keys: ControlKeys, seen: Epoch, fields: Fields, settings: Mapping[str, bytes] | None = None, *, whole: bool = False
) -> Call[Declared]:
    """Replaces the topology of the epoch ``seen``; 0 creates it. Sent twice it answers that it has been changed.
    ``settings``: topic → what is stored of it from now on, empty for nothing. ``whole``: no other topic has any.
    """
    words: list[Word] = [seen, keys.news, "1" if whole else "0", len(fields) * 2]
    return Call.of(
        "declare",
        keys,
        words + _flat(fields) + _flat(settings or {}),
        lambda answer: Declared(answer[0] == b"ok", pairs(answer[1:])),
    )


def read_topology(keys: ControlKeys) -> Command[Fields]:
    """Reads the topology without the settings of topics; empty when there is none. HGETALL gives a map or a flat list,
    by protocol.
    """
    return Command(keys.slot, ("HGETALL", keys.topology), _fields)


@dataclass(frozen=True, slots=True)
class Learnt:
    fields: Fields
    """The fields of the topology; empty when there is none."""
    whole: bool
    """True if the settings are those of all topics; False if they are of those that changed since."""
    scan: bool
    """True if they are too many, and none are here: scan them, and ask for what changed since this topology."""
    settings: Fields
    """Topic → what is stored of it; empty for nothing."""


def learn(keys: ControlKeys, known: Epoch) -> Call[Learnt]:
    """Reads the topology, and the settings that changed since the one that the caller knows; 0 for none."""
    return Call.of("learn", keys, [known], _learnt)


def _learnt(answer: list[Any]) -> Learnt:
    fields, whole, settings = body(answer)
    return Learnt(pairs(fields), whole == 1, whole == 2, pairs(settings))


def scan_settings(keys: ControlKeys, cursor: str) -> Command[tuple[str, Fields]]:
    """The next cursor, "0" at the end, and the settings of some topics."""
    words: list[Word] = ["HSCAN", keys.settings, cursor, "COUNT", 500]
    return Command(keys.slot, words, lambda answer: (text_of(answer[0]), _fields(answer[1])))


def _fields(answer: Any) -> Fields:
    return answer if isinstance(answer, dict) else pairs(answer)


def _flat(fields: Mapping[Any, bytes]) -> list[Word]:
    return [word for pair in fields.items() for word in pair]


class Owed(ShardqError):
    """Tasks may lie in the shard by a number of shards that the caller's topology does not look at, or with keys, of
    which it does not know. Internal.
    """

    def __init__(self, copy: bytes) -> None:
        self.copy = copy
        super().__init__("the shard came back from an earlier number of shards")


class Unrelated(ShardqError):
    """The shard's copy of the settings is of another topology than the one from which they are told. Internal."""

    def __init__(self) -> None:
        super().__init__("the shard has other settings of topics than those that were changed")


@dataclass(frozen=True, slots=True)
class Copy:
    """A topology as shards keep it."""

    text: str
    settings: Mapping[str, bytes]
    """Topic → what is stored of it, empty for nothing."""
    since: Epoch | str = ""
    """The topology since which these settings changed; empty if they are those of all topics."""


def open_shard(
    keys: ShardKeys, topology: Topology, copy: Copy, *, word: str, anew: bool = False, whatever: bool = False
) -> Call[bool]:
    """Opens a shard under a topology. Returns True if there was nothing, as far as is known: then ``word``, a random
    one, stays there. ``anew``: the shard is to be used from now on, and must show again that it is polled. ``whatever``
    it knew: it is opened also where Owed would be raised.
    """

    def decode(answer: list[Any]) -> bool:
        if answer[0] == b"owed":
            raise Owed(answer[1])
        if answer[0] == b"unrelated":
            raise Unrelated()
        return bool(body(answer)[0])

    def again() -> Call[bool]:
        # It may find what the call whose answer was lost has written.
        call = open_shard(keys, topology, copy, word=word, anew=anew, whatever=whatever)
        call.decode, call.resend = lambda answer: decode(answer) or True, None
        return call

    flags, numbers = ["1" if flag else "0" for flag in (anew, whatever)], ",".join(map(str, topology.numbers))
    words: list[Word] = [
        topology.stamp,
        copy.text,
        flags[0],
        topology.since,
        numbers,
        flags[1],
        word,
        keys.bell,
        copy.since,
    ]
    return Call.of("open", keys, words + _flat(copy.settings), decode, resend=again)


def close_shard(keys: ShardKeys) -> Command[int]:
    """Undoes the opening of a shard that had nothing: nobody can use it then."""
    return Command(keys.slot, ("HDEL", keys.meta, "epoch", "topology", "since", "numbers", "opened"), int)


def tell_opened(keys: ControlKeys, shards: Iterable[int]) -> Command[int]:
    """Tells those who wait that no process is registered in these shards."""
    return Command(keys.slot, ("SPUBLISH", keys.news, " ".join([OPENED, *map(str, shards)])), int)


def opened_by(message: str | None) -> list[int]:
    """The shards that such news is about; none if it is other news."""
    word, *shards = (message or "").split(" ")
    return list(map(number_of, shards)) if word == OPENED else []


def read_opened(keys: ShardKeys) -> Command[str]:
    """The word with which a shard was opened, another one if it was opened again after it had lost everything. Empty if
    it is not open, or was opened by a version that wrote none.
    """
    return Command(keys.slot, ("HGET", keys.meta, "opened"), lambda word: text_of(word or b""))


def read_copy(keys: ShardKeys) -> Command[bytes | None]:
    """The topology that a shard was last told, as text, without the settings of topics."""
    return Command(keys.slot, ("HGET", keys.meta, "topology"), lambda text: text)


def read_settings(keys: ShardKeys) -> Command[Fields]:
    """The settings of topics that a shard was told: topic → what is stored of it."""
    return Command(keys.slot, ("HGETALL", keys.copy), _fields)


def touch_topology(keys: ControlKeys) -> Command[int]:
    """Removes a field that is not there: it changes nothing, and is refused to who may not write the topology."""
    return Command(keys.slot, ("HDEL", keys.topology, ""), int)


def exist(keys: ShardKeys, *names: str) -> Command[int]:
    """Counts those of some keys of a shard that are there."""
    return Command(keys.slot, ("EXISTS", *names), int)


def clock_ms(keys: ControlKeys | ShardKeys) -> Command[int]:
    """The time, by the clock of the slot's master."""
    return Command(keys.slot, ("TIME",), lambda answer: int(answer[0]) * 1000 + int(answer[1]) // 1000)


def script_clock_ms(keys: ControlKeys, epoch: Epoch) -> Call[int]:
    """The time by the clock of scripts, which a test may move: no entry is read. Raises Stale in another engine."""
    return Call.of("schedules", keys, [epoch, NOW], lambda answer: int(body(answer)[0]) // 1000)


def add_change(keys: ControlKeys, text: bytes) -> Command[int]:
    """Notes a change of an operator. ``engine.changes`` has its form."""
    return Command(keys.slot, ("LPUSH", keys.changes, text), int)


def keep_changes(keys: ControlKeys, count: int) -> Command[None]:
    return Command(keys.slot, ("LTRIM", keys.changes, 0, count - 1), lambda _: None)


def read_changes(keys: ControlKeys) -> Command[list[bytes]]:
    """The newest first."""
    return Command(keys.slot, ("LRANGE", keys.changes, 0, -1), list)


def find_keys(slot: int, cursor: int, pattern: str) -> Command[tuple[int, list[str]]]:
    """The next cursor, 0 at the end, and some of the keys that match, at the master of a slot."""
    words: list[Word] = ["SCAN", cursor, "MATCH", pattern, "COUNT", 1000]
    return Command(slot, words, lambda answer: (int(answer[0]), list(map(text_of, answer[1]))))


def remove_key(key: str) -> Command[int]:
    return Command(slot_of(key), ("UNLINK", key), int)


def alive(keys: ControlKeys, now_ms: int) -> Command[list[str]]:
    """The dispatchers that count as alive, sorted.

    The set of members alone does not tell which of them live: the last one to die is in it until another one gives a
    heartbeat.
    """
    return Command(
        keys.slot,
        ("ZRANGEBYSCORE", keys.members, now_ms, "+inf"),
        lambda names: sorted(map(text_of, names)),
    )


def living(keys: ControlKeys) -> Command[int]:
    """The number of dispatchers, those that died in the last seconds included."""
    return Command(keys.slot, ("ZCARD", keys.members), int)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The members, by the clock of the control slot's master."""

    now_us: int
    members: Collection[str] | None  # None: they and ``unreached`` are as the caller knows them
    stamp: Stamp  # of the stored topology; epoch 0 when there is none
    topology: Fields  # empty when it is the one that the caller knows
    joined: bool  # true if the process was no member before: then nothing is stored of an earlier report
    unreached: Mapping[str, Collection[int]]
    """Process → the shards that it said it can't reach."""
    word: str  # another one after each change of these two; empty where a change may leave it as it is
    others_ms: int | None  # the instant until which the first of the other members counts as alive


def heartbeat(
    keys: ControlKeys,
    process: str,
    *,
    alive_ms: int,
    others_ms: int,
    epoch: Epoch,
    report: bytes = b"",
    unreached: Collection[int] = (),
    word: str = "",
    leave: bool = False,
) -> Call[HeartbeatAnswer]:
    """``alive_ms``: how long the process counts as alive without another heartbeat; ``others_ms``: how long the others
    do at most, whatever they said themselves. ``report``: empty when it is the one before. ``unreached``: the shards
    that the process can't reach. ``word``: that of the members as the caller knows them.
    """
    stay, shards = "leave" if leave else "stay", ",".join(map(str, sorted(unreached)))
    words: list[Word] = [process, NOW, alive_ms, others_ms, epoch, stay, keys.news, report, shards, word]

    def decode(answer: list[Any]) -> HeartbeatAnswer:
        told = by_name(answer)
        present, unreached = text_of(told["word"]), pairs(told["unreached"])
        return HeartbeatAnswer(
            now_us=int(told["now_us"]),
            members=None if word and present == word else list(map(text_of, told["members"])),
            stamp=Stamp.of(told["epoch"]),
            topology=pairs(told["topology"]),
            joined=bool(told["joined"]),
            unreached={text_of(name): _shards(shards) for name, shards in unreached.items() if name},
            word=present,
            others_ms=number_of(told["others_ms"]) if told["others_ms"] else None,
        )

    return Call.of("heartbeat", keys, words, decode)


def _shards(text: bytes) -> frozenset[int]:
    """The shards of a list with commas; a word that is the number of none is passed over, however long it is."""
    return frozenset(int(word) for word in text.split(b",") if word.isdigit() and len(word) < 6)


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """The fields of a flat list."""
    fields = iter(flat)
    return dict(zip(fields, fields, strict=True))


def report(
    keys: ControlKeys,
    epoch: Epoch,
    worker: str,
    *,
    alive_ms: int,
    report: bytes = b"",
    leave: bool = False,
) -> Call[bool]:
    """A worker's heartbeat. ``report``: empty when it is the one before. Returns True if the worker was not known
    before: then nothing is stored of an earlier report. Raises Stale in another engine.
    """
    return Call.of(
        "report",
        keys,
        [epoch, worker, NOW, alive_ms, "leave" if leave else "stay", report],
        lambda answer: bool(body(answer)[0]),
    )


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of an engine, by the clock of the control slot's master."""

    now_us: int
    dispatchers: Mapping[str, int]  # name → the instant until which it counts as alive, in ms
    workers: Mapping[str, int]  # the same
    reports: Mapping[str, bytes]


def fleet(keys: ControlKeys) -> Call[Processes]:
    return Call.of("fleet", keys, [NOW], _processes)


def _processes(answer: list[Any]) -> Processes:
    now_us, dispatchers, workers, reports = body(answer)
    return Processes(
        now_us=int(now_us),
        dispatchers=_untils(dispatchers),
        workers=_untils(workers),
        reports={text_of(name): text for name, text in pairs(reports).items()},
    )


def _untils(flat: Sequence[bytes]) -> dict[str, int]:
    return {text_of(name): number_of(until) for name, until in pairs(flat).items()}
