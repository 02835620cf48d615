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

from shardq.core.drivers.faults import ErrorReply, Fault, Reaction, of_reply
from shardq.core.drivers.settings import Settings, bracketed, located
from shardq.core.threads import begun
from shardq.errors import AccessDenied, EmbeddedFault, InvalidUrl, ServerFault, ServerTooOld, Unavailable

# A node that hangs must not keep a driver from asking the next one.
ASK_TIMEOUT_S = 1.0
# A server that is probed the other way, with TLS or without, answers at once or not at all.
LOOK_TIMEOUT_S = 0.3
OLDEST = (7, 0)
_AT_EACH_CALL = "it is started again, every few seconds, for as long as anything is asked of it"


SLOTS = 16384


class SlotMap:
    """Slot → address of its master: ``host:port``, or the path of a unix socket. Never changed: a correction makes a
    new one.
    """

    __slots__ = ("ids", "nodes", "owners")

    def __init__(
        self, nodes: Sequence[str], owners: list[str | None] | None = None, ids: Mapping[str, str] | None = None
    ) -> None:
        """Without owners the first node serves every slot."""
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


def discover(settings: Settings, known: Mapping[str, str | None], *, doubted: str = "") -> Conversation:
    """The slot map, or why it can't be had.

    ``known``: address → id of the nodes of the cluster met before; one that is ``doubted`` is asked last: it may hang.
    """
    if settings.kind == "cluster":
        return _of_cluster(settings, known, doubted)
    if settings.kind == "sentinel":
        return _of_sentinels(settings)
    return _of_single(settings)


def _of_single(settings: Settings) -> Conversation:
    if settings.locate is None:
        return SlotMap(settings.addresses)
    where = yield Locate(settings.locate)
    return where if isinstance(where, Fault) else SlotMap((where,))


def _of_cluster(settings: Settings, known: Mapping[str, str | None], doubted: str) -> Conversation:
    # In random order: one node with an old map must not be believed by every caller every time.
    ids = dict(random.sample(list(known.items()), len(known)))
    ids |= {seed: None for seed in settings.addresses if seed not in known}
    asked = sorted(ids.items(), key=lambda each: each[0] == doubted)
    failed_with: list[tuple[str, Fault]] = []
    for address, node_id in asked:
        answer = yield from _asked(settings, Query(address, ("CLUSTER", "SLOTS"), node_id=node_id))
        if isinstance(answer, Fault):
            failed_with.append((address, _no_node(answer)))
            if answer.is_other_node and address in settings.addresses:
                # where all nodes are others the cluster was set up anew, and the URL names it
                asked.append((address, None))
        elif answer:
            return from_cluster_slots(answer, asked=address)
        else:
            failed_with.append((address, Fault(Reaction.WAIT, Unavailable, "it knows of no slot that is served")))
    return _of_all(failed_with)


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


def _of_sentinels(settings: Settings) -> Conversation:
    failed_with: list[tuple[str, Fault]] = []
    for sentinel in settings.addresses:
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", settings.service)
        answer = yield from _asked(settings, Query(sentinel, words, sentinel=True))
        if isinstance(answer, Fault):
            failed_with.append((sentinel, _no_sentinel(answer)))
            continue
        if answer is None:
            text = f"the sentinel does not know the service {settings.service!r}"
            failed_with.append((sentinel, Fault(Reaction.WAIT, Unavailable, text)))
            continue
        master = located(answer[0].decode(), int(answer[1]), asked=sentinel)
        # Sentinels name the old master until they have agreed on a new one; only its own word counts.
        role = yield from _asked(settings, Query(master, ("ROLE",)))
        if isinstance(role, Fault):
            failed_with.append((f"{master}, named by the sentinel {sentinel}", role))
        elif role[0] == b"master":
            return SlotMap((master,))
        else:
            text = f"it was named as the master by {sentinel} but is a {role[0].decode()}"
            failed_with.append((master, Fault(Reaction.WAIT, Unavailable, text)))
    return _of_all(failed_with)


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
            advice = "write rediss:// for redis://, and rediss+cluster:// for redis+cluster://"
            return Fault(Reaction.END, InvalidUrl, "its port is for TLS", advice=advice)
    else:
        first = yield Probe(ask.address, b"PING\r\n")
        if first[:1] in (b"+", b"-"):
            advice = "write redis:// for rediss://, and redis+cluster:// for rediss+cluster://"
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
