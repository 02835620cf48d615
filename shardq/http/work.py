"""Work: claims by long poll, settlements, and longer leases. A worker in any language has what a consumer promises."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from shardq.core.model.checks import duration_ms
from shardq.errors import InvalidOption
from shardq.http.claims import NOTHING, ClaimBody, Claimed, Seconds, Work
from shardq.http.exchange import Answer, Ask, Gateway, Route, client_gone, told_soon
from shardq.http.problems import Refusal
from shardq.http.receipts import is_of, read
from shardq.http.settling import MOST_RECEIPTS, SettleBody, Settled, SettleItem, Wanted, decision_of

if TYPE_CHECKING:
    from shardq.core.model.task import Delivery

CLOSED = {"Connection": "close"}

SETTLE_BYTES = 8 << 20
"""A thousand items with a receipt and a reason each."""

MOMENT_S = 0.05
"""A client that has asked so lately has hardly gone."""


class ExtendBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The leases of these receipts end ``seconds`` from now."""

    receipts: Annotated[list[str], Meta(min_length=1, max_length=MOST_RECEIPTS)]
    seconds: Seconds


class Extended(msgspec.Struct, frozen=True):
    """The receipts whose leases are no longer held."""

    lost: list[str]


async def claim(ask: Ask, body: ClaimBody, query: None) -> Answer:
    """Claims tasks of some topics, and waits for the first of them."""
    for topic in body.topics:
        ask.check("worker", topic)
    work, began = work_of(ask.gateway), time.monotonic()
    gone = asyncio.ensure_future(client_gone(ask.receive))
    try:
        handed = await work.claim(ask.caller.name, body, gone)
        if handed.tasks and time.monotonic() - began > MOMENT_S:
            await told_soon(gone)
        if gone.done():
            await work.undone(handed)
            handed = NOTHING
    finally:
        gone.cancel()
    # no await from here to where it is sent
    undo = partial(work.undone, handed) if handed.tasks else None
    return Answer(handed.body, headers=CLOSED if work.is_ending else {}, undo=undo)


async def settle(ask: Ask, body: list[SettleItem], query: None) -> Answer:
    """Settles what was claimed: acks, retries and others, for each receipt."""
    wanted = [
        Wanted(item.receipt, _lease(ask, item.receipt, place), item, decision_of(item, place))
        for place, item in enumerate(body)
    ]
    return Answer(await work_of(ask.gateway).settle(wanted))


async def extend(ask: Ask, body: ExtendBody, query: None) -> Answer:
    """Lets leases end later."""
    leases = [(receipt, _lease(ask, receipt, place)) for place, receipt in enumerate(body.receipts)]
    return Answer(Extended(await work_of(ask.gateway).extend(leases, duration_ms(body.seconds, "seconds"))))


def work_of(gateway: Gateway) -> Work:
    """The work of an application, which is begun at its first call."""
    if gateway.work is None:
        gateway.work = Work(gateway.engine)
    return gateway.work


def _lease(ask: Ask, receipt: str, place: int) -> Delivery:
    """The lease of a receipt, which is one of the caller's. ``place``: its number in the request, for errors."""
    try:
        lease = read(receipt)
    except InvalidOption as exc:
        raise InvalidOption(f"[{place}]: {exc}") from exc
    if not is_of(ask.caller.name, lease):
        raise Refusal(403, f"[{place}]: this receipt was given to another service; each settles what it has claimed")
    ask.check("worker", lease.topic)
    return lease


_WORKER: dict[str, Any] = {"method": "POST", "roles": ("worker",)}

ROUTES = (
    Route(**_WORKER, path="/v1/claim", handler=claim, body=ClaimBody, answer=Claimed),
    Route(**_WORKER, path="/v1/settle", handler=settle, body=SettleBody, answer=Settled, most_bytes=SETTLE_BYTES),
    Route(**_WORKER, path="/v1/extend", handler=extend, body=ExtendBody, answer=Extended, most_bytes=SETTLE_BYTES),
)
