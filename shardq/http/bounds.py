"""The memory that bodies may take: of one request, and of all together. Whoever sends more is answered 413 or 429
before it is there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shardq.http.problems import AGAIN_S, Refusal

if TYPE_CHECKING:
    from starlette.types import Receive

MOST_BYTES = 64 << 20
"""The bytes of all bodies that are held at one time."""


class Room:
    """The bytes that are held, of all requests of one application."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most: int = most
        self.held: int = 0

    def take(self, count: int) -> None:
        """Raises Refusal if there is no room for so many more."""
        if self.held + count > self.most:
            raise Refusal(
                429,
                f"requests of {self.most >> 20} MiB in all are being read here; send this one again later",
                headers={"Retry-After": str(AGAIN_S)},
            )
        self.held += count


class Body:
    """The body of one request, piece by piece, in a ``with`` block. What was read counts until ``give``, or the end."""

    def __init__(self, receive: Receive, headers: dict[bytes, bytes], room: Room, most: int) -> None:
        """Raises Refusal for a body that says of itself that it is too large."""
        self._receive = receive
        self._room = room
        self._most = most
        self._read = 0
        self._held = 0
        self.is_whole: bool = False
        """True if its end was read."""
        self.announced: int = 0
        """Its length, as far as that was told."""
        if (length := headers.get(b"content-length")) is not None and length.isdigit():
            self.announced = int(length)
        self.is_endless: bool = not self.announced or self.announced > room.most
        """True if so much may follow that nobody reads it once the answer is known."""
        self.is_empty: bool = not self.announced and b"transfer-encoding" not in headers
        self.is_whole = self.is_empty
        self._check(self.announced)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.give(self._held)

    def give(self, count: int) -> None:
        """So many bytes of it are not held any more."""
        self._held -= count
        self._room.held -= count

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields its pieces. Raises Refusal if it is too long, or its end does not come."""
        while not self.is_whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the end of the body did not come; send it again")
            piece: bytes = message.get("body", b"")
            self.is_whole = not message.get("more_body", False)
            self._read += len(piece)
            self._check(self._read)
            self._room.take(len(piece))
            self._held += len(piece)
            if piece:
                yield piece

    async def whole(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    def _check(self, size: int) -> None:
        if size > self._most:
            raise Refusal(413, f"this body may have {self._most:,} bytes; send less at once")
