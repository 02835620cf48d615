"""The admin's pages of dead tasks and of results.

Dead tasks are read from Redis page by page, the earliest deaths first, so a page costs the same with a hundred as with
a million of them. "view", "change" and "delete" of the model say who may look, requeue and remove.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone

from shardq.core.layout.words import UNENCODABLE
from shardq.core.model.ids import shown_topic
from shardq.core.model.printable import printable
from shardq.core.model.task import TaskInfo
from shardq.errors import BadInput, PayloadNotDecodable, ShardqError
from shardq.features.listing.query import Place, Query
from shardq.integrations.django.backend import ShardqBackend, backends
from shardq.integrations.django.models import DeadTask, StoredResult

PAGE = 100
"""Tasks of a page."""

LOOKS = 20
"""Calls for a page at most: one that is still short then goes on in the next."""

MOST = 20_000
"""Characters of a payload that are shown."""

SINCE = (("", "Any time"), ("3600", "Past hour"), ("86400", "Past day"), ("604800", "Past week"))


@admin.register(DeadTask)
class DeadTaskAdmin(admin.ModelAdmin):
    """Lists dead tasks, shows one, and requeues or removes those that are chosen."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        view, name = self.admin_site.admin_view, f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path("", view(self.list_view), name=f"{name}_changelist"),
            path("<path:object_id>/change/", view(self.task_view), name=f"{name}_change"),
        ]

    # ---- pages

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """A page of dead tasks, or what was chosen there."""
        self._check(self.has_view_permission(request))
        if request.method == "POST":
            return self._act(request, request.POST.getlist("id"))
        backend, topic, query = self._backend(request), request.GET.get("queue"), request.GET.get("q", "").strip()
        tasks: list[TaskInfo] = []
        following = None
        topics: dict[str, int] = {}
        if backend is not None:
            try:
                counts = backend.engine.stats(shards=False).topics
                topics = {name: seen.dead for name, seen in counts.items() if seen.dead}
                if query:
                    tasks = self._found(request, backend, query)
                else:
                    tasks, following = _page(backend, topic, request.GET)
            except ShardqError as exc:
                messages.error(request, f"Dead tasks can't be read: {exc}")
        link = partial(_link, request.GET)
        if topic is not None:
            topics.setdefault(topic, 0)
        shown = {
            "rows": [_row(self._url(task.id), request.GET, task) for task in tasks],
            "query": query,
            "hidden": [(name, value) for name, value in request.GET.items() if name not in ("q", "cursor")],
            "following": following and link(cursor=following),
            "first": link(cursor=None) if request.GET.get("cursor") else None,
            "filters": self._filters(request, backend, topics, link),
        }
        return self._shown(request, "change_list", "Select dead task to requeue or remove", shown)

    def task_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """One task, with its payload and the reason of its death."""
        self._check(self.has_view_permission(request))
        id, backend = unquote(object_id), self._backend(request)
        if request.method == "POST":
            return self._act(request, [id])
        task = None
        try:
            task = backend and _read(backend, id)
        except ShardqError as exc:
            messages.error(request, f"The task can't be read: {exc}")
        if task is None:
            messages.warning(request, f"There is no task “{id:.466}”: it is done, was removed, or never was.")
            return HttpResponseRedirect(self._url(None))
        row, reason = _row(self._url(id), request.GET, task), printable(task.reason or "", keep="\n\t")
        shown = {"row": row, "task": task, "fields": _fields(task, row), "payload": _text(task.payload)}
        title = f"Dead task {id}" if task.state == "dead" else f"Task {id}"
        return self._shown(request, "task", title, shown | {"reason": reason})

    # ---- actions

    def _act(self, request: HttpRequest, ids: list[str]) -> HttpResponse:
        """Requeues or removes tasks, and goes back to where that was chosen."""
        action, backend = request.POST.get("action"), self._backend(request)
        self._check(action != "requeue" or self.has_change_permission(request))
        self._check(action != "remove" or self.has_delete_permission(request))
        back = HttpResponseRedirect(f"{self._url(None)}?{request.GET.urlencode()}")
        if backend is None or action not in ("requeue", "remove"):
            messages.warning(request, "No action selected.")
        elif not ids:
            messages.warning(request, "Tasks must be selected in order to perform actions on them. None was changed.")
        elif action == "remove" and "confirmed" not in request.POST:
            return self._shown(request, "remove", "Are you sure?", {"ids": ids})
        else:
            self._carry_out(request, backend, action, ids[: 10 * PAGE])
        return back

    def _carry_out(self, request: HttpRequest, backend: ShardqBackend, action: str, ids: list[str]) -> None:
        done, word = 0, "Requeued" if action == "requeue" else "Removed"
        others: Counter[str] = Counter()
        try:
            for id in ids:
                if action == "requeue":
                    outcome = backend.engine.requeue(id)
                else:
                    info = _read(backend, id)
                    # Only a dead one: it may have been requeued since the page was made.
                    if info is None or info.state != "dead":
                        others["gone" if info is None else info.state] += 1
                        continue
                    outcome = backend.engine.cancel(id)
                if outcome:
                    done += 1
                    self.log_change(request, DeadTask(id=id), f"{word}.")
                else:
                    others[str(outcome)] += 1
        except ShardqError as exc:
            messages.error(request, f"Not all were dealt with: {exc}")
        if done:
            messages.success(request, f"{word} {done} dead task{'' if done == 1 else 's'}.")
        if others:
            what = ", ".join(f"{count} {state}" for state, count in others.items())
            messages.warning(request, f"Left alone, as they are dead no more: {what}.")

    # ---- parts

    def _check(self, allowed: bool) -> None:
        if not allowed:
            raise PermissionDenied

    def _shown(self, request: HttpRequest, name: str, title: str, shown: dict[str, Any]) -> TemplateResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "may_requeue": self.has_change_permission(request),
            "may_remove": self.has_delete_permission(request),
            "back": f"{self._url(None)}?{request.GET.urlencode()}",
        }
        return TemplateResponse(request, f"admin/shardq/deadtask/{name}.html", context | shown)

    def _backend(self, request: HttpRequest) -> ShardqBackend | None:
        """The backend that was chosen, else the first one."""
        chosen = request.GET.get("backend")
        found = [each for each in backends() if chosen in (None, each.alias)]
        if not found:
            messages.error(request, f"TASKS has no backend “{chosen or '':.80}” of shardq.")
        return found[0] if found else None

    def _url(self, id: str | None) -> str:
        place = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_"
        return reverse(f"{place}changelist") if id is None else reverse(f"{place}change", args=[quote(id)])

    def _found(self, request: HttpRequest, backend: ShardqBackend, id: str) -> list[TaskInfo]:
        """The task of that id, if it is dead; the page says if it is not."""
        try:
            info = _read(backend, id)
        except BadInput as exc:
            messages.warning(request, str(exc))
            return []
        if info is None or info.state == "dead":
            return [info] if info else []
        messages.info(request, f"The task is not dead, but {info.state}.")
        return []

    def _filters(
        self, request: HttpRequest, backend: ShardqBackend | None, topics: dict[str, int], link: Callable[..., str]
    ) -> list[tuple[str, list[tuple[str, str, bool]]]]:
        """The filters beside the list: their titles, and of each choice its text, its link and whether it is chosen."""
        topic, since = request.GET.get("queue"), request.GET.get("since", "")
        link = partial(link, cursor=None, q=None)
        queues = [("All", link(queue=None), topic is None)]
        for name, dead in sorted(topics.items()):
            queues.append((f"{shown_topic(name)} ({dead:,})", link(queue=name), name == topic))
        times = [(text, link(since=value or None), value == since) for value, text in SINCE]
        filters = [("queue and priority", queues), ("time of death", times)]
        aliases = [each.alias for each in backends()]
        if len(aliases) > 1:
            ours = backend.alias if backend is not None else None
            filters.append(("backend", [(each, link(backend=each, queue=None), each == ours) for each in aliases]))
        return filters


