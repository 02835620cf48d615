"""What a script makes its server do, on the model: each command, and each head of a record that it unpacks.

A script is run with a few lines in front of it, which tell what it calls and then call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

from shardq.core.calls.request import Call
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.scripts import Script
from tests.lua.shard import T, seeding, sent, text
from tests.sim.model.commands import COMMANDS, Command
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import Denials, Server

_TELLING = """
local made, packing = redis, cmsgpack
local function tell(...)
  local words = {...}
  for i = 1, select('#', ...) do words[i] = words[i] == nil and 'nil' or words[i] end
  made.call('TELL', unpack(words))
end
local redis = {
  call = function(...) tell(...) return made.call(...) end,
  pcall = function(...) tell(...) return made.pcall(...) end,
}
local cmsgpack = {
  pack = packing.pack,
  unpack = function(head) tell('unpack', head) return packing.unpack(head) end,
}
"""

FILLER = "\1" * 65
"""The shortest entry that makes a table of a small key: Redis packs those of 64 bytes."""

GUARD = "HMGET meta epoch wake_at clock ahead"
"""What every script on a shard reads first."""


class Watched:
    """The keys behind one prefix on a server of the model. Everything that scripts make it do is told."""

    def __init__(self, keys: ShardKeys | ControlKeys, state: Mapping[str, Any]) -> None:
        self._prefix = keys.prefix
        self._told: list[list[str]] = []
        with mock.patch.dict(COMMANDS, {b"TELL": Command(self._tell, "one", -2, False, False, "none")}):
            self.server = Server(Keyspace(lambda: T * 1000))
        for words in seeding(keys.prefix, state):
            self.server.command(*map(sent, words))

    def made(self, call: Call[Any], *, denied: str = "") -> list[list[str]]:
        """The words of all that a call makes, refused ones too. ``denied``: a command that the user may not run."""
        self._told.clear()
        self.server.denials = Denials(commands=frozenset([denied.encode()] if denied else ()))
        script = Script.of(call.script.name, _TELLING + call.script.text)
        self.answer = self.server.run(script, call.keys, map(sent, call.words))
        return list(self._told)

    def _tell(self, space: Keyspace, *words: bytes) -> int:
        self._told.append([self._shown(text(word)) for word in words])
        return 0

    def _shown(self, word: str) -> str:
        return word.removeprefix(self._prefix)


def lines(made: list[list[str]]) -> list[str]:
    """Each as one line. What is empty is written as '', the filler as FILLER."""
    names = {"": "''", FILLER: "FILLER"}
    return [" ".join(names.get(word, word) for word in words) for words in made]


def words_of(made: list[list[str]], *named: str) -> list[list[str]]:
    """The words of those commands that begin with these words, without them."""
    count = len(named)
    return [words[count:] for words in made if words[:count] == list(named)]
