"""Many tasks pushed by one request: lines of JSON, answered line by line.

The body is bounded, pushed in chunks as it comes, and answered at its end. A client that sends all before it reads
would else stand for ever, as soon as both directions are full. Input without end is a loop of the client's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from shardq.core.model.task import Outcome, Receipt, State, Task
from shardq.core.producer.durable import Durability
from shardq.engine.around import EngineAccess
from shardq.errors import BadInput, PushError, ServerFault, ShardqError, Unanswered
from shardq.features.transfer.lines import UNREADABLE, longest
from shardq.http.exchange import NDJSON, Answer, Ask, Route, told
from shardq.http.problems import Refusal, refusal_of
from shardq.http.tasks import LineBody, task_in

MOST_LINES = 10_000

MOST_BYTES = 16 << 20

CHUNK, CHUNK_BYTES = 4000, 1 << 20
"""Lines that are pushed together, or bytes of them, if that comes first."""

BLOCKS, BLOCK, LEAST = 4 << 20, 1 << 19, 1 << 16
"""Bytes that all batches gather together before they push; of one batch, where there are few; and where there are many.
"""


TURN_S = 5.0
"""When no turn has ended for so long, servers are silent: those that wait go on, so that all learn of it in time."""


class BatchQuery(msgspec.Struct, forbid_unknown_fields=True):
    durability: Durability | None = None
    """Each line is answered only when all replicas or the disk have it."""


class LineForm(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a line. One with an error has the status that a request of its own would have had."""

    line: int
    id: str | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    state: State | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    status: int | UnsetType = UNSET


class EndForm(msgspec.Struct, kw_only=True):
    """The last line. Without it the answer is cut."""

    end: bool = True
    lines: int
    """The lines that were read."""
    done: int
    failed: int
    is_whole: bool
    """False if the last error is why the rest was not read."""


_decode = msgspec.json.Decoder(LineBody).decode
_encode = msgspec.json.encode

_LOST = Unanswered("the answer was lost, so it is unknown if it is stored; send it again with the same id")


async def push(ask: Ask, body: None, query: BatchQuery) -> Answer:
    """Pushes up to 10,000 tasks, in lines of 16 MiB together: a line of JSON for each, as POST /v1/tasks takes them.
    The answer has a line for each, in their order, and a last one with the counts.
    """
    with suppress(ServerFault):  # a spool may take them, unless they have URLs
        await ask.know_routes()
    batch = _Batch(ask, query.durability)
    ask.gateway.batches += 1
    try:
        async for block in _blocks(ask):
            async with _turn(ask):
                await batch.push(block)
    except Refusal as exc:
        if batch.nothing_was_done:
            raise
        batch.failed_at(batch.read + 1, exc)
        return batch.answer(is_whole=False)
    finally:
        ask.gateway.batches -= 1
    return batch.answer(is_whole=True)


