"""How a driver learns who serves what: the server itself, any node of the cluster, or the sentinels.

Conversations are written once, as generators that yield an ``Ask`` and are sent its answer or a ``Fault``;
each driver holds them in its own way of waiting. No I/O here.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from shardq.drivers.faults import Fault, Reaction, of_reply
from shardq.drivers.settings import Settings
from shardq.drivers.slots import SlotMap, from_cluster_slots, located
from shardq.errors import InvalidUrl, ServerFault, ServerTooOld, Unavailable

# A node that hangs must not keep a driver from asking the next one.
ASK_TIMEOUT_S = 1.0
# Callers that all met the same fault share one answer. A cluster is asked 10 times a second at most.
REFRESH_EVERY_S = 0.1
OLDEST = (7, 0)


@dataclass(frozen=True, slots=True)
class Ask:
    """One command to one address, on a connection of its own."""

    address: str
    words: tuple[str, ...]
    sentinel: bool = False


Conversation: TypeAlias = Generator[Ask, Any, "SlotMap | Fault"]


def discover(settings: Settings, known: Sequence[str], *, doubted: str = "") -> Conversation:
    """The slot map, or why it can't be had.

    ``known`` are nodes of the cluster met before; one that is ``doubted`` is asked last: it may hang.
    """
    if settings.kind == "cluster":
        return _of_cluster(settings, known, doubted)
    if settings.kind == "sentinel":
        return _of_sentinels(settings)
    return _of_single(settings)


def _of_single(settings: Settings) -> Conversation:
    yield from ()
    return SlotMap(settings.addresses)


def _of_cluster(settings: Settings, known: Sequence[str], doubted: str) -> Conversation:
    # In random order: one node with an old map must not be believed by every caller every time.
    unmet = (seed for seed in settings.addresses if seed not in known)
    addresses = [*random.sample(known, len(known)), *unmet]
    addresses.sort(key=lambda address: address == doubted)
    last = Fault(Reaction.WAIT, Unavailable, "no node of the cluster was asked")
    for address in addresses:
        answer = yield Ask(address, ("CLUSTER", "SLOTS"))
        if isinstance(answer, Fault):
            last = answer
            if "cluster support disabled" in answer.text:
                raise InvalidUrl(f"{address} is not a node of a Redis Cluster; for a single server write redis://")
        elif answer:
            return from_cluster_slots(answer, asked=address)
        else:
            last = Fault(Reaction.WAIT, Unavailable, f"{address} knows of no slot that is served")
        if last.reaction is Reaction.END:
            return last
    return last


def _of_sentinels(settings: Settings) -> Conversation:
    last = Fault(Reaction.WAIT, Unavailable, "no sentinel was asked")
    for sentinel in settings.addresses:
        answer = yield Ask(sentinel, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", settings.service), sentinel=True)
        if isinstance(answer, Fault):
            last = answer
            if last.reaction is Reaction.END:
                return last
            continue
        if answer is None:
            text = f"sentinel {sentinel} does not know the service {settings.service!r}"
            last = Fault(Reaction.WAIT, Unavailable, text)
            continue
        master = located(answer[0].decode(), int(answer[1]), asked=sentinel)
        # Sentinels name the old master until they have agreed on a new one; only its own word counts.
        role = yield Ask(master, ("ROLE",))
        if isinstance(role, Fault):
            last = role
            if last.reaction is Reaction.END:
                return last
        elif role[0] == b"master":
            return SlotMap((master,))
        else:
            text = f"{master} was named as the master but is a {role[0].decode()}"
            last = Fault(Reaction.WAIT, Unavailable, text)
    return last


def greet(settings: Settings, nodes: Sequence[str]) -> Generator[Ask, Any, str | Fault]:
    """The version of the masters, like ``valkey 9.1.2``, or why it can't be had; loading counts as that.

    Masters of a cluster that are down are passed over while any is up. One that is too old raises.
    """
    version = ""
    last = Fault(Reaction.WAIT, Unavailable, "no master is known")
    for address in nodes:
        answer = yield Ask(address, ("INFO",))
        if isinstance(answer, Fault):
            last = answer
            continue
        fields = dict(line.split(":", 1) for line in answer.decode().splitlines() if ":" in line)
        version = check_version(settings, address, fields)
        if fields.get("loading") == "1":
            return of_reply(f"LOADING {address} is loading its data", asked=address)
    return version or last


def check_version(settings: Settings, address: str, info: Mapping[str, str]) -> str:
    """The version in the fields of INFO. Raises when shardq can't work with it."""
    version = info.get("redis_version", "")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(parts) < 2:
        raise ServerFault(f"{address}: INFO names no version; shardq needs Redis 7.0 or newer, or Valkey")
    if parts < OLDEST:
        raise ServerTooOld(f"{address} is Redis {version}; shardq needs Redis 7.0 or newer, or Valkey")
    if settings.kind != "cluster" and "cluster" in (info.get("redis_mode"), info.get("server_mode")):
        raise InvalidUrl(f"{address} is a node of a Redis Cluster; write redis+cluster://{address}")
    valkey = info.get("valkey_version")
    return f"valkey {valkey}" if valkey else f"redis {version}"
