"""One shard on a real server, whose clock the test sets: seed its state, do one thing, look at all of it.

A ``State`` is every key of the shard by the last part of its name, as plain values: a ZSET as member → score, a HASH
as field → text, a LIST as a list. Bytes are text throughout.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardq.core.calls.control import Copy, open_shard
from shardq.core.calls.request import Call, Command, Word
from shardq.core.drivers.owned import PubSubConnection
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.model.record import RAW, encode_record
from tests.support.heads import encode_head

R = TypeVar("R")

State = dict[str, Any]

T = 1_700_000_000_000
"""Now, in ms, in every test of scripts."""
NOW = f"{T * 1000}"
"""The same as scripts take it."""
EPOCH = Stamp("3:v:e")
OLDER, NEWER = Stamp("2:u:e"), Stamp("4:w:e")

ON_BOTH = pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)

_ZSETS = {"due", "leased", "dead", "seen", "members", "workers", "waiting", "keys", "placed", "alarms", "rests"}


def at(ms: int) -> str:
    """A now that is ``ms`` after T."""
    return f"{(T + ms) * 1000}"


def record(
    payload: str = "", *, max_attempts: int | None = None, nonce: int | None = None, tags: tuple[str, ...] = ()
) -> str:
    """The record of a raw payload."""
    head = encode_head(max_attempts=max_attempts, nonce=nonce, tags=tags)
    stored: str = text(encode_record(RAW, payload.encode(), head))
    return stored


def text(answer: Any) -> Any:
    """An answer with all its bytes as text."""
    if isinstance(answer, bytes):
        return answer.decode("utf-8", "surrogateescape")
    return [text(part) for part in answer] if isinstance(answer, list) else answer


def raw(word: str) -> bytes:
    """What ``text`` was made of."""
    return word.encode("utf-8", "surrogateescape")


def sent(word: Word) -> Word:
    """A word of a command as it is sent."""
    return raw(word) if isinstance(word, str) else word


def meta(**fields: object) -> dict[str, str]:
    """The meta of an open shard."""
    return {"epoch": f"{EPOCH}", "clock": f"{T}"} | {name: f"{value}" for name, value in fields.items()}


def opening(keys: ShardKeys, stamp: Stamp = EPOCH, text: str = "{}", *, anew: bool = False) -> Call[bool]:
    """The call that opens a shard under a topology of one shard."""
    topology = Topology(epoch=stamp.epoch, word=stamp.word, engine=stamp.engine, shards=1)
    return open_shard(keys, topology, Copy(text, {}), word=secrets.token_hex(6), anew=anew)


def seeding(prefix: str, state: Mapping[str, Any]) -> Iterator[list[Word]]:
    """The commands that store this state where nothing is."""
    for name, value in state.items():
        kind = name.partition("/")[0]
        if kind == "ready":
            verb, words = "RPUSH", list(value)
        elif kind in _ZSETS or "permits" in name or "/waiting/" in name:
            verb, words = "ZADD", [word for member, score in value.items() for word in (score, member)]
        else:
            verb, words = "HSET", [word for pair in value.items() for word in pair]
        for start in range(0, len(words), 2000):
            yield [verb, prefix + name, *words[start : start + 2000]]


def _number(score: str) -> int | float:
    number = float(score)
    return int(number) if number.is_integer() else number


class Shard:
    """The keys behind one prefix, those of a shard or the control keys."""

    def __init__(self, driver: Driver, keys: ShardKeys | ControlKeys) -> None:
        self.driver = driver
        self.prefix = keys.prefix
        self.slot = keys.slot

    def run(self, call: Command[R]) -> R:
        """Returns the decoded result of a call."""
        return self.driver.call(call)

    def ask(self, call: Call[Any]) -> Any:
        """The bare answer of a script."""
        return self.driver.call(dataclasses.replace(call, decode=text))

    def do(self, *words: Word) -> Any:
        """Sends one plain command."""
        return self.driver.call(Command(self.slot, [sent(word) for word in words], text))

    def seed(self, state: Mapping[str, Any]) -> None:
        """Stores exactly this state, and no other key."""
        self.clear()
        for words in seeding(self.prefix, state):
            self.do(*words)

    def state(self) -> State:
        """Returns every key of the shard, without the topics of which nothing was dispatched yet: see ``topics``."""
        state = {key.removeprefix(self.prefix): self._value(key) for key in sorted(self._keys())}
        if isinstance(dispatched := state.pop("topics", None), dict):
            dispatched = {topic: count for topic, count in dispatched.items() if count != "0"}
        return state | ({"topics": dispatched} if dispatched else {})

    def topics(self) -> set[str]:
        """Returns the topics that the shard lists."""
        return set(self.do("HKEYS", self.prefix + "topics"))

    def _value(self, key: str) -> Any:
        match self.do("TYPE", key):
            case "list":
                return self.do("LRANGE", key, 0, -1)
            case "zset":
                flat = self.do("ZRANGE", key, 0, -1, "WITHSCORES")
                return {member: _number(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}
            case "hash":
                flat = self.do("HGETALL", key)
                return dict(zip(flat[::2], flat[1::2], strict=True))
            case kind:
                return f"a {kind}"

    def clear(self) -> None:
        if keys := self._keys():
            self.do("UNLINK", *keys)

    def _keys(self) -> list[str]:
        keys: list[str] = self.do("KEYS", self.prefix + "*")
        return keys

    def as_user(self, user: str) -> User:
        return User(self.driver.node_of(self.slot), user)

    def listener(self, *channels: str) -> Listener:
        return Listener(self, channels)


class User:
    """A connection of another user to the shard's server, which gives errors as they are. Context manager."""

    def __init__(self, node: str, user: str) -> None:
        host, _, port = node.rpartition(":")
        self._client = redis.Redis(
            host=host, port=int(port), username=user, password="any", protocol=2, retry=Retry(NoBackoff(), 0)
        )

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, call: Call[Any]) -> Any:
        """The bare answer of a script. Raises redis.ResponseError."""
        command: Callable[..., Any] = self._client.execute_command
        return text(command("EVAL", call.script.text, len(call.keys), *call.keys, *call.words))


