"""Codecs beside the built-in ones: payloads that are encrypted where they are stored."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from shardq.core.model.record import Codec, codec_named, refused_types
from shardq.errors import InvalidOption, MissingPackage

__all__ = ["encrypted"]


def encrypted(*keys: str | bytes, codec: str | Codec = "json") -> Codec:
    """A codec that encrypts what another one, ``codec``, makes of a payload: by AES-128-CBC and HMAC-SHA256 (Fernet),
    with the first key. What any of the keys has encrypted is decrypted, so that a new key goes in front, and an old one
    when no task is left that it has encrypted. A payload takes 58 to 73 bytes more.

    Ids, topics, tags, headers, due times and errors of handlers are not encrypted. ``keys``: 32 bytes each, in base64
    (``cryptography.fernet.Fernet.generate_key()``).

    >>> engine = shardq.Engine(codec=shardq.codecs.encrypted(NEW_KEY, OLD_KEY))
    """
    if not keys:
        raise InvalidOption("encrypted() needs a key; Fernet.generate_key() of the package cryptography makes one")
    try:
        from cryptography.fernet import Fernet, MultiFernet
    except ImportError as exc:
        raise MissingPackage("shardq.codecs.encrypted needs cryptography: pip install 'shardq[encrypted]'") from exc
    try:
        fernet = MultiFernet([Fernet(key) for key in keys])
    except (ValueError, TypeError) as exc:
        raise InvalidOption("a key has to be 32 bytes in url-safe base64, as Fernet.generate_key() makes it") from exc
    return _Encrypted(fernet, codec_named(codec))


class _Encrypted:
    def __init__(self, fernet: Any, inner: Codec) -> None:
        self.name = f"encrypted {inner.name}"
        self._fernet = fernet
        self._inner = inner
        self._refused = refused_types(inner)

    def __repr__(self) -> str:
        return f"<codec {self.name!r}>"

    def encode(self, payload: Any, /) -> bytes:
        if isinstance(payload, self._refused):
            raise TypeError('bytes would come back as text; use encrypted(…, codec="msgpack"), or codec="raw"')
        return urlsafe_b64decode(self._fernet.encrypt(self._inner.encode(payload)))

    def decode(self, data: bytes, /) -> Any:
        from cryptography.fernet import InvalidToken

        try:
            plain = self._fernet.decrypt(urlsafe_b64encode(data))
        except InvalidToken:
            raise ValueError("none of the keys has encrypted it, or it was changed") from None
        return self._inner.decode(plain)
