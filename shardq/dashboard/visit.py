"""The facts that a page knows beside its request: the dashboard that it belongs to, and the browser that asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

from shardq.dashboard.asking import Asker
from shardq.dashboard.futures import Futures
from shardq.dashboard.jobs import Jobs
from shardq.dashboard.resizing import Resizing
from shardq.dashboard.sampler import Sampler
from shardq.engine.sync import Engine

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The parts that the pages of one application share."""

    ask: Asker
    engine: Engine | AsyncEngine
    """The engine, for its name and options; calls go by ``ask``."""
    read_only: bool
    behind_tls: bool
    """True if browsers reach it by https, whatever this process is asked by."""
    sampler: Sampler
    """The looks of all pages that are open."""
    futures: Futures
    resizing: Resizing
    jobs: Jobs = field(default_factory=Jobs)
    """The commands on many tasks that it was given."""

    async def changed(self, call: Callable[[Engine], T]) -> T:
        """Changes something by the engine, and looks anew: the page that follows shows it."""
        answer = await self.ask(call)
        self.sampler.look_soon()
        return answer


def dashboard_of(request: Request) -> Dashboard:
    found: Dashboard = request.app.state.dashboard
    return found


@dataclass(slots=True)
class Visit:
    """The facts that the guard found out about a request."""

    csrf: str
    """The value of the field that a form of this browser must bring."""
    by_bearer: bool
    """True for a program that showed the token itself: no other site can make a browser send that."""


_KEY = "shardq.dashboard"


def note_visit(scope: Any, visit: Visit) -> None:
    scope[_KEY] = visit


def visit_of(request: Request) -> Visit:
    found: Visit = request.scope[_KEY]
    return found


def root_of(request: Request) -> str:
    """The prefix of every address of this application: "" or "/queue"."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def place_of(request: Request) -> str:
    """The address within the application. It begins with one slash: with two it would be the name of another host."""
    return "/" + str(request.scope["path"]).removeprefix(root_of(request)).lstrip("/\\")


def link_of(path: str, **query: object) -> str:
    """An address within the application; what is empty or None is left out."""
    kept = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return path + (f"?{kept}" if kept else "")
