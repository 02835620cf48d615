"""Receipts: the text by which a worker over HTTP names a lease. No I/O.

A receipt has all that a gateway must know to settle the task, so any process settles what another gave out, and keeps
nothing. It is opaque to clients, and good only for the service that claimed: the name of a lease begins with that of
its consumer, which a gateway gives the service's name, and lists show leases to others.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode

import msgspec

from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.model.attempts import holder_of
from shardq.core.model.ids import topic_of
from shardq.core.model.task import Delivery
from shardq.errors import InvalidOption

LONGEST = 2048
"""Characters: an id has some hundreds of bytes at most."""

_GATEWAY = "http"
"""Begins the names of a gateway's consumers, so that none is that of a consumer in Python."""


class _Receipt(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    shard: int
    token: str
    id: str
    failures: int
    lapses: int
    pushed_s: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Receipt).decode


def consumer_of(service: str) -> str:
    """The name of a service's consumers. A service without a name is that of a gateway without tokens.

    >>> consumer_of("mailer"), consumer_of("")
    ('http.mailer', 'http')
    """
    return f"{_GATEWAY}.{service}" if service else _GATEWAY


def receipt_of(task: Delivery) -> str:
    """The receipt of a delivery.

    >>> held = read(receipt_of(delivery))
    >>> held.id == delivery.id, held.token == delivery.token, held.attempt == delivery.attempt
    (True, True, True)
    """
    receipt = _Receipt(task.shard, task.token, task.id, task.failures, task.lapses, task.pushed_s)
    return urlsafe_b64encode(_encode(receipt)).rstrip(b"=").decode()


def read(text: str) -> Delivery:
    """The delivery of a receipt, without what the task brings. Raises InvalidOption for a text that is no receipt."""
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        found = _decode(b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True))
        if not 0 <= found.shard < MAX_SHARDS or found.failures < 0 or found.lapses < 0 or not found.id:
            raise ValueError("its numbers are none of ours")
    except (ValueError, binascii.Error, msgspec.MsgspecError) as exc:
        raise InvalidOption(
            f"the receipt {text[:40]!r} is not one: give what a claim of this engine has answered, unchanged"
        ) from exc
    return Delivery(
        id=found.id,
        topic=topic_of(found.id),
        payload=None,
        attempt=found.failures + found.lapses + 1,
        headers={},
        token=found.token,
        shard=found.shard,
        failures=found.failures,
        lapses=found.lapses,
        pushed_s=found.pushed_s,
    )


def is_of(service: str, lease: Delivery) -> bool:
    """True if a consumer of this service has claimed it: its name is the service's, and a random part."""
    return holder_of(lease.token).rpartition("-")[0] == consumer_of(service)
