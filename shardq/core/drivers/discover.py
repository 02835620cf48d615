"""Which node serves which slot, as a value, and how that is learnt: from the server itself, any node of the cluster, or
the sentinels. No I/O.

Conversations are generators (``conversations``): they yield questions and are resumed with their answers. Each router
answers them in its own way of waiting.
"""

from __future__ import annotations

import contextlib
import random
import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from shardq.core.drivers.election import Election, Survey, Vote
from shardq.core.drivers.faults import ErrorReply, Fault, Reaction, of_reply
from shardq.core.drivers.settings import Settings, bracketed, located
from shardq.core.threads import begun
from shardq.errors import AccessDenied, EmbeddedFault, InvalidUrl, ServerFault, ServerTooOld, Unavailable

# A node that hangs must not keep a driver from asking the next one.
ASK_TIMEOUT_S = 1.0
# The most servers that are asked if they are masters, too, by a look for health.
SUSPECTS = 5
# A server that is probed the other way, with TLS or without, answers at once or not at all.
LOOK_TIMEOUT_S = 0.3
OLDEST = (7, 0)
_SLOTS = ("CLUSTER", "SLOTS")
_AT_EACH_CALL = "it is started again, every few seconds, for as long as anything is asked of it"


SLOTS = 16384


class SlotMap:
    """Slot → address of its master: ``host:port``, or the path of a unix socket. Never changed: a correction makes a
    new one.
    """

    __slots__ = ("epoch", "ids", "nodes", "owners")

    def __init__(
        self,
        nodes: Sequence[str],
        owners: list[str | None] | None = None,
        ids: Mapping[str, str] | None = None,
        *,
        epoch: int = 0,
    ) -> None:
        """Without owners the first node serves every slot."""
        self.epoch = epoch
        """The config-epoch by which sentinels have named the master."""
        self.nodes: tuple[str, ...] = tuple(nodes)
        self.ids: Mapping[str, str] = ids or {}
        """Address → the id of the cluster's node there, as far as it is known."""
        self.owners: list[str | None] = [nodes[0]] * SLOTS if owners is None else owners
        """Slot → the node that serves it, if one does."""

    def node(self, slot: int) -> str | None:
        """The node that serves this slot, if one does. Slot -1: any node."""
        # another one when it is tried again
        return self.owners[slot] if slot >= 0 else random.choice(self.nodes)

    @property
    def unserved(self) -> int:
        """The number of slots that no node serves."""
        return self.owners.count(None)

    def corrected(self, slot: int, address: str) -> SlotMap:
        """The same map but for one slot, as a MOVED told."""
        nodes = self.nodes if address in self.nodes else (*self.nodes, address)
        owners = self.owners.copy()
        owners[slot] = address
        return SlotMap(nodes, owners, self.ids)

    def __repr__(self) -> str:
        return f"SlotMap({', '.join(self.nodes)}{f'; {self.unserved} slots unserved' if self.unserved else ''})"


def from_cluster_slots(answer: list[Any], *, asked: str) -> SlotMap:
    """Reads CLUSTER SLOTS: a list of [first, last, [host, port, id, …] of the master, replicas…].

    A node that does not know its own host leaves it empty: that is the one we asked, or its host.
    """
    nodes: list[str] = []
    owners: list[str | None] = [None] * SLOTS
    ids: dict[str, str] = {}
    for first, last, master, *_replicas in answer:
        address = located(_text(master[0]), int(master[1]), asked=asked)
        if address not in nodes:
            nodes.append(address)
        if len(master) > 2:
            ids[address] = _text(master[2])
        owners[first : last + 1] = [address] * (last + 1 - first)
    return SlotMap(nodes, owners, ids)


def _text(raw: bytes | str | None) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw or ""