@admin.register(StoredResult)
class StoredResultAdmin(admin.ModelAdmin):
    """Results, to be looked at."""

    list_display: ClassVar[tuple[str, ...]] = ("id", "path", "status", "queue_name", "last_attempted_at", "finished_at")
    list_filter: ClassVar[tuple[str, ...]] = ("status", "queue_name", "backend", "finished_at")
    search_fields: ClassVar[tuple[str, ...]] = ("=id", "=path")
    search_help_text = "The id of a task, or the path of its function, as a whole."
    ordering: ClassVar[tuple[str, ...]] = ("-last_attempted_at",)
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    has_change_permission = has_add_permission
    has_delete_permission = has_add_permission


def _page(backend: ShardqBackend, topic: str | None, asked: QueryDict) -> tuple[list[TaskInfo], str | None]:
    """The tasks of a page, and the cursor of the next one."""
    engine, cursor, since = backend.engine, asked.get("cursor"), asked.get("since", "")
    if cursor is None and since in (value for value, _ in SINCE if value):
        # A cursor is a place in the order of deaths: this one is before the first since then.
        begin = timezone.now() - dt.timedelta(seconds=int(since))
        place = Place("dead", int(begin.timestamp() * 1000))
        cursor = Query.checked(topic=topic, state="dead").cursor(engine.name, place)
    tasks: list[TaskInfo] = []
    for _ in range(LOOKS):
        page = engine.tasks(topic=topic, state="dead", limit=PAGE - len(tasks), cursor=cursor)
        tasks += page
        cursor = page.cursor
        # A page may be short before the end: the engine has looked at so many tasks of other topics.
        if cursor is None or len(tasks) >= PAGE:
            break
    return tasks, cursor


