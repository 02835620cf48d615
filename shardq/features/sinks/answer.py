"""An answer of HTTP/1.1, read from bytes as they come. No I/O. ``client`` calls this.

An answer is whole when its body is, or when more of that has come than anybody reads. One whose connection ends before
is none: the endpoint may have died on the way, with what it was sent. Nothing of a body is decompressed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Mapping
from typing import NamedTuple, TypeVar, cast

T = TypeVar("T")

_Steps = Generator[None, None, T]
"""A part of reading. It yields where more bytes are needed."""

MOST_HEAD = 64 << 10
"""Bytes of a head, with those of the interim answers before it, or of what follows the last chunk."""
KEPT = 2 << 10
"""Bytes of a body that an answer has."""
READ = 64 << 10
"""A longer body is not read to its end, and its connection is closed. To read a shorter one costs less than that."""

_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_FIRST = b"HTTP/1."
_STATUS = re.compile(rb"HTTP/1\.(\d) +([1-9]\d\d)(?: +([^\r\n]*))?\r?(?:\n|\Z)")
_HEADERS = re.compile(rb"\n(connection|content-length|retry-after|transfer-encoding)[ \t]*:([^\r\n]*)")
"""The headers that count, in lower case."""
_LENGTH = re.compile(rb"\d{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_WITHOUT_BODY = {101, 204, 304}


class Answer(NamedTuple):
    """The part of an answer that tells what became of a request."""

    status: int
    phrase: str
    retry_after: str | None
    """The header Retry-After."""
    body: bytes
    """Its first bytes, ``KEPT`` at most."""


class NotHttp(Exception):
    """The other side does not speak HTTP/1.1, or too much of it."""


class _Cut(Exception):
    """The other side has ended the connection where more is to come."""


class AnswerReader:
    """Reads one answer from bytes as they come. No I/O."""

    def __init__(self) -> None:
        self.has_begun: bool = False
        """True once a byte has come."""
        self.is_last: bool = False
        """True if the connection can't carry another request after this answer."""
        self._data = bytearray()
        self._ended = False
        self._steps = self._read()

    def feed(self, data: bytes) -> Answer | None:
        """Takes what has come; nothing means that the other side has ended the connection. Returns the answer once it
        is whole, None before. Raises NotHttp, and ConnectionResetError if the end has come before.
        """
        self.has_begun |= bool(data)
        self._data += data
        self._ended = not data
        try:
            next(self._steps)
        except StopIteration as done:
            self.is_last |= self._ended or bool(self._data)  # more than was asked for
            return cast(Answer, done.value)
        except _Cut:
            raise ConnectionResetError("the other side has closed it") from None
        return None

    def _more(self) -> _Steps[None]:
        if self._ended:
            raise _Cut
        yield

    def _read(self) -> _Steps[Answer]:
        left = MOST_HEAD
        while True:
            looked = 0
            while (found := _END_OF_HEAD.search(self._data, looked)) is None and len(self._data) <= left:
                self._check_start()
                looked = max(0, len(self._data) - 3)
                yield from self._more()
            self._check_start()
            end, behind = (len(self._data), 0) if found is None else found.span()
            if end > left:
                raise NotHttp(f"its head has more than {MOST_HEAD >> 10} KiB")
            head = bytes(self._data[:end])
            del self._data[:behind]
            first = _STATUS.match(head)
            if first is None:
                raise NotHttp("its first line is not that of an answer")
            status = int(first[2])
            if status >= 200 or status == 101:
                break
            left -= end  # an interim answer: the final one follows
        headers = dict[bytes, bytes]()
        for line in _HEADERS.finditer(head.lower()):
            name, value = line[1], head[line.start(2) : line.end(2)].strip()
            before = headers.setdefault(name, value)
            if before != value:
                if name == b"content-length":
                    raise NotHttp("it has two lengths")
                headers[name] = b"%b,%b" % (before, value)
        said = headers.get(b"connection", b"").lower()
        self.is_last = b"close" in said or status == 101 or (first[1] == b"0" and b"keep-alive" not in said)
        body = bytearray()
        if status not in _WITHOUT_BODY:
            yield from self._body(headers, body)
        after = headers.get(b"retry-after")
        phrase = (first[3] or b"").decode("latin-1").strip()
        return Answer(status, phrase, None if after is None else after.decode("latin-1"), bytes(body))

    def _check_start(self) -> None:
        """Raises NotHttp as soon as the first bytes tell it: who speaks something else may say no more."""
        if not self._data.startswith(_FIRST[: len(self._data)]):
            raise NotHttp("its first line is not that of an answer")

    def _body(self, headers: Mapping[bytes, bytes], body: bytearray) -> _Steps[None]:
        """Puts its first bytes into ``body``."""
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if coding is not None and coding.lower().rpartition(b",")[2].strip() == b"chunked":
            yield from self._chunks(body)
            self.is_last |= length is not None  # one of the two is a lie
        elif coding is None and length is not None:
            if _LENGTH.fullmatch(length) is None:
                raise NotHttp("its length is not a number")
            self.is_last |= int(length) > READ
            yield from self._bytes(int(length) if int(length) <= READ else KEPT, body)
        else:  # it ends with the connection
            self.is_last = True
            with contextlib.suppress(_Cut):
                yield from self._bytes(KEPT, body)

    def _chunks(self, body: bytearray) -> _Steps[None]:
        left = READ
        while True:
            found = _CHUNK.fullmatch((yield from self._line()))
            if found is None:
                raise NotHttp("the length of a chunk is not a number")
            size = int(found[1], 16)
            if size == 0:
                break
            left -= size
            if left < 0:
                self.is_last = True
                yield from self._bytes(min(size, KEPT - len(body)), body)
                return
            yield from self._bytes(size, body)
            if (yield from self._line()):
                raise NotHttp("a chunk does not end where it should")
        left = MOST_HEAD
        while line := (yield from self._line()):  # trailers
            left -= len(line)
            if left < 0:
                raise NotHttp(f"its trailers have more than {MOST_HEAD >> 10} KiB")

    def _line(self) -> _Steps[bytes]:
        while (end := self._data.find(b"\n")) < 0:
            if len(self._data) > MOST_HEAD:
                raise NotHttp(f"a line of it has more than {MOST_HEAD >> 10} KiB")
            yield from self._more()
        line = bytes(self._data[:end]).rstrip(b"\r")
        del self._data[: end + 1]
        return line

    def _bytes(self, count: int, body: bytearray) -> _Steps[None]:
        """Passes over so many bytes."""
        while True:
            piece = self._data[:count]
            del self._data[:count]
            body += piece[: KEPT - len(body)]
            count -= len(piece)
            if count == 0:
                return
            yield from self._more()
