"""The parts that pages are made of: addresses, forms, cookies, templates, and live streams. Pages only read; actions
change something, and are checked first.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from shardq import Engine
from shardq.core.model.quantities import rate
from shardq.dashboard import formats
from shardq.dashboard.links import PAGES, link_of, told
from shardq.dashboard.snapshots import Caller, SharedSnapshots
from shardq.engine.around import Column, View
from shardq.errors import InvalidOption, ShardqError

if TYPE_CHECKING:
    from shardq import AsyncEngine

T = TypeVar("T")
Row = TypeVar("Row")

HERE = Path(__file__).parent

STATIC = "/static/"

FILES = {
    f"{STATIC}style.css": "text/css",
    f"{STATIC}live.js": "text/javascript",
    f"{STATIC}marks.js": "text/javascript",
    f"{STATIC}sign_in.js": "text/javascript",
    f"{STATIC}icon.svg": "image/svg+xml",
}
"""The type of each static file. They are answered without a token: the page that asks for it has them."""

NOTICE = "shardq_notice"
"""The cookie with the sentence that the next page tells."""

MOST_SAID = 300
"""Characters of what an action says: browsers keep cookies of 4 kB, and one character may take 12 bytes of it."""

MOST_BYTES = 256 * 1024
"""The size of a form: a thousand ids of the longest kind."""

MOST_FIELDS = 2000

SURE = "sure"
"""The field by which a form says that the user has confirmed."""

READ_ONLY = "This is read-only: it shows the engine, and changes nothing."

FORGED = (
    "This form is not one of a page that this browser has just opened, so nothing was changed. Open the page again, "
    "and try once more."
)

LASTS_S = 25.0
"""A stream ends after so long, and the page opens another: a server that is told to end waits for no page longer, and
no proxy cuts a stream for being silent.
"""

MOST_WATCHERS = 200
"""Pages that are open at once."""


# ---- the dashboard, and the request


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The parts that the pages of one application share."""

    call: Caller
    engine: Engine | AsyncEngine
    """The engine, for its name and options; calls go by ``call``."""
    read_only: bool
    behind_tls: bool
    """True if browsers reach it by https, though this process is asked by http."""
    snapshots: SharedSnapshots

    async def change(self, call: Callable[[Engine], T]) -> T:
        """Changes something by the engine; the page that follows shows it."""
        answer = await self.call(call)
        self.snapshots.expire()
        return answer


def dashboard_of(request: Request) -> Dashboard:
    found: Dashboard = request.app.state.dashboard
    return found


@dataclass(slots=True)
class Access:
    """The facts that the guard found out about a request."""

    csrf: str
    """The value of the field that a form of this browser must bring."""
    by_bearer: bool = False
    """True for a program that showed the token itself: no other site can make a browser send that."""
    read_only: bool = False
    """True for a token that may see all, and change nothing."""


def access_of(request: Request) -> Access:
    found: Access = request.scope["shardq.dashboard"]
    return found