@dataclass(frozen=True, slots=True)
class Query:
    """One command to one address, on a connection of its own. Answered by a value, an ``ErrorReply`` or a ``Fault``."""

    address: str
    words: tuple[str, ...]
    sentinel: bool = False
    node_id: str | None = None
    """See ``conversations.handshake``."""
    also: tuple[str, ...] = ()
    """A second command, sent after the answer to the first one. Then both answers are the answer."""
    within_s: float = ASK_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Probe:
    """Bytes for one address, on a bare connection. Answered by the first bytes that come back; empty if none do."""

    address: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Locate:
    """Asks what runs the server, and may start it, for its address. Answered by the address or a ``Fault``."""

    locate: Callable[[], str]

    def answer(self) -> str | Fault:
        """The answer. Blocks."""
        try:
            return self.locate()
        except EmbeddedFault as exc:
            return Fault(Reaction.WAIT, Unavailable, str(exc), advice=_AT_EACH_CALL, cause=exc)

    def begun(self) -> Future[str | Fault]:
        """The answer, from a thread that goes on when the caller gives up waiting."""
        return begun(self.answer, "shardq-locate")


Question: TypeAlias = Query | Probe | Locate
Conversation: TypeAlias = Generator[Question, Any, "SlotMap | Fault"]


def discover(settings: Settings, present: SlotMap | None, *, doubted: str = "", silent: set[str]) -> Conversation:
    """The slot map, or why it can't be had.

    ``present``: the one that was learnt before. A node that is ``doubted`` is asked last: it may hang. So are sentinels
    that were ``silent`` when they were asked the last time; here it is noted who is now.
    """
    if settings.kind == "cluster":
        return _of_cluster(settings, present, doubted)
    if settings.kind == "sentinel":
        return _of_sentinels(settings, present, doubted, silent)
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
        answer = yield from _asked(settings, Query(address, _SLOTS, node_id=node_id))
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
    return _of_all(failed_with)


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
    members, addresses = _members(answer, asked=seed)
    failed = {address for address, _ in failed_with}
    clusters: dict[frozenset[str], list[str]] = {members: [seed]}
    unheard = [each for each in settings.addresses if each in failed]
    for other in settings.addresses:
        if other == seed or other in addresses or other in failed:
            continue
        told = yield from _answered(Query(other, _SLOTS, within_s=LOOK_TIMEOUT_S))
        if isinstance(told, Fault) or not told:
            unheard.append(other)
            continue
        its, _ = _members(told, asked=other)
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


def _members(answer: list[Any], *, asked: str) -> tuple[frozenset[str], frozenset[str]]:
    """The ids and the addresses of all nodes that an answer to CLUSTER SLOTS names."""
    nodes = [node for _first, _last, *some in answer for node in some]
    addresses = frozenset(located(_text(node[0]), int(node[1]), asked=asked) for node in nodes)
    return frozenset(_text(node[2]) for node in nodes if len(node) > 2), addresses


def _no_node(fault: Fault) -> Fault:
    if "cluster support disabled" in fault.text:
        advice = "for a single server write redis://host:port"
    elif _knows_not("CLUSTER", fault):
        advice = "for a sentinel write redis+sentinel://host:port/service"
    else:
        return fault
    return Fault(Reaction.END, InvalidUrl, "it is not a node of a Redis Cluster", advice=advice)


def _knows_not(command: str, fault: Fault) -> bool:
    return "unknown command" in fault.text and command in fault.text


