"""What a gateway does for workers over HTTP: claims by long poll, settlements and longer leases. The calls are in
``work``.

A gateway keeps no state of a claim: what was given out is in the receipts, so any process settles it, and one that is
killed loses nothing that was answered. What is kept is for speed alone: consumers, of a service, its topics and its
lease, which the next claim of the same kind uses again.

A claim waits as a consumer does, registered in the engine: a task goes to the claim that has waited longest. It ends
early when its client has gone, or the gateway ends; what it got then is given back, which counts no attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shardq import AsyncEngine
from shardq.core.consumer.aio import AsyncConsumer
from shardq.core.consumer.background import BackgroundTasks
from shardq.core.consumer.claim_state import Claims
from shardq.core.consumer.claiming import give_back_leases
from shardq.core.consumer.settling import back_unbegun, extend, per_shard
from shardq.core.layout.words import UNENCODABLE
from shardq.core.model.record import JSON, RAW, Builtin, Codec, EncodedPayload, as_stored, decode_payload
from shardq.core.model.task import Delivery
from shardq.core.operation import Operation, arun
from shardq.engine.around import EngineAccess
from shardq.errors import PayloadNotDecodable
from shardq.features.listing import line
from shardq.http.problems import Refusal
from shardq.http.receipts import consumer_of, receipt_of
from shardq.http.report import GatewayReport
from shardq.http.settling import Settled, Verdicts, Wanted, rounds, settle_wanted

MOST_WAITS = 1000
"""Claims at once in one process, half of them of one service. Each keeps a connection, and a consumer of 10 KB."""

MOST_TASKS = 100
MOST_TOPICS = 100
LONGEST_WAIT_S = 50.0
"""Less than the 60 s after which proxies give up."""

DEFAULT_WAIT_S = 20.0
DEFAULT_LEASE_S = 30.0
LEAST_LEASE_S, LONGEST_LEASE_S = 5.0, 3600.0

MOST_BYTES = 16 * 1024 * 1024
"""Of the tasks in one answer. What passes it is given back."""

Seconds = Annotated[float, Meta(ge=LEAST_LEASE_S, le=LONGEST_LEASE_S)]


class ClaimBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A claim. ``topics``: in their order of priority, or with weights by which they share. ``lease``: how long each
    task is held, in seconds, unless it is settled or extended before.
    """

    topics: (
        Annotated[list[str], Meta(min_length=1, max_length=MOST_TOPICS)]
        | Annotated[dict[str, int], Meta(min_length=1, max_length=MOST_TOPICS)]
    )
    max: Annotated[int, Meta(ge=1, le=MOST_TASKS)] = 1
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] = DEFAULT_WAIT_S
    lease: Seconds = DEFAULT_LEASE_S


class ClaimedTask(msgspec.Struct, frozen=True):
    """A task that was given out, under a lease. The payload is as in a list of tasks: ``payload_base64`` has the bytes
    of what is not JSON or text.
    """

    receipt: str
    id: str
    topic: str
    attempt: int
    failures: int
    lapses: int
    headers: Mapping[str, str]
    tags: tuple[str, ...]
    key: str | None
    fence: int
    url: str | None
    payload: Any | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class Claimed(msgspec.Struct, frozen=True):
    """The tasks of a claim, none if none came in time."""

    tasks: list[ClaimedTask]


_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class _Pooled:
    """A consumer that claims of one kind share, one after the other."""

    consumer: AsyncConsumer
    bytes_each: int = 0
    """The size of the tasks in its last claim, on average."""
    is_closed: bool = False

    def close(self, _: object = None) -> None:
        """Ends its wait. It is not used again."""
        self.is_closed = True
        self.consumer.close()


@dataclass(frozen=True, slots=True)
class Handed:
    """The answer to a claim, until it is sent."""

    body: bytes
    tasks: Sequence[Delivery]


