"""A server as scripts see it: shardq's own Lua, unchanged, run by lupa (Lua 5.1) on commands in plain Python.

One command of a script follows the other, and none is undone: an error in the middle leaves the writes before it done.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import lupa.lua51 as lua

from shardq.core.scripts import Script
from tests.sim.model import numbers
from tests.sim.model.commands import COMMANDS, Command, Reply
from tests.sim.model.keyspace import Keyspace, ModelError, Refused

_REFUSED, _STATUS, _FLAT, _OTHER, _FAILED = 1, 2, 3, 4, 5

_BYTES = {bytes}

_STACK = 7000  # values that Lua's stack takes at once; it ends near 8,000

_OUT_OF_MEMORY = b"OOM command not allowed when used memory > 'maxmemory'."
_READ_ONLY = b"READONLY You can't write against a read only replica."
DENIED = b"ERR ACL failure in script: User %s has no permissions to run the '%s' command"

reached: Callable[[int], object] | None = None
"""Told once by each server that begins while it is set, of each branch that a script with marks takes: ``branches``."""


@dataclass(frozen=True)
class Status:
    """A simple string."""

    text: bytes


@dataclass(frozen=True)
class Failure:
    """An error as an answer."""

    text: bytes
    line: int | None = None
    """Where a script ended by it; None: the script returned it, or it was a plain command."""


Answer = Any
"""bytes, int, None, Status, Failure, or a list of these."""

Word = str | bytes | int | float


def coded(word: Word) -> bytes:
    """A word as it is sent."""
    return word if isinstance(word, bytes) else str(word).encode()


@dataclass
class Denials:
    """What the server refuses now."""

    read_only: bool = False
    full: bool = False
    """It has no memory left."""
    commands: frozenset[bytes] = frozenset()
    """Those that the user may not run."""
    user: bytes = b"default"


class Server:
    """One server with its keys."""

    def __init__(self, space: Keyspace) -> None:
        self.space = space
        self.denials = Denials()
        self._declared: Sequence[bytes] = ()
        self._wrote = False
        self._fault: Exception | None = None
        self._scripts: dict[str, Any] = {}
        self._lua = lua.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        load = self._lua.eval(b"function(text, ...) return assert(loadstring(text, '=model'))(...) end")
        commands = self._lua.table_from(
            {
                name: self._lua.table_from((command.shape.encode(), self._bound(name, command)))
                for name, command in COMMANDS.items()
            }
        )
        floats = self._lua.table_from({b"packed": _packed, b"unpacked": _unpacked})
        text = (resources.files("tests.sim.model") / "redis.lua").read_bytes()
        self._load, self._run, self._run_tables = load(text, commands, floats, reached)

    def run(self, script: Script, keys: Sequence[str], words: Iterable[Word]) -> Answer:
        """Carries a script out. Raises ModelError where it touches a key that is not declared."""
        return self.run_coded(script, [key.encode() for key in keys], [coded(word) for word in words])

    def run_coded(self, script: Script, keys: list[bytes], words: list[bytes]) -> Answer:
        """The same, of what is coded already."""
        loaded = self._scripts.get(script.sha)
        if loaded is None:
            loaded = self._scripts[script.sha] = self._load(script.text.encode())
        self._declared = keys
        self._wrote = False
        try:
            if len(keys) + len(words) < _STACK:
                form, *told = self._run(loaded, len(keys), *keys, *words)
            else:
                table = self._lua.table_from
                form, *told = self._run_tables(loaded, table(keys), table(words))
        finally:
            self._declared = ()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if form == _FLAT:
            return [_plain(each) for each in told]
        if form == _FAILED:
            return Failure(*told)
        if form == _REFUSED:
            return Failure(told[0])
        return Status(told[0]) if form == _STATUS else _plain(told[0] if told else None)

    def command(self, *words: Word) -> Answer:
        """Carries a plain command out, as scripts do."""
        name, *rest = map(coded, words)
        command = COMMANDS.get(name.upper())
        if command is None:
            raise ModelError(f"a command that the model does not know: {name!r}")
        if len(rest) + 1 < abs(command.arity) or 0 < command.arity <= len(rest):
            return Failure(b"ERR wrong number of arguments for '%s' command" % name.lower())
        self._wrote = False
        try:
            self._check(name, command)
            answer = command.run(self.space, *rest)
        except Refused as exc:
            return Failure(exc.text)
        if command.shape == "status":
            return Status(b"OK")
        if not isinstance(answer, tuple):
            return None if answer is False else answer
        told = [None if each is False else each for each in answer]
        return [told[0], told[1:]] if command.shape == "page" else told

    def _check(self, name: bytes, command: Command) -> None:
        denials = self.denials
        if name in denials.commands:
            raise Refused(DENIED % (denials.user, name.lower()))
        if command.writes:
            if denials.read_only:
                raise Refused(_READ_ONLY)
            if denials.full and command.grows and not self._wrote:
                raise Refused(_OUT_OF_MEMORY)
            self._wrote = True

    def _bound(self, name: bytes, command: Command) -> Callable[..., Reply | tuple[None, bytes]]:
        # The inmost loop of all that is simulated: a script calls some ten of these.
        run, space, check, least, exact = (
            command.run,
            self.space,
            self._check,
            abs(command.arity) - 1,
            command.arity > 0,
        )
        all_keys, checks_keys = command.keys == "all", command.keys != "none"

        def asked(*words: Any) -> Any:
            if {*map(type, words)} != _BYTES:
                words = tuple([word if type(word) is bytes else self._word(word) for word in words])
                if None in words:
                    return None, b"ERR Command arguments must be strings or integers"
            if len(words) < least or (exact and len(words) > least):
                return None, b"ERR Wrong number of args calling command from script"
            try:
                if checks_keys and (all_keys or words[0] not in self._declared):
                    self._know(name, words if all_keys else words[:1])
                check(name, command)
                answer = run(space, *words)
            except Refused as exc:
                return None, exc.text
            except Exception as exc:
                self._fault = exc  # Lua makes an error of its own of it
                raise
            if type(answer) is tuple and len(answer) > _STACK // 2:
                return None, None, self._lua.table_from(answer)
            return answer

        return asked

    def _know(self, name: bytes, keys: Iterable[Any]) -> None:
        for key in keys:
            if key not in self._declared:
                raise ModelError(f"{name.decode()} of {key!r}, which is not among the KEYS of its script")

    def _word(self, word: Any) -> bytes | None:
        """A number of Lua as the server writes it; None for what is no word."""
        if type(word) is bool or not isinstance(word, int | float):
            return None
        return self.space.printed(float(word))


def _plain(value: Any) -> Answer:
    """What Lua returned, as a client is answered: numbers are cut to integers, and a list ends at its first nil."""
    if type(value) is bytes:
        return value
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if isinstance(value, int | float):
        return -(1 << 63) if math.isnan(value) else numbers.truncated(value)
    if isinstance(value[b"err"], bytes):
        return Failure(value[b"err"])
    if isinstance(value[b"ok"], bytes):
        return Status(value[b"ok"])
    items: list[Answer] = []
    while (item := value[len(items) + 1]) is not None:
        items.append(_plain(item))
    return items


def _packed(number: float) -> bytes:
    """A double of MessagePack; a float where that has all of it."""
    with contextlib.suppress(OverflowError):
        if struct.unpack(">f", struct.pack(">f", number))[0] == number:
            return b"\xca" + struct.pack(">f", number)
    return b"\xcb" + struct.pack(">d", number)


def _unpacked(data: bytes) -> float:
    number: float = struct.unpack(">f" if len(data) == 4 else ">d", data)[0]
    return number
