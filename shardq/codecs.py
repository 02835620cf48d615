"""Codecs beside the built-in ones: payloads that are encrypted where they are stored."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Sequence
from typing import Any, Literal

from shardq.core.layout.words import FOREIGN
from shardq.core.model.printable import quoted
from shardq.core.model.record import Codec, codec_named, refused_types
from shardq.errors import InvalidOption, MissingPackage, PayloadNotAuthentic
from shardq.features.schedules.ids import bound_to as bound_to

__all__ = ["bound_to", "encrypted"]


def encrypted(
    *keys: str | bytes, codec: str | Codec = "json", clear: Literal["refuse", "read"] = "refuse"
) -> Encrypted:
    """A codec that encrypts and authenticates what another one, ``codec``, makes of a payload, together with the task's
    id: by AES-SIV (RFC 5297), with the first key. It decrypts what any of the keys has encrypted: add a new key at the
    end, put it in front when all programs have it, and remove an old one when no task is left that it has encrypted. A
    payload takes 17 bytes more, and those of the id.

    A task whose payload is in the clear, was changed, or was encrypted for another id is dead at once, and its reason
    says why. ``clear="read"`` reads payloads in the clear, too: until every program that pushes has the key.

    Ids, topics, tags, headers, due times and errors of handlers are not encrypted, and headers and tags are not
    authenticated. ``keys``: 32 random bytes each, in base64 (``cryptography.fernet.Fernet.generate_key()``).

    >>> engine = shardq.Engine(codec=shardq.codecs.encrypted(NEW_KEY, OLD_KEY))
    """
    if not keys:
        raise InvalidOption("encrypted() needs a key; Fernet.generate_key() of the package cryptography makes one")
    if clear not in ("refuse", "read"):
        raise InvalidOption(f"clear can't be {quoted(clear)}; use 'refuse', or 'read' while you begin to encrypt")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    except ImportError as exc:
        raise MissingPackage("shardq.codecs.encrypted needs cryptography: pip install 'shardq[encrypted]'") from exc
    try:
        raw = [urlsafe_b64decode(key) for key in keys]
    except (ValueError, TypeError) as exc:
        raise InvalidOption(_KEY) from exc
    if any(len(key) != 32 for key in raw):
        raise InvalidOption(_KEY)
    return Encrypted([AESSIV(key) for key in raw], codec_named(codec), clear)


_KEY = "a key has to be 32 bytes in url-safe base64, as Fernet.generate_key() makes it"


class Encrypted:
    """The codec that ``encrypted`` returns."""

    def __init__(self, keys: Sequence[Any], inner: Codec, clear: Literal["refuse", "read"]) -> None:
        self.name: str = f"encrypted {inner.name}"
        self.clear: Literal["refuse", "read"] = clear
        self._keys = keys
        self._inner = inner
        self._refused = refused_types(inner)

    def __repr__(self) -> str:
        return f"<codec {self.name!r}>"

    def encode(self, payload: Any, id: str = "", /) -> bytes:
        """The payload of the task with this id, encrypted."""
        if isinstance(payload, self._refused):
            raise TypeError('bytes would come back as text; use encrypted(…, codec="msgpack"), or codec="raw"')
        # The id is inside, and not associated data: a list that a topic is forwarded to gets nothing else of a task.
        plain = _bound(id) + b"\0" + self._inner.encode(payload)
        return self._keys[0].encrypt(plain, None)  # type: ignore[no-any-return]  # from an extra: untyped here

    def decode(self, data: bytes, id: str = "", /) -> Any:
        """The payload of the task with this id. Raises PayloadNotAuthentic."""
        bound, _, plain = self._decrypted(data).partition(b"\0")
        if bound != _bound(id):
            raise PayloadNotAuthentic(f"it was encrypted for another task, {quoted(bound.decode(errors=FOREIGN))}")
        return self._inner.decode(plain)

    def _decrypted(self, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        for key in self._keys:
            try:
                return key.decrypt(data, None)  # type: ignore[no-any-return]  # as above
            except InvalidTag:
                continue
        raise PayloadNotAuthentic("none of the keys has encrypted it, or it was changed")


def _bound(id: str) -> bytes:
    if not id:
        raise TypeError(
            "encrypted() was called without the id of a task; a codec of yours goes into it, encrypted(KEY, codec=…), "
            "and not around it"
        )
    return bound_to(id).encode(errors=FOREIGN)