def _of_sentinels(settings: Settings, present: SlotMap | None, doubted: str, silent: set[str]) -> Conversation:
    failed_with: list[tuple[str, Fault]] = []
    votes: list[Vote] = []
    seen = present.epoch if present is not None else 0
    sentinels = _sentinels(settings)
    for sentinel in sorted(sentinels, key=silent.__contains__):
        vote = yield from _vote(settings, sentinel)
        if isinstance(vote, Vote):
            silent.discard(sentinel)
            votes.append(vote)
            if Election(votes, len(sentinels)).is_decided:
                break
        else:
            silent.add(sentinel)
            failed_with.append((sentinel, vote))
    election = Election(votes, len(sentinels), seen)
    if not votes:
        return _of_all(failed_with)
    if (master := election.master) is None:
        advice = f"ask each for SENTINEL MASTER {settings.service}, and name the sentinels of one service only"
        return Fault(Reaction.WAIT, Unavailable, election.refusal, advice=advice)
    found = SlotMap((master,), epoch=election.epoch)
    is_new = present is None or master not in present.nodes
    if not is_new and not doubted:
        return found
    # Sentinels name the old master until they have agreed on a new one; only its own word counts.
    role = yield from _asked(settings, Query(master, ("ROLE",)))
    if isinstance(role, Fault):
        if present is not None and is_new:
            return found  # what is written to the one that they have replaced is lost
        by = ", ".join(vote.sentinel for vote in votes if vote.master == master)
        failed_with.append((f"{master}, named by {by}", role))
    elif role[0] == b"master":
        return found
    else:
        by = ", ".join(vote.sentinel for vote in votes if vote.master == master)
        text = f"it was named as the master by {by} but is a {role[0].decode()}"
        failed_with.append((master, Fault(Reaction.WAIT, Unavailable, text)))
    for vote in election.dissent:
        text = f"it names {vote.master} (config-epoch {vote.epoch}) against the others, and is not believed"
        failed_with.append((vote.sentinel, Fault(Reaction.WAIT, Unavailable, text)))
    return _of_all(failed_with)


def survey(settings: Settings, present: SlotMap) -> Generator[Question, Any, Survey]:
    """Asks all sentinels, and whoever may take itself for the master beside the one that they name."""
    votes: list[Vote] = []
    silent: dict[str, str] = {}
    suspects = set(present.nodes)
    sentinels = _sentinels(settings)
    for sentinel in sentinels:
        vote = yield from _vote(settings, sentinel)
        if isinstance(vote, Fault):
            silent[sentinel] = vote.text
            continue
        votes.append(vote)
        suspects.add(vote.master)
        # a master that was replaced is kept as a replica, which it will be when it is reached again
        words = ("SENTINEL", "REPLICAS", settings.service)
        told = yield from _answered(Query(sentinel, words, sentinel=True, within_s=LOOK_TIMEOUT_S))
        for fields in () if isinstance(told, Fault) else map(_pairs, told):
            if "s_down" in fields["flags"] or fields["role-reported"] == "master":
                suspects.add(located(fields["ip"], int(fields["port"]), asked=sentinel))
    election = Election(votes, len(sentinels))
    rivals = []
    for suspect in sorted(suspects - {election.master})[:SUSPECTS]:
        role = yield from _answered(Query(suspect, ("ROLE",), within_s=LOOK_TIMEOUT_S))
        if not isinstance(role, Fault) and role[0] == b"master":
            rivals.append(suspect)
    return Survey(election, silent, rivals)


def _sentinels(settings: Settings) -> list[str]:
    return list(dict.fromkeys(settings.addresses))


def _vote(settings: Settings, sentinel: str) -> Generator[Question, Any, Vote | Fault]:
    """The word of a sentinel."""
    # The epoch first: the address is of then or newer, and a failover under way shows it in the second answer only.
    words = ("SENTINEL", "MASTER", settings.service), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", settings.service)
    answers = yield from _asked(settings, Query(sentinel, words[0], sentinel=True, also=words[1]))
    if isinstance(answers, Fault):
        return _no_sentinel(answers)
    fields, named = answers
    if isinstance(named, ErrorReply):
        named = of_reply(named.text, asked=sentinel)
    if isinstance(named, Fault):
        return _no_sentinel(named)
    if named is None:
        return Fault(Reaction.WAIT, Unavailable, f"the sentinel does not know the service {settings.service!r}")
    told = {} if isinstance(fields, ErrorReply | Fault) else _pairs(fields)
    master = located(named[0].decode(), int(named[1]), asked=sentinel)
    others = int(told.get("num-other-sentinels", 0))
    return Vote(sentinel, master, int(told.get("config-epoch", 0)), others + 1)


