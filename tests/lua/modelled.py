"""A shard on a server of the model, which answers as real ones do and takes a tenth of their time: for tables of what a
server refuses. That its answers and what it leaves are those of servers, refusals too, ``tests.sim.conformance`` shows.
"""

from __future__ import annotations

from typing import Any, TypeVar

from shardq.core.calls.request import Call, Command, Word
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import Shard, raw, sent, text
from tests.sim.model.server import Denials, Failure, Server
from tests.sim.model.values import Hash, List, SortedSet

R = TypeVar("R")


class ModelledShard(Shard):
    """The keys behind the prefix of a shard. There are no others on its server."""

    def __init__(self, server: Server, keys: ShardKeys) -> None:
        self.prefix = keys.prefix
        self._server = server

    def run(self, call: Command[R]) -> R:
        assert isinstance(call, Call)
        result: R = call.decode(self._answered(call))
        return result

    def ask(self, call: Call[Any]) -> Any:
        return text(self._answered(call))

    def refusal(self, call: Call[Any], *, without: str = "") -> str:
        """The error that a call ends with, if any, for a user who may not run one command."""
        self._server.denials = Denials(commands=frozenset([without.encode()] if without else ()))
        try:
            answer = self._carried_out(call)
        finally:
            self._server.denials = Denials()
        return str(text(answer.text)) if isinstance(answer, Failure) else ""

    def _answered(self, call: Call[Any]) -> Any:
        answer = self._carried_out(call)
        assert not isinstance(answer, Failure), answer
        return answer

    def _carried_out(self, call: Call[Any]) -> Any:
        return self._server.run(call.script, call.keys, map(sent, call.words))

    def do(self, *words: Word) -> Any:
        answer = self._server.command(*map(sent, words))
        assert not isinstance(answer, Failure), answer
        return answer

    def clear(self) -> None:
        self._server.space.keys.clear()

    def _keys(self) -> list[str]:
        return [str(text(key)) for key in self._server.space.keys]

    def _value(self, key: str) -> Any:
        match self._server.space.keys[raw(key)]:
            case List() as items:
                return [text(item) for item in items]
            case SortedSet() as members:
                return {text(member): int(score) if score.is_integer() else score for score, member in members.order}
            case Hash() as fields:
                return {text(field): text(value) for field, value in fields.items()}
            case other:
                return f"a {other.kind}"
