"""The table of routes: the router, the checks before a handler, and OpenAPI all come from it. A row stands beside its
handler, in ``tasks``, ``batch``, ``commands`` or ``looks``; here they are put together.
"""

from __future__ import annotations

import re

from shardq.http import batch, commands, looks, openapi, tasks, work
from shardq.http.exchange import Route
from shardq.http.problems import Refusal

_ROUTES = (*tasks.ROUTES, *batch.ROUTES, *commands.ROUTES, *looks.ROUTES, *work.ROUTES)

ROUTES: tuple[Route, ...] = (*_ROUTES, openapi.row(_ROUTES))


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/:]+)", re.escape(path)))


_FIXED: dict[str, dict[str, Route]] = {
    route.path: {each.method: each for each in ROUTES if each.path == route.path} for route in ROUTES
}
_OTHERS = [(_pattern(path), rows) for path, rows in _FIXED.items() if "{" in path]


def find(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """The row of a request, and the fields of its path. Raises Refusal."""
    rows, fields = _FIXED.get(path), dict[str, str]()
    if rows is None:
        for pattern, others in _OTHERS:
            if found := pattern.fullmatch(path):
                rows, fields = others, found.groupdict()
                break
    if rows is None or "{" in path:
        raise Refusal(404, f"there is no {path!r:.200} here; GET /v1/openapi.json has all addresses")
    route = rows.get("GET" if method == "HEAD" else method)
    if route is None:
        allowed = ", ".join(sorted(rows))
        raise Refusal(405, f"{method} is not for this address; use {allowed}", headers={"Allow": allowed})
    return route, fields
