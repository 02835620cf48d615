"""Templates: what each of them is given, and how it becomes an answer. All text is escaped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from shardq.dashboard import formats, texts
from shardq.dashboard.cookies import cookie
from shardq.dashboard.visit import dashboard_of, link_of, place_of, root_of, visit_of

HERE = Path(__file__).parent

STATIC = "/static/"

PROBES = frozenset(("/livez", "/readyz"))
"""Answered without a token, and under any name: platforms ask by the address."""

NOTICE = "shardq_notice"
"""The cookie with the sentence that the next page tells."""

PAGES = (
    ("/", "Overview"),
    ("/tasks", "Tasks"),
    ("/dead", "Dead"),
    ("/future", "Future"),
    ("/schedules", "Schedules"),
    ("/shards", "Shards"),
    ("/nodes", "Nodes"),
    ("/topics", "Topics"),
    ("/fleet", "Fleet"),
    ("/changes", "Changes"),
)
"""The navigation."""


@cache
def templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= formats.FILTERS | texts.FILTERS
    return found


@cache
def version_of(name: str) -> str:
    """Changes with the content of a static file, which browsers may keep for ever."""
    return hashlib.sha256((HERE / "static" / name).read_bytes()).hexdigest()[:10]


def rendered(
    request: Request,
    template: str,
    status: int = 200,
    *,
    bare: bool = False,
    headers: Mapping[str, str] | None = None,
    **context: Any,
) -> Response:
    """Answers with a template. ``bare``: without the navigation, for somebody who may not see more.

    Every template has: ``root``, the prefix of all addresses; ``link(path, **query)``, an address; ``csrf``, the hidden
    field of a form; ``engine``, its name; ``read_only``; ``here``, this address; ``notice``, what the last action said.
    """
    notice = unquote(request.cookies.get(NOTICE, ""))
    text = fragment(request, template, bare=bare, notice="" if bare else notice, **context)
    response = HTMLResponse(text, status, headers)
    if notice and not bare:
        response.headers.append("Set-Cookie", cookie(request, NOTICE, "", max_age=0))
    return response


def fragment(request: Request, template: str, **context: Any) -> str:
    """A template as text: a page, or a part of one that is sent to pages that are open."""
    dashboard, root = dashboard_of(request), root_of(request)

    def link(path: str, **query: object) -> str:
        return root + link_of(path, **query)

    return (
        templates()
        .get_template(template)
        .render(
            root=root,
            link=link,
            static=lambda name: f"{root}{STATIC}{name}?{version_of(name)}",
            csrf=Markup('<input type="hidden" name="csrf" value="{}">').format(visit_of(request).csrf),
            engine=dashboard.engine.name,
            read_only=dashboard.read_only,
            here=place_of(request),
            pages=PAGES,
            **{"notice": "", "bare": False, "live_query": {}} | context,
        )
    )