NOTHING = Handed(b'{"tasks":[]}', ())


class Work:
    """What the processes of a gateway do for workers. Of one event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine: AsyncEngine = engine
        self._access = EngineAccess(engine)
        self._idle: dict[object, list[_Pooled]] = {}
        """By what they claim, the kind that was used last at the end."""
        self._idle_count = 0
        self._claiming: dict[_Pooled, str] = {}
        """Consumers in a claim, and for which service."""
        self._waits = Counter[str]()
        self._background = BackgroundTasks()
        self._report = GatewayReport(MOST_WAITS)
        self._settler: Claims | None = None
        self._opening = asyncio.Lock()
        self.is_ending: bool = False

    @property
    def waits(self) -> int:
        """The claims that are under way."""
        return len(self._claiming)

    # ---- claim

    async def claim(self, service: str, wanted: ClaimBody, gone: asyncio.Future[Any]) -> Handed:
        """Claims for a service, and waits for the first task. ``gone``: done once the client has gone, which ends the
        wait. Raises Refusal if too many wait.

        Whoever calls it sends the answer, or has it ``undone``.
        """
        topics = tuple(wanted.topics)
        with self._consumer(service, wanted) as pooled:
            self._report.note_claim(topics)
            await self._opened()
            if gone.done() or self.is_ending:
                return NOTHING
            gone.add_done_callback(pooled.close)
            try:
                most = MOST_BYTES // pooled.bytes_each if pooled.bytes_each else wanted.max
                tasks = await pooled.consumer.claim(max(1, min(most, wanted.max)), wait=wanted.wait)
            finally:
                gone.remove_done_callback(pooled.close)
            self._report.note_claim(topics)
            body, fitting = _answer(tasks)
            if tasks:
                pooled.bytes_each = len(body) // fitting
        if rest := tasks[fitting:]:
            await self._give_back(rest)
        return Handed(body, tasks[:fitting])

    async def undone(self, handed: Handed) -> None:
        """Gives back what could not be sent."""
        if handed.tasks:
            await self._give_back(handed.tasks)

    @contextlib.contextmanager
    def _consumer(self, service: str, wanted: ClaimBody) -> Iterator[_Pooled]:
        """Lends a consumer for a claim."""
        most = MOST_WAITS // 2 if service else MOST_WAITS  # without tokens all are one service
        if self._waits[service] >= most or len(self._claiming) >= MOST_WAITS:
            raise Refusal(
                429,
                f"{self._waits[service]:,} claims of this service wait here, and {len(self._claiming):,} in all; "
                f"{most:,} and {MOST_WAITS:,} may: claim more tasks at once by max, or run more gateways",
            )
        weighed = tuple(wanted.topics.items()) if isinstance(wanted.topics, dict) else tuple(wanted.topics)
        kind = (service, weighed, wanted.lease)
        pooled = self._taken(kind)
        if pooled is None:
            name = consumer_of(service)
            pooled = _Pooled(self._access.consumer(wanted.topics, lease=wanted.lease, name=name, decode=handed_on))
        self._claiming[pooled] = service
        self._waits[service] += 1
        try:
            yield pooled
        except BaseException:
            pooled.close()
            raise
        finally:
            del self._claiming[pooled]
            self._waits[service] -= 1
            if not self._waits[service]:
                del self._waits[service]
            if not pooled.is_closed:
                self._put_back(kind, pooled)

    def _taken(self, kind: object) -> _Pooled | None:
        some = self._idle.pop(kind, None)
        if some is None:
            return None
        pooled = some.pop()
        self._idle_count -= 1
        if some:
            self._idle[kind] = some
        return pooled

    def _put_back(self, kind: object, pooled: _Pooled) -> None:
        self._idle[kind] = [*self._idle.pop(kind, ()), pooled]
        self._idle_count += 1
        if self._idle_count > MOST_WAITS:
            oldest = next(iter(self._idle))
            self._taken(oldest)

    async def _give_back(self, tasks: Iterable[Delivery]) -> None:
        settler = await self._opened()
        await self._run(give_back_leases(settler, back_unbegun(tasks)))

    # ---- settle and extend

    async def settle(self, wanted: Sequence[Wanted]) -> Settled:
        """Settles leases. Raises the error of the servers if none of them has settled anything."""
        settler = await self._opened()
        verdicts: Verdicts = await self._run(settle_wanted(settler, wanted))
        self._report.note_settled(verdicts.done)
        return verdicts.answer()

    async def extend(self, leases: Sequence[tuple[str, Delivery]], lease_ms: int) -> list[str]:
        """Extends leases, each with its receipt. Returns the receipts of those that are lost. If a server does not
        answer, it raises, though others have done it: to do it again is harmless.
        """
        settler = await self._opened()
        lost: list[str] = []
        # two of one task are not asked about at once: answers come by ids
        for some in rounds(leases, lambda each: each[1].id):
            statuses = await self._run(extend(settler, per_shard(lease for _, lease in some), lease_ms))
            lost += (receipt for receipt, lease in some if lease.id in statuses)
        return lost

    # ---- beginning and end

    async def _opened(self) -> Claims:
        """The claims by which leases are settled, whoever has claimed them. Opens the engine at first."""
        if self._settler is None:
            async with self._opening:
                if self._settler is None:
                    driver = await self._access.driver_beside()
                    self._report.start(driver, self._access.cache)
                    self._settler = self._access.settler()
        return self._settler

    async def _run(self, steps: Operation[Any]) -> Any:
        """Carries it out, also if the caller is cancelled meanwhile."""
        deadline = time.monotonic() + self._access.options.timeout
        driver = await self._access.open_driver()
        return await self._background.finish(arun(driver, steps, deadline=deadline))

    def end(self) -> None:
        """Ends the claims that wait, with what they have; later ones don't wait. The gateway is about to end."""
        self.is_ending = True
        for pooled in self._claiming:
            pooled.close()

    async def close(self) -> None:
        """Ends what still runs, and signs off. The engine is still open."""
        self.end()
        await self._background.close()
        await asyncio.to_thread(self._report.stop)


