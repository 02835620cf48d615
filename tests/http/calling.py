"""A program that calls the door, and checks each answer against the description that the door gives of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import msgspec
from jsonschema import Draft202012Validator

from shardq import AsyncEngine
from shardq.http import app
from shardq.http.openapi import described
from shardq.http.routes import ROUTES
from shardq.http.server import served


@cache
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(described(ROUTES)))
    return found


@cache
def _validator(path: str, method: str, status: int, media: str) -> Draft202012Validator:
    content = document()["paths"][path][method]["responses"][str(status)]["content"]
    return Draft202012Validator({**content[media]["schema"], "components": document()["components"]})


def _described_path(path: str) -> str | None:
    for each in document()["paths"]:
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/:]+", re.escape(each)), path):
            return str(each)
    return None


class Program(httpx.Client):
    """Its answers are as they are described."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        answer = super().send(request, **options)
        check(request.method, request.url.path, answer)
        return answer

    def push(self, payload: Any = 1, **fields: Any) -> httpx.Response:
        return self.post("/v1/tasks", json={"payload": payload, **fields})

    def batch(self, lines: list[Any] | bytes, **query: str) -> list[dict[str, Any]]:
        """The lines of the answer."""
        body = lines if isinstance(lines, bytes) else b"".join(json.dumps(each).encode() + b"\n" for each in lines)
        answer = self.post(
            "/v1/tasks:batch", content=body, headers={"Content-Type": "application/x-ndjson"}, params=query
        )
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]


def check(method: str, path: str, answer: httpx.Response) -> None:
    media = answer.headers["content-type"]
    described = _described_path(path)
    if described is None or method.lower() not in document()["paths"][described] or answer.status_code == 405:
        assert media == "application/problem+json" or not path.startswith("/v1"), (path, answer.text)
        return
    validator = _validator(described, method.lower(), answer.status_code, media)
    values = answer.text.splitlines() if media == "application/x-ndjson" else [answer.text]
    for value in values:
        validator.validate(json.loads(value))


@contextmanager
def calling(engine: AsyncEngine, *, proxies: tuple[str, ...] = (), **options: Any) -> Iterator[Program]:
    """Serves an engine, and gives a program there."""
    door = app(engine, **options)

    async def close() -> None:
        await door.close()
        await engine.close()

    with (
        served(door, "127.0.0.1", proxies=proxies, start=engine.open, close=close) as url,
        Program(base_url=url, timeout=30) as program,
    ):
        yield program