def _read(backend: ShardqBackend, id: str) -> TaskInfo | None:
    try:
        return backend.engine.get(id)
    except PayloadNotDecodable:
        return backend.engine.get(id, decode=False)


def _row(url: str, asked: QueryDict, task: TaskInfo) -> dict[str, Any]:
    """A task as templates show it."""
    payload = task.payload if type(task.payload) is dict else {}
    lines = (task.reason or "").strip().splitlines()
    return {
        "id": task.id,
        "url": f"{url}?{asked.urlencode()}" if asked else url,
        "topic": shown_topic(task.topic),
        "name": str(payload.get("task", ""))[:200],
        "died": task.died,
        "attempts": task.failures + task.lapses,
        "reason": printable(lines[-1][:200]) if lines else "",
    }


def _fields(task: TaskInfo, row: dict[str, Any]) -> list[tuple[str, Any]]:
    """The facts known of a task, beside its payload and its reason."""
    fields = [
        ("Id", task.id),
        ("Task", row["name"]),
        ("Queue and priority", row["topic"]),
        ("State", task.state),
        ("Died", task.died),
        ("Failed attempts", task.failures),
        ("Leases that ran out", task.lapses),
        ("Attempts allowed", task.max_attempts),
        ("Headers", ", ".join(f"{name}={value}" for name, value in task.headers.items())),
        ("Tags", ", ".join(task.tags)),
    ]
    return [(label, value) for label, value in fields if value not in (None, "")]


def _text(payload: Any) -> str:
    """A payload as text: JSON with its structure, or what Python makes of it."""
    try:
        text = json.dumps(payload, indent=2, ensure_ascii=False)
    except UNENCODABLE:
        text = repr(payload)
    return printable(text[:MOST], keep="\n\t") + (" …" if len(text) > MOST else "")


def _link(asked: QueryDict, **changes: str | None) -> str:
    """The query string of this page with other parameters; None takes one out."""
    query = asked.copy()
    for name, value in changes.items():
        if value is None:
            query.pop(name, None)
        else:
            query[name] = value
    return f"?{query.urlencode()}"
