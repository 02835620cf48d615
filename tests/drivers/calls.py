"""Small calls for the tests of the drivers, and keys in a given range of slots."""

from __future__ import annotations

import itertools
from typing import Any

from cluster.server import Server
from shardq.core.calls.request import Call, Command
from shardq.core.layout.slots import slot_of
from shardq.core.scripts import Script

STORE = "return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)"
STORE_ONCE = "redis.call('HSETNX', KEYS[1], ARGV[1], 1) return 'again'"
TWO_KEYS = "return {redis.call('GET', KEYS[1]), redis.call('INCR', KEYS[2])}"


def raw(answer: Any) -> Any:
    return answer


def script_call(text: str, *keys: str, words: tuple[str, ...] = (), resend: Call[Any] | None = None) -> Call[Any]:
    again = None if resend is None else lambda: resend
    return Call(
        slot=slot_of(keys[0]),
        words=words,
        decode=raw,
        script=Script.of("store", text),
        keys=keys,
        resend=again,
    )


def store(key: str, field: str) -> Call[Any]:
    """Counts a field up; a resend only makes sure that the field exists."""
    return script_call(STORE, key, words=(field,), resend=script_call(STORE_ONCE, key, words=(field,)))


def command(key: str, *words: str | bytes | int) -> Command[Any]:
    """A plain command for the slot of ``key``."""
    return Command(slot_of(key), words, raw)


def in_blpop(server: Server) -> set[str]:
    """The connections that wait in a BLPOP. One that did so before may be another test's, not yet noticed as ended."""
    lines = str(server.ask("CLIENT", "LIST")).splitlines()
    return {dedicated.partition(" ")[0] for dedicated in lines if " cmd=blpop " in dedicated}


def keys_of(name: str, count: int) -> list[str]:
    """Keys in slots all over the cluster."""
    return [f"{name}:{{{number * 7919 % 16384}}}" for number in range(count)]


def key_in(name: str, slots: range) -> str:
    """Returns a key whose slot is in a range, with a tag, so that other keys can be in the same slot."""
    return next(key for n in itertools.count() if slot_of(key := f"{name}:{{{n}}}") in slots)