def named(answer: list[Any]) -> dict[str, Any]:
    """Name → value, of an answer by name."""
    assert answer[0] == "ok"
    return dict(zip(answer[1::2], answer[2::2], strict=True))


class Listener:
    """A subscription to sharded channels of this shard. Context manager."""

    def __init__(self, shard: Shard, channels: tuple[str, ...]) -> None:
        self._shard = shard
        self._channels = channels
        self._ear: PubSubConnection = shard.driver.pubsub(shard.driver.node_of(shard.slot))

    def __enter__(self) -> Listener:
        for channel in self._channels:
            self._ear.send("SSUBSCRIBE", channel)
            self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self._ear.close()

    def heard(self) -> list[tuple[str, str]]:
        """Returns channel and message of all messages since the last call. A message of its own marks the end."""
        self._shard.do("SPUBLISH", self._channels[0], "<end>")
        heard: list[tuple[str, str]] = []
        while True:
            _, channel, message = self._read()
            if message == "<end>":
                return heard
            heard.append((channel, message))

    def _read(self) -> list[Any]:
        message = self._ear.read(30.0)
        assert message is not None, "no message within 30 s"
        return [text(part) for part in message]


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of a table: what there is, what is called, what it answers, and what is different afterwards."""

    call: Callable[[ShardKeys], Call[Any]]
    answer: Any
    before: State = dataclasses.field(default_factory=dict)
    after: State = dataclasses.field(default_factory=dict)
    """Only what differs; None: the key is gone."""

    def check(self, shard: Shard, keys: ShardKeys) -> None:
        before = {"meta": meta()} | self.before
        shard.seed(before)
        assert shard.ask(self.call(keys)) == self.answer
        assert shard.state() == {name: value for name, value in (before | self.after).items() if value is not None}
