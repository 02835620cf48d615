"""The service of the guide's first page, while its server is away: requests fail soon, and in words of HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from cluster.server import Server
from tests.support.reader import ROOT, steps

PAGE = ROOT / "shardq/guide/first-service.md"

SOON_S = 10.0
"""The page's timeout is two seconds; without one it is thirty."""


@pytest.fixture
def shop(own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the page, on a server of its own."""
    monkeypatch.setenv("SHARDQ_URL", own_server.url)
    blocks = [step.text for step in steps(PAGE.read_text(encoding="utf-8")) if step.text.startswith("# shop.py")]
    assert len(blocks) == 2
    (tmp_path / "shop.py").write_text("\n".join(blocks))
    spec = importlib.util.spec_from_file_location("shop", tmp_path / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def asked(shop: ModuleType, requests: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Sends these requests to the service, which runs as on the page."""

    async def run() -> None:
        transport = httpx.ASGITransport(shop.app, raise_app_exceptions=False)
        async with shop.lifespan(shop.app), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            await requests(client)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("away", ["killed", "frozen"])
def test_a_request_without_redis_is_refused_soon(shop: ModuleType, own_server: Server, away: str) -> None:
    async def requests(client: httpx.AsyncClient) -> None:
        stored = await client.post("/orders/1?to=ann@example.org&delay=3600")
        assert stored.json() == {"reminder": "mail/order-1"}
        (own_server.kill if away == "killed" else own_server.pause)()
        for method, path in (("POST", "/orders/2?to=bob@example.org"), ("DELETE", "/reminders/mail/order-1")):
            began = time.monotonic()
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()) == (503, {"detail": "try again later"})
            assert answer.headers["retry-after"] == "5"
            assert time.monotonic() - began < SOON_S

    try:
        asked(shop, requests)
    finally:
        if away == "frozen":
            own_server.resume()


@pytest.mark.slow
def test_an_order_has_one_reminder(shop: ModuleType) -> None:
    """However often its request is repeated, and also when the reminder was cancelled."""
    order = "/orders/1?to=ann@example.org&delay=3600"

    async def requests(client: httpx.AsyncClient) -> None:
        assert [(await client.post(order)).json() for _ in range(2)] == [{"reminder": "mail/order-1"}] * 2
        assert (await client.delete("/reminders/mail/order-1")).json() == {"reminder": "cancelled"}
        await client.post(order)
        assert (await client.delete("/reminders/mail/order-1")).status_code == 409

    asked(shop, requests)