async def _blocks(ask: Ask) -> AsyncIterator[bytes]:
    """Yields whole lines, many together. Raises Refusal for a line that is too long."""
    most = longest(EngineAccess(ask.engine).options.max_payload)
    assert ask.stream is not None
    parts, size, tail, lines = list[bytes](), 0, 0, 0
    async for piece in ask.stream.pieces():
        parts.append(piece)
        size += len(piece)
        begun = len(piece) - piece.rfind(b"\n") - 1  # of the last line
        tail = begun if begun < len(piece) else tail + begun
        del piece
        least = min(BLOCK, max(LEAST, BLOCKS // ask.gateway.batches))
        if size > tail and (size >= least or tail > most):
            text = b"".join(parts)
            parts, block = [text[size - tail :]], text[: size - tail]
            size = tail
            del text
            lines += block.count(b"\n")
            yield block
            del block
        if tail > most:
            raise Refusal(413, f"a line may have {most:,} bytes, and line {lines + 1:,} has more")
    if size:
        yield b"".join(parts)


@asynccontextmanager
async def _turn(ask: Ask) -> AsyncIterator[None]:
    """Waits until it is this batch's turn to push. Where servers are silent no turn ends, and none is waited for."""
    gateway, began = ask.gateway, time.monotonic()
    turn = asyncio.ensure_future(gateway.turns.acquire())
    try:
        while not turn.done() and (left_s := max(began, gateway.turn_ended_at) + TURN_S - time.monotonic()) > 0:
            await asyncio.wait({turn}, timeout=left_s)
        yield
    finally:
        if not turn.cancel():  # it has it
            gateway.turns.release()
            gateway.turn_ended_at = time.monotonic()


class _Batch:
    """The lines of one request: a chunk that waits, and the answers so far."""

    def __init__(self, ask: Ask, durability: Durability | None) -> None:
        self._ask = ask
        self._durability = durability
        self._chunk: list[tuple[int, Task]] = []
        self._bytes: list[tuple[int, Task]] = []
        """Those of the chunk whose payload is bytes: they go one by one."""
        self._said: dict[int, bytes] = {}
        """The answers of the chunk."""
        self._size = 0
        self._down: Refusal | None = None
        """Why no task of the last chunk is stored: no server takes any."""
        self._number = 0
        """Of the line, also if it is empty."""
        self.answers: list[bytes] = []
        self.read = 0
        self.done = 0
        self.failed = 0
        self.unknown = 0
        """Those of the failed that may be stored."""

    @property
    def is_full(self) -> bool:
        return len(self._chunk) + len(self._bytes) >= CHUNK or self._size >= CHUNK_BYTES

    @property
    def nothing_was_done(self) -> bool:
        """True if the whole request may be answered by one refusal."""
        return not self.done and not self.unknown

    def take(self, number: int, line: bytes) -> None:
        """Adds a line to the chunk."""
        self.read = number
        self._size += len(line)
        try:
            body: Any = _decode(line.decode())
            task = task_in(self._ask, body)
        except UNREADABLE as exc:
            self.failed_at(number, exc if isinstance(exc, BadInput) else Refusal(400, told(exc, "line")))
        except Refusal as exc:
            self.failed_at(number, exc)
        else:
            (self._chunk if body.payload_base64 is UNSET else self._bytes).append((number, task))

    def failed_at(self, number: int, exc: Exception, id: str | UnsetType = UNSET) -> None:
        refusal = refusal_of(exc)
        self.failed += 1
        self.unknown += refusal.status == 504
        form = LineForm(line=number, id=id, error=refusal.detail, code=refusal.code, status=refusal.status)
        self._said[number] = _encode(msgspec.structs.replace(form, **refusal.more) if refusal.more else form)

    async def push(self, lines: bytes) -> None:
        """Pushes these lines."""
        at = 0
        while at < len(lines):  # one by one: all at once would take their bytes a second time
            end = lines.find(b"\n", at)
            line = lines[at : end if end >= 0 else None]
            at += len(line) + 1
            self._number += 1
            if not line.strip():
                continue
            if self._number > MOST_LINES:
                await self._push_chunk()
                raise Refusal(413, f"a batch may have {MOST_LINES:,} lines; send the rest in another one")
            self.take(self._number, line)
            if self.is_full:
                await self._push_chunk()
        await self._push_chunk()
        assert self._ask.stream is not None
        self._ask.stream.give(len(lines))

    async def _push_chunk(self) -> None:
        ask, chunk = self._ask, self._chunk
        if chunk:
            try:
                await self._push(chunk)
            except BadInput:  # nothing was sent
                await self._push(self._good(chunk))
        for number, task in self._bytes:
            try:
                self._stored([number], [await EngineAccess(ask.engine).push_bytes(task, self._durability)])
            except ShardqError as exc:
                self.failed_at(number, exc)
        self._close()
        if self._down is not None:
            raise self._down

    async def _push(self, chunk: list[tuple[int, Task]]) -> None:
        """Raises the BadInput of a task."""
        numbers = [number for number, _ in chunk]
        try:
            tasks = [task for _, task in chunk]
            self._stored(numbers, await self._ask.engine.push_many(tasks, durability=self._durability))
        except BadInput:
            raise
        except PushError as exc:
            self._partly(numbers, exc)
        except ShardqError as exc:
            for number in numbers:
                self.failed_at(number, exc)
            self._down = refusal_of(exc)

    def _good(self, chunk: list[tuple[int, Task]]) -> list[tuple[int, Task]]:
        """The tasks of a chunk that are not wrong."""
        good: list[tuple[int, Task]] = []
        for number, task in chunk:
            try:
                EngineAccess(self._ask.engine).check(task)
            except BadInput as exc:
                self.failed_at(number, exc)
            else:
                good.append((number, task))
        return good

    def _stored(self, numbers: list[int], receipts: list[Receipt]) -> None:
        self.done += len(numbers)
        for number, receipt in zip(numbers, receipts, strict=True):
            if type(receipt) is Receipt:  # pushed: what most are, in a third of the time
                self._said[number] = b'{"line":%d,"id":%b,"outcome":"pushed"}' % (number, _encode(str(receipt)))
                continue
            state = receipt.state
            self._said[number] = _encode(
                LineForm(line=number, id=str(receipt), outcome=receipt.outcome, state=UNSET if state is None else state)
            )

    def _partly(self, numbers: list[int], exc: PushError) -> None:
        """Notes what became of tasks of which not all are stored."""
        unknown = set(exc.unknown)
        for number, id in zip(numbers, exc.ids, strict=True):
            if isinstance(id, Receipt):
                self._stored([number], [id])
            elif id in unknown:
                self.failed_at(number, _LOST, id)
            else:
                self.failed_at(number, exc.failed[id], id)
        if not exc.stored and not unknown and all(isinstance(each, ServerFault) for each in exc.failed.values()):
            self._down = refusal_of(next(iter(exc.failed.values())))

    def _close(self) -> None:
        """Puts the answers of the chunk behind the others, in the order of the lines."""
        if self._said:  # one piece: ten thousand would take three times the memory
            self.answers.append(b"\n".join([self._said[number] for number in sorted(self._said)]))
        self._said, self._chunk, self._bytes, self._size = {}, [], [], 0

    def answer(self, *, is_whole: bool) -> Answer:
        self._close()
        end = EndForm(lines=self.read, done=self.done, failed=self.failed, is_whole=is_whole)
        return Answer(b"\n".join([*self.answers, _encode(end), b""]))


ROUTES = (
    Route(
        method="POST",
        path="/v1/tasks:batch",
        roles=("producer",),
        handler=push,
        query=BatchQuery,
        body=LineBody,
        answer=(LineForm, EndForm),
        media=NDJSON,
        most_bytes=MOST_BYTES,
        streams=True,
    ),
)
