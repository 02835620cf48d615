"""Settings of the servers that can lose tasks, or have: logged at open, once a process and server; told by ``stats()``.

Nothing here ever fails: a server that may not say (an ACL, a command renamed) or is slow is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from shardq.calls import observe
from shardq.calls.request import Command
from shardq.errors import ShardqError
from shardq.operation import Many, Operation

T = TypeVar("T")

log = logging.getLogger("shardq.advice")

TIMEOUT_S = 0.5
"""The bound of each of two trips: opening must not wait long for what is only good to know."""

_said: set[Advice] = set()
"""The advice that this process has logged."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that is wrong with one server. ``server`` is its run id: another on its port is another."""

    server: str
    text: str
    lost: bool = False
    """Tasks may be lost by now: a problem, not only a warning."""


def given(slots: Mapping[str, int], unserved: int) -> Operation[list[Advice]]:
    """Finds what to change at these nodes. ``slots``: one slot of each; ``unserved``: how many no node serves."""
    found = []
    if unserved:
        found.append(Advice("", f"{unserved:,} slots of the cluster are served by no node: shards there can't be used"))
    natures: dict[str, observe.Nature] = yield from _asked({node: observe.nature(slot) for node, slot in slots.items()})
    unsure = {node: observe.saves(slots[node]) for node, nature in natures.items() if not nature.appends}
    forgetful = {node for node, saves in (yield from _asked(unsure)).items() if not saves}
    for node, nature in sorted(natures.items()):
        # no key of ours expires: the policies for those that do evict nothing here
        if nature.maxmemory and nature.policy.startswith("allkeys-"):
            text = (
                f"{node} evicts tasks without an error when it reaches its maxmemory of {nature.maxmemory:,} bytes "
                f"(maxmemory-policy {nature.policy}): set maxmemory-policy to noeviction"
            )
            found.append(Advice(nature.server, text))
            if nature.evicted:
                # how many tells nothing: one key may hold the tasks of a shard
                text = (
                    f"{node} has evicted keys since it started, and tasks of this engine may be among them "
                    f"(maxmemory-policy {nature.policy}): set maxmemory-policy to noeviction"
                )
                found.append(Advice(nature.server, text, lost=True))
        if node in forgetful:
            text = f"{node} keeps nothing on its disk, so a restart loses every task: set appendonly to yes"
            found.append(Advice(nature.server, text))
    return found


def _asked(requests: dict[str, Command[T]]) -> Operation[dict[str, T]]:
    """The answers of those nodes that give one."""
    node_of = {id(request): node for node, request in requests.items()}
    answers = (yield Many(list(requests.values()))) if requests else []
    return {node_of[id(request)]: said for request, said in answers if not isinstance(said, ShardqError)}


def say(found: Iterable[Advice]) -> None:
    """Log what this process has not said yet."""
    for advice in found:
        if advice not in _said:
            _said.add(advice)
            log.warning("%s", advice.text)
