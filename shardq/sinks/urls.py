"""Reading the URL of a sink."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from shardq.errors import InvalidUrl


def split(url: str, form: str) -> SplitResult:
    """The parts of a URL, whose port is a number if it has one. ``form``: what is written after the scheme."""
    scheme = url.partition("://")[0]
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port  # both are read only now
    except ValueError as exc:
        raise InvalidUrl(
            f"this {scheme}:// URL is not understood; write {scheme}://{form}, and the characters / ? # @ of a user or "
            "password percent-encoded"
        ) from exc
    return parts