def handed_on(record: bytes, own: Codec | None = None, id: str = "") -> tuple[Any, Mapping[str, str], tuple[str, ...]]:
    """Reads a record: the payload as it is stored; if the engine has a codec of its own, such as an encrypting one, as
    JSON.
    """
    if own is None or isinstance(own, Builtin):
        return as_stored(record, own, id)
    payload, headers, tags = decode_payload(record, own, id)
    if isinstance(payload, bytes):
        return EncodedPayload(payload, RAW.name), headers, tags
    try:
        return EncodedPayload(_encode(payload), JSON.name), headers, tags
    except UNENCODABLE as exc:
        raise PayloadNotDecodable(f"JSON has nothing for a payload of {type(payload).__name__}: {exc}") from exc


def _answer(tasks: Sequence[Delivery]) -> tuple[bytes, int]:
    """The answer with the first of these tasks, one at least, and how many they are: all that fit."""
    parts, size = list[bytes](), 0
    for task in tasks:
        part = _encode(_shown(task))
        size += len(part) + 1
        if parts and size > MOST_BYTES:
            break
        parts.append(part)
    return b'{"tasks":[' + b",".join(parts) + b"]}", len(parts)


def _shown(task: Delivery) -> ClaimedTask:
    stored: EncodedPayload = task.payload
    return ClaimedTask(
        receipt=receipt_of(task),
        id=task.id,
        topic=task.topic,
        attempt=task.attempt,
        failures=task.failures,
        lapses=task.lapses,
        headers=task.headers,
        tags=task.tags,
        key=task.key,
        fence=task.fence,
        url=task.url,
        **line.payload(stored.data, stored.codec),
    )
