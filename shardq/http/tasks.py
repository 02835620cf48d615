"""Tasks over HTTP: pushed one by one and many at a time, looked at, and commanded."""

from __future__ import annotations

import msgspec

from shardq.features.listing import line
from shardq.http.exchange import Answer, Ask, Route
from shardq.http.problems import Refusal


class IdQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The address of a task: ids have slashes and colons, which proxies change in a path."""

    id: str
    """The whole id, as the push answered it."""


async def get(ask: Ask, body: None, query: IdQuery) -> Answer:
    """Returns a task, or what is kept of one that has ended."""
    ask.check_id(("producer", "worker", "viewer"), query.id)
    found = await ask.engine.get(query.id, decode=False, ended=True)
    if found is None:
        raise Refusal(404, "no task has this id; an id includes the topic, as in mail/order-42", code="gone")
    return Answer(line.task(found))


ROUTES = (
    Route(
        method="GET",
        path="/v1/task",
        roles=(),
        handler=get,
        query=IdQuery,
        answer=line.TaskForm,
        problems=(404,),
    ),
)
