"""The two kinds of addresses: pages, which only read, and actions, which change something and are checked first."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from shardq.dashboard.cookies import cookie
from shardq.dashboard.rendering import NOTICE, rendered
from shardq.dashboard.visit import dashboard_of, root_of, visit_of
from shardq.errors import InvalidOption

MOST_BYTES = 256 * 1024
"""The size of a form: a thousand ids of the longest kind."""

MOST_FIELDS = 2000

SURE = "sure"
"""The field by which a form says that the user was asked."""

MOST_SAID = 300
"""Characters of what an action says: browsers keep cookies of 4 kB, and one character may take 12 bytes of it."""

READ_ONLY = "This dashboard is read-only: it shows the engine, and changes nothing."

FORGED = (
    "This form is not one of a page that this browser has just opened, so nothing was changed. Open the page again, "
    "and try once more."
)


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


def page(path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
    """A page, or another answer, at this path of the application.

    >>> routes = [page("/nodes", nodes)]
    """
    return Route(path, handler, methods=["GET"])


def action(
    path: str,
    handler: Callable[[Request, Form], Awaitable[Response]],
    *,
    ask: Callable[[Form], tuple[str, str]] | None = None,
) -> Route:
    """The route of what a form sends to this path. The handler is called for forms that this browser got from a page of
    ours, which have ``{{ csrf }}`` in them, and for programs that show the token themselves. It answers with ``done``.
    ``ask``: the question that a browser is asked once before it, and the word of the button that does it.

    >>> routes = [action("/topics/pause", pause, ask=lambda form: ("Pause it, over the whole fleet?", "Pause"))]
    """

    async def checked(request: Request) -> Response:
        if dashboard_of(request).read_only:
            return rendered(request, "error.html", 403, title="Read-only", reason=READ_ONLY)
        form, visit = await form_of(request), visit_of(request)
        if not visit.by_bearer and not hmac.compare_digest(form.text("csrf").encode(), visit.csrf.encode()):
            return rendered(request, "error.html", 403, title="That was not possible", reason=FORGED)
        if ask is not None and not visit.by_bearer and form.text(SURE) != "yes":
            question, yes = ask(form)
            return rendered(
                request, "ask.html", question=question, yes=yes, fields=form.own, back=_page_before(request)
            )
        return await handler(request, form)

    return Route(path, checked, methods=["POST"])


def _page_before(request: Request) -> str:
    """The page of ours whose form this is."""
    page = urlsplit(request.headers.get("referer", ""))
    if page.netloc != request.headers.get("host") or not page.path.startswith(f"{root_of(request)}/"):
        return f"{root_of(request)}/"
    return "/" + page.path.lstrip("/") + (f"?{page.query}" if page.query else "")


async def form_of(request: Request) -> Form:
    """Reads a form as browsers send it by default. Files are not taken."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise InvalidOption(f"a form has {MOST_BYTES // 1024} KiB at most; send less at once")
    try:
        return Form(parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:  # other bytes than text, or too many fields
        raise InvalidOption(f"this is no form with {MOST_FIELDS:,} fields at most, as browsers send it") from None


def done(request: Request, said: str, *, back: str) -> Response:
    """Goes to a page (a path of the application), which tells this sentence once.

    >>> return done(request, "mail is paused", back="/topics")
    """
    response = RedirectResponse(root_of(request) + back, 303)
    response.headers.append("Set-Cookie", cookie(request, NOTICE, quote(said[:MOST_SAID]), max_age=60))
    return response
