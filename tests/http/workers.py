"""A gateway with tokens, and workers that call it as any HTTP client does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from shardq import AsyncEngine
from shardq.http import app
from shardq.http.claims import Work
from shardq.http.server import served
from shardq.http.work import work_of
from tests.http.calling import Program
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

SECRETS = {"mailer": "secret-of-mailer", "biller": "secret-of-biller", "looker": "secret-of-looker"}


class Worker(Program):
    """A program with the token of a service."""

    def claim(self, *topics: str, **options: Any) -> list[dict[str, Any]]:
        answer = told(self.post("/v1/claim", json={"topics": topics or ["mail"], "wait": 0} | options))
        found: list[dict[str, Any]] = answer["tasks"]
        return found

    def settle(self, *items: dict[str, Any]) -> dict[str, Any]:
        return told(self.post("/v1/settle", json=items))

    def extend(self, *receipts: str, seconds: float = 60) -> list[str]:
        found: list[str] = told(self.post("/v1/extend", json={"receipts": receipts, "seconds": seconds}))["lost"]
        return found


def told(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def done(task: dict[str, Any], do: str, **more: Any) -> dict[str, Any]:
    return {"receipt": task["receipt"], "do": do} | more


class Gateway:
    """A gateway that is served, and the workers that were made for it."""

    def __init__(self, url: str, work: Work) -> None:
        self.url = url
        self.work = work
        self._made: list[Worker] = []

    def worker(self, service: str = "mailer") -> Worker:
        headers = {"Authorization": f"Bearer {SECRETS[service]}"}
        self._made.append(Worker(base_url=self.url, headers=headers, timeout=60, trust_env=False))
        return self._made[-1]

    def connected(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def ask(self, client: socket.socket, call: str, value: Any, service: str = "mailer") -> None:
        """Sends a request, and reads no answer."""
        body = json.dumps(value).encode()
        head = (
            f"POST /v1/{call} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {SECRETS[service]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)

    def waiting(self, service: str = "mailer", **options: Any) -> socket.socket:
        """A claim that waits, on a connection of its own."""
        before = self.work.waits
        client = self.connected()
        self.ask(client, "claim", {"topics": ["mail"], "wait": 30} | options, service)
        wait_until(lambda: self.work.waits > before and self._is_registered("mail"), "the claim waits")
        return client

    def _is_registered(self, topic: str) -> bool:
        """True if the process would be woken for the topic, whatever shard a task comes to: claims sleep then."""
        engine: Any = self.work.engine
        return engine._wakeups is not None and not engine._wakeups.waiters.unregistered(engine.topology.span(), [topic])

    def close(self) -> None:
        for each in self._made:
            each.close()


def answer_of(client: socket.socket) -> tuple[str, Any]:
    """The head and the JSON that come on a connection."""
    with client, client.makefile("rb") as file:
        head = b"".join(iter(file.readline, b"\r\n")).decode().lower()
        [length] = [line.partition(":")[2] for line in head.splitlines() if line.startswith("content-length:")]
        return head, json.loads(file.read(int(length)))


@contextmanager
def gateway_of(url: str, name: str, folder: Path) -> Iterator[Gateway]:
    """Serves an engine, for two services that work and one that looks."""
    tokens = write_tokens(
        folder / "tokens",
        mailer=(SECRETS["mailer"], "worker", "mail*"),
        biller=(SECRETS["biller"], "worker", "bill,mail"),
        looker=(SECRETS["looker"], "viewer", "*"),
    )
    engine = AsyncEngine(url, name=name, timeout=5.0)
    application = app(engine, tokens=tokens)

    async def close() -> None:
        await application.close()
        await engine.close()

    with served(application, "127.0.0.1", close=close) as address:
        gateway = Gateway(address, work_of(application.gateway))
        try:
            yield gateway
        finally:
            gateway.close()
