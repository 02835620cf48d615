"""The cookies of the dashboard: for its own addresses, for no script, and sent by no other site."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request

from shardq.dashboard.visit import dashboard_of, root_of


def cookie(request: Request, name: str, value: str, *, max_age: int | None = None) -> str:
    """The value of a Set-Cookie header. ``value`` has no blank, comma or semicolon. ``max_age``: in seconds; None:
    until the browser ends.
    """
    parts = [f"{name}={value}", f"Path={quote(root_of(request))}/", "HttpOnly", "SameSite=Strict"]
    if request.url.scheme == "https" or dashboard_of(request).behind_tls:
        parts.append("Secure")
    if max_age is not None:
        parts.append(f"Max-Age={max_age}")
    return "; ".join(parts)
