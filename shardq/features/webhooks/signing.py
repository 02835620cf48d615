"""Signatures of Standard Webhooks, and the secret of each endpoint. No I/O."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Sequence

from shardq.core.model.endpoints import default_key, host_in
from shardq.errors import InvalidOption, InvalidUrl

PREFIX = "whsec_"
"""A secret is that, and its key in base64."""

SHORTEST_KEY, LONGEST_KEY = 24, 64
"""Bytes of a key, as Standard Webhooks has them."""


def signature(keys: Sequence[bytes], id: str, timestamp: int, payload: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks: the id, the seconds since 1970, and the HMAC-SHA256 of both and the payload, by
    each key.

    >>> signature([b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], "hooks/1", 1674087231, b"{}")["webhook-signature"]
    'v1,AI76/TFU/Sq85Fhlcr8sZPJMQvhAtVdl/GGQAAxU7gs='
    """
    signed = b"%s.%d.%s" % (id.encode(), timestamp, payload)
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


def signing_keys(text: str, named: str) -> list[bytes]:
    """The keys of secrets with blanks between. ``named``: what holds the text, for the error. Raises InvalidUrl."""
    words = text.split() if isinstance(text, str) else []
    with contextlib.suppress(ValueError):
        keys = [base64.b64decode(word.removeprefix(PREFIX), validate=True) for word in words]
        whole = all(word.startswith(PREFIX) for word in words)
        if keys and whole and all(SHORTEST_KEY <= len(key) <= LONGEST_KEY for key in keys):
            return keys
    raise InvalidUrl(
        f"{named} is not a key of Standard Webhooks; give {PREFIX} and {SHORTEST_KEY} to {LONGEST_KEY} bytes in "
        "base64, or several of them with blanks between"
    )


def webhook_secret(master: str | bytes, url: str, key: str | None = None) -> str:
    """The secret of a customer's endpoint, made of one master secret: nothing needs to be stored. It is bound to the
    host of the URL and to the key. ``key``: by which you tell customers apart; None: a key made of the URL.

    Who knows one secret learns neither the master nor another secret. To replace the master, sign by both secrets, with
    a blank between, until each customer has the new one. Raises InvalidOption and InvalidUrl.

    >>> shardq.webhook_secret("a master secret of at least 24 bytes", "https://customer.example/in", "customer-7")
    'whsec_Sf7SN9hyCiUiBmyO+DvkTCms1LL/uue3F7cCCSWEABo='
    """
    secret = master.encode() if isinstance(master, str) else master
    if not isinstance(secret, bytes) or len(secret) < SHORTEST_KEY:
        raise InvalidOption(f"a master secret needs at least {SHORTEST_KEY} bytes; give random ones, as str or bytes")
    if key is not None and not (isinstance(key, str) and key):
        raise InvalidOption("key= can't be empty, or anything but a str; leave it out for a key made of the URL")
    host = host_in(url)
    bound = f"{default_key(url) if key is None else key}\n{host}"
    return PREFIX + base64.b64encode(hmac.digest(secret, bound.encode(), hashlib.sha256)).decode()
