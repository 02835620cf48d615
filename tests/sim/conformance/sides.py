"""The two sides of a run: the model, and a real server. Both make an ``Outcome`` of each step."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import hiredis

from cluster.server import Server as RealServer
from shardq.core.scripts import Script, script
from tests.lua.contract import NAMES
from tests.sim.conformance.sampler import HEARD
from tests.sim.conformance.steps import NOW_AT, Outcome, Step
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.numbers import seventeen, shortest
from tests.sim.model.server import DENIED, Denials, Failure, Server, Status
from tests.sim.model.values import Stream

USER = "restricted"
_MARKER = "the end of a step"

# Small keys have an order, and scans give them whole: so every key is a small one.
OPTIONS = {
    "hash-max-listpack-entries": "1000000000",
    "hash-max-listpack-value": "1000000000",
    "zset-max-listpack-entries": "1000000000",
    "zset-max-listpack-value": "1000000000",
    "stream-node-max-entries": f"{Stream.NODE}",
    "stream-node-max-bytes": "0",
    "lua-time-limit": "60000",
}


class Model:
    """The model of a server of one kind: Redis 7.0 prints numbers in a way of its own. ``instead``: scripts that it
    runs in place of ours, by name.
    """

    def __init__(self, kind: str, run_id: bytes, instead: Mapping[str, Script] | None = None) -> None:
        heard = frozenset(channel.encode() for channel in HEARD)
        old = kind == "redis7"
        self._now_us = 0
        self._instead = instead or {}
        self.space = Keyspace(
            now_us=lambda: self._now_us,
            heard=lambda channel: int(channel in heard),
            printed=seventeen if old else shortest,
            run_id=run_id,
            hscan_without_values=not old,
        )
        self._heard = heard
        self._server = Server(self.space)
        self._empty = self.space.snapshot()

    def clear(self) -> None:
        self.space.restore(self._empty)

    def script(self, name: str) -> Script:
        return self._instead.get(name) or script(name, keyed=True)

    def carry_out(self, step: Step, now_us: int = 0) -> Outcome:
        self._now_us = now_us
        self.space.messages.clear()
        self._server.denials = Denials(
            step.read_only, step.full, frozenset({step.denied.encode()} if step.denied else ()), USER.encode()
        )
        if step.script:
            answer = self._server.run_coded(self.script(step.script), list(step.keys), list(step.words))
        else:
            answer = self._server.command(*step.words)
            answer = answer.text if isinstance(answer, Status) else None if step.is_timed else answer
        heard = tuple(message for message in self.space.messages if message[0] in self._heard)
        return Outcome(answer, heard, self.space.dump())


_DUMP = """\
local dump = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else value = redis.call('XRANGE', key, '-', '+') end
  dump[#dump + 1] = {key, kind, redis.call('PTTL', key), value}
end
return dump
"""

# A script that reads the server's clock tells what it read.
_TELLING = (
    "local told = redis local redis = {pcall = told.pcall, call = function(...) local answer = told.call(...) "
    "if ... == 'TIME' then told.call('SET', 'time', answer[1] * 1000000 + answer[2]) end return answer end} "
)

_ENDED = re.compile(rb"^(.*) script: (?:[0-9a-f]{40}, )?on @user_script:(\d+)\.$", re.DOTALL)

_REWORDED = [
    (b"Redis command called from script", b"command called from script"),
    (b"calling Redis command from script", b"calling command from script"),
    (b"Lua redis lib command arguments", b"Command arguments"),
    (b"argument for this redis lib call", b"argument for this call"),
]
"""The words of Redis, and those of Valkey."""

_DENIED = b"ERR The user executing the script can't run this command or subcommand"
"""The words of Redis 7.0."""


class Real:
    """A real server, with a connection that hears the channels, and one of a user that may not do everything. Context
    manager.
    """

    def __init__(self, server: RealServer) -> None:
        self._server = server
        self._main, self._user, self._ear = (_Connection(server.port) for _ in range(3))
        self.run_id = re.search(rb"run_id:(\w+)", self._main.ask("INFO", "server"))[1]  # type: ignore[index]
        self._main.ask("ACL", "SETUSER", USER, "on", "nopass", "+@all", "allkeys", "allchannels")
        self._user.ask("AUTH", USER, "any")
        self._shas = {name: self._main.ask("SCRIPT", "LOAD", script(name, keyed=True).text) for name in NAMES}
        self._telling = {
            name: self._main.ask("SCRIPT", "LOAD", _TELLING + script(name, keyed=True).text) for name in NOW_AT
        }
        self._dump = self._main.ask("SCRIPT", "LOAD", _DUMP)
        for channel in (*HEARD, _MARKER):
            self._ear.ask("SSUBSCRIBE", channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._main, self._user, self._ear):
            connection.close()

    def clear(self) -> None:
        self._main.ask("FLUSHALL")

    def carry_out(self, steps: Sequence[Step]) -> list[Outcome]:
        """Of a step with a command that is denied, alone."""
        places: list[int] = []
        words: list[Sequence[Any]] = []
        for step in steps:
            before, after = _around(step)
            words += before
            places.append(len(words))
            words += [self._words(step), *after, ("EVALSHA", self._dump, 0), ("SPUBLISH", _MARKER, "")]
        if any(step.denied for step in steps):
            assert len(steps) == 1
            answers = self._denied(words, places[0])
        else:
            answers = self._main.ask_all(words)
        heard = self._heard(len(steps))
        outcomes = []
        for step, place, messages in zip(steps, places, heard, strict=True):
            dump = answers[place + 1 + len(_around(step)[1])]
            answer = None if step.is_timed else _answer(answers[place], step)
            outcomes.append(Outcome(answer, messages, _imaged(dump)))
        return outcomes

    def told(self, step: Step) -> tuple[Outcome, int]:
        """Carries out a step, perhaps on the server's own clock, and tells the time that it read; else 0."""
        (outcome,) = self.carry_out([step])
        told = self._main.ask("GET", "time")
        self._main.ask("DEL", "time")
        dump = tuple(each for each in outcome.dump if each[0] != b"time")
        return Outcome(outcome.answer, outcome.messages, dump), int(told or 0)

    def now_us(self) -> int:
        seconds, us = self._main.ask("TIME")
        return int(seconds) * 1_000_000 + int(us)

    def _words(self, step: Step) -> Sequence[Any]:
        if not step.script:
            return step.words
        sha = (self._telling if step.on_server_clock else self._shas)[step.script]
        return ("EVALSHA", sha, len(step.keys), *step.keys, *step.words)

    def _denied(self, words: list[Sequence[Any]], place: int) -> list[Any]:
        (step_words,) = words[place : place + 1]
        command = words[0][-1]
        self._main.ask("ACL", "SETUSER", USER, command)
        answer = self._user.ask(*step_words)
        self._main.ask("ACL", "SETUSER", USER, "+@all")
        return [*words[:place], answer, *self._main.ask_all(words[place + 1 :])]

    def _heard(self, steps: int) -> list[tuple[tuple[bytes, bytes], ...]]:
        heard: list[tuple[tuple[bytes, bytes], ...]] = []
        messages: list[tuple[bytes, bytes]] = []
        while len(heard) < steps:
            _, channel, message = self._ear.read()
            if channel == _MARKER.encode():
                heard.append(tuple(messages))
                messages = []
            else:
                messages.append((channel, message))
        return heard


def _around(step: Step) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """What makes a server refuse, and what ends that."""
    if step.full:
        return [("CONFIG", "SET", "maxmemory", "1")], [("CONFIG", "SET", "maxmemory", "0")]
    if step.read_only:
        return [("REPLICAOF", "127.0.0.1", "1")], [("REPLICAOF", "NO", "ONE")]
    if step.denied:
        return [("", f"-{step.denied.lower()}")], []
    return [], []


class _Connection:
    """Commands in pipelines, and answers with errors as values."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._reader = hiredis.Reader(replyError=_failure)

    def close(self) -> None:
        self._socket.close()

    def ask(self, *words: Any) -> Any:
        return self.ask_all([words])[0]

    def ask_all(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        packed = [hiredis.pack_command(tuple(words)) for words in commands]
        self._socket.sendall(b"".join(packed))
        return [self.read() for _ in packed]

    def read(self) -> Any:
        while (answer := self._reader.gets()) is False:
            data = self._socket.recv(1 << 20)
            assert data, "the server closed a connection"
            self._reader.feed(data)
        return answer


class _Error(Exception):
    def __init__(self, text: str) -> None:
        self.text = text.encode("utf-8", "surrogateescape")
        super().__init__(text)


def _failure(text: str) -> _Error:
    return _Error(text)


def _answer(value: Any, step: Step) -> Any:
    if isinstance(value, list):
        return [_answer(each, step) for each in value]
    if not isinstance(value, _Error):
        return value
    text = value.text.replace(_DENIED, DENIED % (USER.encode(), step.denied.lower().encode()))
    for before, after in _REWORDED:
        text = text.replace(before, after)
    ended = _ENDED.match(text)
    return Failure(ended[1], int(ended[2])) if ended else Failure(text)


def _imaged(dump: Any) -> Any:
    """A dump in the form of the model's."""
    keys = []
    for key, kind, ttl, value in dump:
        assert ttl == -1 or b"}:ends/" in key, f"{key!r} has a time to live"
        image: tuple[Any, ...] = (kind.decode(),)
        if kind == b"string":
            image += (value,)
        elif kind == b"hash":
            image += tuple(sorted(zip(value[::2], value[1::2], strict=True)))
        elif kind == b"list":
            image += tuple(value)
        elif kind == b"zset":
            image += tuple((float(score), member) for member, score in zip(value[::2], value[1::2], strict=True))
        else:
            image += tuple(tuple(entry) for _, entry in value)
        keys.append((key, image))
    return tuple(sorted(keys))
