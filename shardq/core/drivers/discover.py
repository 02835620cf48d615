"""How the slot map is learnt: from the server itself, any node of the cluster, or the sentinels (``sentinels``); and
the servers' versions. No I/O.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias

from shardq.core.drivers.faults import Fault, Reaction, of_reply
from shardq.core.drivers.questions import LOOK_TIMEOUT_S, Locate, Query, Question, answered, asked_of, knows_not, of_all
from shardq.core.drivers.sentinels import elected
from shardq.core.drivers.settings import Settings, bracketed
from shardq.core.drivers.slot_map import SlotMap, from_cluster_slots, members_of
from shardq.errors import AccessDenied, InvalidUrl, ServerFault, ServerTooOld, Unavailable

OLDEST = (7, 0)
_SLOTS = ("CLUSTER", "SLOTS")


Conversation: TypeAlias = Generator[Question, Any, "SlotMap | Fault"]


def discover(settings: Settings, present: SlotMap | None, *, doubted: str = "", silent: set[str]) -> Conversation:
    """The slot map, or why it can't be had.

    ``present``: the one that was learnt before. A node that is ``doubted`` is asked last: it may hang. So are sentinels
    that were ``silent`` when they were asked the last time; here it is noted who is now.
    """
    if settings.kind == "cluster":
        return _of_cluster(settings, present, doubted)
    if settings.kind == "sentinel":
        return elected(settings, present, doubted, silent)
    return _of_single(settings)


def _of_single(settings: Settings) -> Conversation:
    if settings.locate is None:
        return SlotMap(settings.addresses)
    where = yield Locate(settings.locate)
    return where if isinstance(where, Fault) else SlotMap((where,))


def _of_cluster(settings: Settings, present: SlotMap | None, doubted: str) -> Conversation:
    known: dict[str, str | None] = {}
    if present is not None:
        # In random order: one node with an old map must not be believed by every caller every time.
        known = {node: present.ids.get(node, "") for node in random.sample(present.nodes, len(present.nodes))}
    ids = known | {seed: None for seed in settings.addresses if seed not in known}
    asked = sorted(ids.items(), key=lambda each: each[0] == doubted)
    failed_with: list[tuple[str, Fault]] = []
    for address, node_id in asked:
        answer = yield from asked_of(settings, Query(address, _SLOTS, node_id=node_id))
        if isinstance(answer, Fault):
            failed_with.append((address, _no_node(answer)))
            if answer.is_other_node and address in settings.addresses:
                # where all nodes are others the cluster was set up anew, and the URL names it
                asked.append((address, None))
        elif answer:
            if node_id is None:
                fault = yield from _of_other_clusters(settings, present, address, answer, failed_with)
                if fault is not None:
                    return fault
            return from_cluster_slots(answer, asked=address)
        else:
            failed_with.append((address, Fault(Reaction.WAIT, Unavailable, "it knows of no slot that is served")))
    return of_all(failed_with)


def _of_other_clusters(
    settings: Settings,
    present: SlotMap | None,
    seed: str,
    answer: list[Any],
    failed_with: Sequence[tuple[str, Fault]],
) -> Generator[Question, Any, Fault | None]:
    """The fault of a seed that leads to another cluster than the other seeds do, as one that was retired and serves
    elsewhere by now. Only seeds that its answer does not name are asked, and those that hang are not waited for long.
    """
    members, addresses = members_of(answer, asked=seed)
    failed = {address for address, _ in failed_with}
    clusters: dict[frozenset[str], list[str]] = {members: [seed]}
    unheard = [each for each in settings.addresses if each in failed]
    for other in settings.addresses:
        if other == seed or other in addresses or other in failed:
            continue
        told = yield from answered(Query(other, _SLOTS, within_s=LOOK_TIMEOUT_S))
        if isinstance(told, Fault) or not told:
            unheard.append(other)
            continue
        its, _ = members_of(told, asked=other)
        same = next((each for each in clusters if each & its or not (each and its)), its)
        clusters.setdefault(same, []).append(other)
    if len(clusters) > 1:
        named = "; ".join(f"{', '.join(seeds)}: {len(ids)} nodes" for ids, seeds in clusters.items())
        text = f"the seeds of the URL belong to {len(clusters)} clusters ({named})"
        advice = "name nodes of one cluster only: one of them was retired, and serves in another cluster by now"
        return Fault(Reaction.END, InvalidUrl, text, advice=advice)
    used = set(present.ids.values()) if present is not None else set()
    is_anew = any(fault.is_other_node for _, fault in failed_with)
    if used and members and not used & members and unheard and not is_anew:
        text = f"{seed} is in another cluster than the one used until now, and {', '.join(unheard)}: no answer"
        return Fault(Reaction.WAIT, Unavailable, text)
    return None


def _no_node(fault: Fault) -> Fault:
    if "cluster support disabled" in fault.text:
        advice = "for a single server write redis://host:port"
    elif knows_not("CLUSTER", fault):
        advice = "for a sentinel write redis+sentinel://host:port/service"
    else:
        return fault
    return Fault(Reaction.END, InvalidUrl, "it is not a node of a Redis Cluster", advice=advice)


def greet(settings: Settings, nodes: Mapping[str, str | None]) -> Generator[Question, Any, str | Fault]:
    """The version of the masters, like ``valkey 9.1.2``, or why it can't be had: a server may be loading.

    Masters of a cluster that are down are passed over while any is up. One that is too old raises. ``nodes``: address →
    its id, see ``conversations.handshake``.
    """
    version = ""
    failed_with: list[tuple[str, Fault]] = []
    for address, node_id in nodes.items():
        answer = yield from asked_of(settings, Query(address, ("INFO",), node_id=node_id))
        if isinstance(answer, Fault) and answer.error is AccessDenied:
            # no ACL forbids HELLO; a proxy may not have it
            hello = yield from answered(Query(address, ("HELLO",), node_id=node_id))
            answer = answer if isinstance(hello, Fault) else hello
        if isinstance(answer, Fault):
            failed_with.append((address, answer))
            continue
        fields = _info_fields(answer)
        version = check_version(settings, address, fields)
        if fields.get("loading") == "1":
            return of_reply(f"LOADING {address} is loading its data", asked=address)
    if version:
        return version
    # the URL of a single server names it already
    return failed_with[0][1] if settings.kind == "single" else of_all(failed_with)


def _info_fields(answer: bytes | dict[bytes, Any] | list[Any]) -> dict[str, str]:
    """The fields of INFO; of HELLO those that it has, under INFO's names."""
    if isinstance(answer, bytes):
        return dict(line.split(":", 1) for line in answer.decode(errors="replace").splitlines() if ":" in line)
    told = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
    server, version, mode = (told.get(name, b"").decode() for name in (b"server", b"version", b"mode"))
    return {"redis_version": version, f"{server}_version": version, "redis_mode": mode}


def check_version(settings: Settings, address: str, info: Mapping[str, str]) -> str:
    """The version in the fields of INFO. Raises when shardq can't work with it."""
    version = info.get("redis_version", "")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(parts) < 2:
        raise ServerFault(f"{address}: INFO names no version; shardq needs Redis 7.0 or newer, or Valkey")
    if parts < OLDEST:
        raise ServerTooOld(f"{address} is Redis {version}; shardq needs Redis 7.0 or newer, or Valkey")
    mode = info.get("server_mode") or info.get("redis_mode")
    if settings.kind != "cluster" and mode == "cluster":
        raise InvalidUrl(f"{address} is a node of a Redis Cluster; write redis+cluster://{bracketed(address)}")
    if settings.kind == "single" and mode == "sentinel":
        where = f"redis+sentinel://{bracketed(address)}/service"
        raise InvalidUrl(f"{address} is a sentinel; write {where}, with the name of the service it watches")
    valkey = info.get("valkey_version")
    return f"valkey {valkey}" if valkey else f"redis {version}"
