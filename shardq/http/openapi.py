"""The description of the API in OpenAPI 3.1, made from the table of routes, and from the models that check what comes
in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from shardq.http.exchange import NDJSON, Answer, Ask, Route
from shardq.http.problems import TYPE, ProblemForm
from shardq.version import __version__

ANY = (400, 401, 403, 413, 415, 429, 431, 500, 503, 504)
"""The problems that every call may meet. 404 and 405 are of addresses that are not here."""

SAID = {
    200: "Done.",
    201: "Stored.",
    202: "No server can be reached: it is kept, and carried out later.",
    503: "Nothing was written. Send it again.",
    504: "It is unknown what was written. Send it again, with the same id.",
}

_FIELD = re.compile(r"{(\w+)}")


def described(routes: Iterable[Route]) -> dict[str, Any]:
    """The document."""
    routes = list(routes)
    asked = [(route.body, route.query, *route.answers) for route in routes]
    types = [each for of_route in asked for each in of_route if each is not None]
    ref = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components([*types, ProblemForm], ref_template=ref)
    found = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route, of_route in zip(routes, asked, strict=True):
        body, query, *answers = (None if each is None else next(found) for each in of_route)
        answer = answers[0] if len(answers) == 1 else {"anyOf": answers}
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body, query, answer, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shardq",
            "version": __version__,
            "description": "A delay queue on Redis. /v1 only gains fields: ignore those that you do not know. 503 says "
            "that nothing was written; 504 that it is unknown, and that the same may be sent again with the same id.",
        },
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, body: Any, query: Any, answer: Any, components: dict[str, Any]) -> dict[str, Any]:
    name = f"{route.method.lower()}_{re.sub(r'[^a-z]+', '_', route.path.removeprefix('/v1')).strip('_') or 'about'}"
    problems = sorted({*ANY, *route.problems})
    media = route.media.decode()
    responses: dict[str, Any] = {
        str(code): {"description": SAID[code], "content": {media: {"schema": answer}}} for code in route.codes
    }
    problem = {TYPE.decode(): {"schema": {"$ref": "#/components/schemas/ProblemForm"}}}
    for code in problems:
        responses[str(code)] = {"description": SAID.get(code, f"{HTTPStatus(code).phrase}."), "content": problem}
    found: dict[str, Any] = {
        "operationId": name,
        "summary": route.summary,
        "description": (route.handler.__doc__ or "").strip(),
        "responses": responses,
    }
    if route.roles:
        found["x-roles"] = list(route.roles)
    if route.query is not None:
        found["parameters"] = _parameters(route, components[query["$ref"].rpartition("/")[2]])
    if route.body is not None:
        found["requestBody"] = {"required": True, "content": {media: {"schema": body}}}
    if route.media == NDJSON:
        found["description"] += " The schemas are those of one line."
    return found


def _parameters(route: Route, schema: dict[str, Any]) -> list[dict[str, Any]]:
    in_path = set(_FIELD.findall(route.path))
    return [
        {
            "name": name,
            "in": "path" if name in in_path else "query",
            "required": name in in_path or name in schema.get("required", ()),
            "schema": each,
        }
        for name, each in schema["properties"].items()
    ]


def row(routes: Iterable[Route]) -> Route:
    """The row of the description itself, which has all the others in it."""
    others = list(routes)

    @cache
    def text() -> bytes:
        return msgspec.json.encode(described([*others, found]))

    async def openapi(ask: Ask, body: None, query: None) -> Answer:
        """Describes all calls in OpenAPI 3.1."""
        return Answer(text())

    found = Route(method="GET", path="/v1/openapi.json", roles=(), handler=openapi, answer=dict[str, Any])
    return found