def root_of(request: Request) -> str:
    """The prefix of every address of this application: "" or "/queue"."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def path_of(request: Request) -> str:
    """The address within the application. It begins with one slash: with two it would be the name of another host."""
    return "/" + str(request.scope["path"]).removeprefix(root_of(request)).lstrip("/\\")


def cookie(request: Request, name: str, value: str, *, max_age: int | None = None) -> str:
    """A Set-Cookie header: for this application's own addresses, for no script, and sent by no other site. ``value``
    has no blank, comma or semicolon. ``max_age``: in seconds; None: until the browser ends.
    """
    parts = [f"{name}={value}", f"Path={quote(root_of(request))}/", "HttpOnly", "SameSite=Strict"]
    if request.url.scheme == "https" or dashboard_of(request).behind_tls:
        parts.append("Secure")
    if max_age is not None:
        parts.append(f"Max-Age={max_age}")
    return "; ".join(parts)


# ---- templates


@cache
def templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=formats.harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= formats.FILTERS
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
    """Answers with a template. ``bare``: without the navigation, for a browser that may not see more.

    Every template has: ``root``, the prefix of all addresses; ``link(path, **query)``, an address; ``told(text)``, a
    sentence on what is wrong, with links to pages; ``csrf``, the hidden field of a form; ``engine``, its name;
    ``read_only``; ``here``, this address; ``notice``, what the last action said.
    """
    notice = "" if bare else unquote(request.cookies.get(NOTICE, ""))
    response = HTMLResponse(fragment(request, template, bare=bare, notice=notice, **context), status, headers)
    if notice:
        response.headers.append("Set-Cookie", cookie(request, NOTICE, "", max_age=0))
    return response


def refused(request: Request, reason: str, status: int = 403, title: str = "", **options: Any) -> Response:
    """The page that says why a request had no effect. ``options``: of ``rendered``."""
    title = title or "That was not possible"
    return rendered(request, "error.html", status, title=title, reason=reason, **options)


def fragment(request: Request, template: str, **context: Any) -> str:
    """A template as text: a page, or a part of one that is sent to pages that are open."""
    dashboard, root = dashboard_of(request), root_of(request)
    every = {
        "root": root,
        "link": lambda path, **query: root + link_of(path, **query),
        "told": partial(told, root),
        "static": lambda name: f"{root}{STATIC}{name}?{version_of(name)}",
        "csrf": Markup('<input type="hidden" name="csrf" value="{}">').format(access_of(request).csrf),
        "engine": dashboard.engine.name,
        "read_only": dashboard.read_only or access_of(request).read_only,
        "here": path_of(request),
        "pages": PAGES.items(),
        "notice": "",
        "bare": False,
        "live_query": {},
    }
    return templates().get_template(template).render(every | context)


def drawn(view: View[Row], rows: Sequence[Row], columns: Sequence[Column[Row]] | None = None) -> View[Row]:
    """The table for the macro ``table``: of these rows, without optional columns that are empty in all of them."""
    shown = [
        column
        for column in (view.columns if columns is None else columns)
        if not column.optional or any(map(column.cell, rows))
    ]
    return replace(view, rows=rows, columns=shown)


# ---- pages and actions


class Form:
    """The fields of a form."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """A field without blanks around it; "" if it was not sent."""
        return self.all(name)[0].strip() if self.all(name) else ""

    def all(self, name: str) -> list[str]:
        """Every value of a field, such as of check boxes with one name."""
        return self._fields.get(name, [])

    @property
    def own(self) -> list[tuple[str, str]]:
        """Every field but the hidden ones of a page."""
        return [
            (name, value) for name, values in self._fields.items() for value in values if name not in ("csrf", SURE)
        ]


def rate_of(text: str, empty: str) -> float | None:
    """A rate in a form. ``empty``: the meaning of an empty field."""
    try:
        return rate(text) if text else None
    except ValueError as exc:
        raise InvalidOption(f"{exc}; leave it empty {empty}") from None


def page(path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
    """A page, or another answer, at this path of the application.

    >>> routes = [page("/nodes", nodes)]
    """
    return Route(path, handler, methods=["GET"])


Handler = Callable[[Request, Form], Awaitable[Response]]
"""A function from a request and its form to the answer, which ``done`` makes."""


def action(path: str, handler: Handler, *, ask: Callable[[Form], tuple[str, str]] | None = None) -> Route:
    """The route of what a form sends to this path. The handler is called for forms that this browser got from a page of
    ours, which have ``{{ csrf }}`` in them, and for programs that show the token themselves.
    ``ask``: the question that a browser is asked once before it, and the word of the button that does it.

    >>> routes = [action("/topics/pause", pause, ask=lambda form: ("Pause it, over the whole fleet?", "Pause"))]
    """

    async def checked(request: Request) -> Response:
        access = access_of(request)
        if dashboard_of(request).read_only or access.read_only:
            return refused(request, READ_ONLY, title="Read-only")
        form = await form_of(request)
        if not access.by_bearer and not hmac.compare_digest(form.text("csrf").encode(), access.csrf.encode()):
            return refused(request, FORGED)
        if ask is not None and not access.by_bearer and form.text(SURE) != "yes":
            question, yes = ask(form)
            back = _page_before(request)
            return rendered(request, "ask.html", question=question, yes=yes, fields=form.own, back=back)
        return await handler(request, form)

    return Route(path, checked, methods=["POST"])


def _page_before(request: Request) -> str:
    """The page of ours whose form this is."""
    before = urlsplit(request.headers.get("referer", ""))
    if before.netloc != request.headers.get("host") or not before.path.startswith(f"{root_of(request)}/"):
        return f"{root_of(request)}/"
    return "/" + before.path.lstrip("/") + (f"?{before.query}" if before.query else "")


async def form_of(request: Request, *, most_bytes: int = MOST_BYTES, most_fields: int = MOST_FIELDS) -> Form:
    """Reads a form as browsers send it by default. Files are not taken. Raises InvalidOption for anything else."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most_bytes:
                raise InvalidOption(f"this form may have {most_bytes // 1024} KiB at most; send less at once")
        return Form(parse_qs(body.decode(), keep_blank_values=True, max_num_fields=most_fields))
    except ClientDisconnect:
        raise InvalidOption("the end of the form did not come; send it again") from None
    except ValueError:  # other bytes than text, or too many fields
        raise InvalidOption(f"this is not a form with {most_fields:,} fields at most, as browsers send it") from None