def _pairs(answer: dict[bytes, Any] | list[Any]) -> dict[str, str]:
    """The fields of an answer in RESP3, or in RESP2."""
    fields = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
    return {_text(name): _text(value) for name, value in fields.items() if isinstance(value, bytes)}


def _no_sentinel(fault: Fault) -> Fault:
    if not _knows_not("SENTINEL", fault):
        return fault
    advice = "for a single server write redis://host:port, for a cluster redis+cluster://host:port"
    return Fault(Reaction.END, InvalidUrl, "it is not a sentinel", advice=advice)


def _of_all(failed_with: Sequence[tuple[str, Fault]]) -> Fault:
    """One fault for those of all that were asked: final if each of them is, with the error of the first that is."""
    for _, fault in failed_with:
        if fault.is_loading:
            return fault
    final = [fault for _, fault in failed_with if fault.is_final]
    first = (final or [fault for _, fault in failed_with])[0]
    common = len({fault.advice for _, fault in failed_with}) == 1
    told: dict[str, list[str]] = {}
    for address, fault in failed_with:
        text = fault.text if common or not fault.advice else f"{fault.text} ({fault.advice})"
        told.setdefault(text, []).append(address)
    return Fault(
        Reaction.END if len(final) == len(failed_with) else Reaction.WAIT,
        first.error,
        "; ".join(f"{', '.join(addresses)}: {text}" for text, addresses in told.items()),
        advice=first.advice if common else "",
        cause=first.cause,
    )


def _asked(settings: Settings, ask: Query) -> Generator[Question, Any, Any]:
    """The answer, or a fault. A server that said nothing is probed the other way, with TLS or without."""
    answer = yield from _answered(ask)
    if not isinstance(answer, Fault) or not answer.mute or ask.address.startswith("/"):
        return answer
    if settings.tls is None:
        first = yield Probe(ask.address, _client_hello())
        if first[:1] in (b"\x16", b"\x15"):  # a handshake, or an alert
            advice = f"write {settings.scheme.replace('redis', 'rediss')}:// for {settings.scheme}://"
            return Fault(Reaction.END, InvalidUrl, "its port is for TLS", advice=advice)
    else:
        first = yield Probe(ask.address, b"PING\r\n")
        if first[:1] in (b"+", b"-"):
            advice = f"write {settings.scheme.replace('rediss', 'redis')}:// for {settings.scheme}://"
            return Fault(Reaction.END, InvalidUrl, "its port is not for TLS", advice=advice)
    return answer


def _answered(ask: Query) -> Generator[Question, Any, Any]:
    """The answer, or a fault."""
    answer = yield ask
    return of_reply(answer.text, asked=ask.address) if isinstance(answer, ErrorReply) else answer


def _client_hello() -> bytes:
    """The first bytes of TLS."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), out, server_hostname="redis").do_handshake()
    return out.read()


def greet(settings: Settings, nodes: Mapping[str, str | None]) -> Generator[Question, Any, str | Fault]:
    """The version of the masters, like ``valkey 9.1.2``, or why it can't be had: a server may be loading.

    Masters of a cluster that are down are passed over while any is up. One that is too old raises. ``nodes``: address →
    its id, see ``conversations.handshake``.
    """
    version = ""
    failed_with: list[tuple[str, Fault]] = []
    for address, node_id in nodes.items():
        answer = yield from _asked(settings, Query(address, ("INFO",), node_id=node_id))
        if isinstance(answer, Fault) and answer.error is AccessDenied:
            # no ACL forbids HELLO; a proxy may not have it
            hello = yield from _answered(Query(address, ("HELLO",), node_id=node_id))
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
    return failed_with[0][1] if settings.kind == "single" else _of_all(failed_with)


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