def done(request: Request, said: str, *, back: str) -> Response:
    """Goes to a page (a path of the application), which tells this sentence once.

    >>> return done(request, "mail is paused", back="/topics")
    """
    response = RedirectResponse(root_of(request) + back, 303)
    response.headers.append("Set-Cookie", cookie(request, NOTICE, quote(said[:MOST_SAID]), max_age=60))
    return response


# ---- pages that stay up to date


Context = Callable[[Request], Awaitable[dict[str, Any]]]
"""A function from a request to the variables of a page and its part."""


def live_page(
    path: str, name: str, context: Context, *, template: str = "live.html", every_s: float | None = None
) -> list[Route]:
    """A page that is complete as it is loaded, and of which ``part_NAME.html`` is sent again after each snapshot, as
    server-sent events. ``template``: one that extends ``live.html``. ``every_s``: for parts that come from no snapshot.
    """
    part = f"part_{name}.html"

    async def whole(request: Request) -> Response:
        return rendered(request, template, title=PAGES.get(path, ""), live=name, part=part, **await context(request))

    async def events(request: Request) -> AsyncGenerator[str]:
        yield "retry: 1000\n\n"
        ticks = dashboard_of(request).snapshots.watch(for_s=LASTS_S, every_s=every_s)
        async with aclosing(ticks) as watching:
            async for _ in watching:
                try:
                    text = fragment(request, part, **await context(request))
                except ShardqError as exc:
                    text = fragment(request, "part_error.html", reason=str(exc))
                yield event(text)

    async def stream(request: Request) -> Response:
        if dashboard_of(request).snapshots.watchers >= MOST_WATCHERS:
            return Response(f"{MOST_WATCHERS} pages are open already", 503, media_type="text/plain")
        headers = {"X-Accel-Buffering": "no"}  # nginx would keep events back
        return StreamingResponse(events(request), media_type="text/event-stream", headers=headers)

    return [page(path, whole), page(f"/live/{name}", stream)]


async def newest(request: Request) -> dict[str, Any]:
    """The variables of the templates of live pages: the newest snapshot, and the rates over the last ones. No
    ``snapshot`` if none has succeeded yet; then ``snapshots.trouble`` says why.
    """
    shared = dashboard_of(request).snapshots
    snapshots = await shared.newest()
    snapshot = snapshots.newest
    return {
        "snapshots": snapshots,
        "snapshot": snapshot,
        "age_s": time.monotonic() - snapshot.at if snapshot else None,
        "seen_at": shared.seen_at,
        "interval_s": shared.interval_s,
    }


def event(text: str) -> str:
    """
    >>> event("<p>one\\ntwo")
    'data: <p>one\\ndata: two\\n\\n'
    """
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
