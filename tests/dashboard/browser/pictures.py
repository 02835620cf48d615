"""Draws ``shardq/dashboard/overview.png``, the picture of the README: ``make pictures``. With a folder as its argument,
it draws every page into that instead, wide and narrow, light and dark: ``make pictures DIR=pages``.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page

from cluster.server import Server
from shardq import Delivery, Engine, Task
from shardq.dashboard.links import PAGES
from shardq.dashboard.web import HERE
from shardq.http import app
from shardq.http.server import served
from tests.history.seeding import seed_a_day
from tests.support import browser
from tests.support.states import STATES
from tests.support.waiting import wait_until

WIDTHS = (1280, 360)

REASONS = (
    'Traceback (most recent call last):\n  File "shop.py", line 12, in mail\nTimeoutError: no answer in {} s',
    'Traceback (most recent call last):\n  File "shop.py", line 31, in mail\nValueError: order {} has no address',
    "HTTP 503 of https://hooks.example.org/{}: busy",
)


HOURS = 36
"""For so long tasks fall due."""


def _day(minute: int) -> int:
    """The tasks of a minute: more at noon than at night."""
    return round(60 - 35 * math.cos(2 * math.pi * (minute % 1440) / 1440) + 5 * math.sin(minute / 17))


def _pending() -> Iterator[Task]:
    now = time.time()
    for hour in range(HOURS):
        count = _day(int(now // 60) + 60 * hour) * 25
        for n in range(count):
            topic = ("mail", "invoice", "reminder")[n % 3]
            delay = 60 + 3600 * (hour + n / count)
            yield Task({"order": n, "to": "ann@example.org"}, delay=delay, topic=topic, tags=[f"customer-{n % 50}"])


@contextmanager
def shop(url: str) -> Iterator[Engine]:
    """An engine with tasks in every state, a dispatcher, a worker, schedules, and yesterday."""
    with Engine(url, name="shop", shards=8, max_attempts=5) as engine:
        seed_a_day(engine, _day)
        engine.every("nightly-report", cron="0 3 * * *", tz="Europe/Berlin", topic="report", payload={"kind": "daily"})
        engine.every("poll-stock", interval=900, topic="stock")
        engine.limit("mail", rate=500)
        engine.start()
        _fail(engine)
        engine.push_many(_pending())
        engine.push({"kind": "weekly"}, topic="report", id="weekly-2030-01", headers={"traceparent": "00-4bf92f-01"})
        engine.push_many([Task({"sku": n}, topic="stock") for n in range(40)])
        engine.consumer("report", name="reporter", lease=600).claim(1, wait=10)
        engine.push({"task": "shop.resize", "args": [42], "kwargs": {}}, topic="resize", delay=7200)
        _hold(engine)
        worker = engine.worker(concurrency=8, name="mailer")

        @worker.on("resize")
        def resize(delivery: Delivery) -> None:
            time.sleep(0.01)

        thread = threading.Thread(target=worker.run)
        thread.start()
        ended = threading.Event()
        pushes = threading.Thread(target=_push, args=(engine, ended))
        pushes.start()
        try:
            wait_until(lambda: len(engine.fleet()) == 2, "the worker reports", timeout=30)
            yield engine
        finally:
            ended.set()
            pushes.join()
            worker.stop()
            thread.join()


def _push(engine: Engine, ended: threading.Event) -> None:
    while not ended.wait(0.2):
        engine.push_many([Task({"image": n}, delay=1.0, topic="resize") for n in range(8)])


def _fail(engine: Engine) -> None:
    """Some tasks die, and some wait for another attempt."""
    engine.push_many([Task({"order": n}, topic="mail" if n % 3 else "webhook") for n in range(160)])
    left, consumer = list(range(160)), engine.consumer(["mail", "webhook"], name="shop-1")
    while left:
        for delivery in consumer.claim(len(left), wait=10):
            n = left.pop()
            reason = REASONS[n % len(REASONS)].format(n)
            if n < 60:
                consumer.bury(delivery, reason)
            else:
                consumer.retry(delivery, delay=30 + 20 * n, reason=reason)
    consumer.close()


def _hold(engine: Engine) -> None:
    """Tasks of some accounts wait: for one that is leased, for a retry, and for the end of a hold."""
    engine.push_many(
        [Task({"event": n}, topic="account", key=f"account-{n % 12}") for n in range(60)]
        + [Task({"event": n}, topic="account", key="the-noisy-one") for n in range(4000)]
    )
    consumer = engine.consumer("account", name="accounts-1", lease=600)
    held = consumer.claim(6, wait=10)
    consumer.retry(held[0], delay=900, reason=REASONS[0].format(5))
    engine.hold("account", key="account-3", until=time.time() + 1800)


def draw(page: Page, origin: str, folder: Path, pages: dict[str, str]) -> None:
    """Takes a picture of each page."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        for path, name in pages.items():
            page.goto(origin + path)
            page.wait_for_timeout(400)
            page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
            if width == WIDTHS[0] or path == "/":
                page.emulate_media(color_scheme="dark")
                page.screenshot(path=folder / f"{name}-{width}-dark.png", full_page=True)
                page.emulate_media(color_scheme="light")


def all_pages(engine: Engine) -> dict[str, str]:
    """The addresses of all pages, and a name for each."""
    pages = {path: title.lower() for path, title in PAGES.items()}
    for state in STATES:
        pages[f"/tasks?state={state}"] = f"tasks-{state}"
        [one, *_] = engine.tasks(state=state, limit=1)
        pages[f"/tasks/one?id={quote(one.id, safe='')}"] = f"task-{state}"
    [one, *_] = engine.tasks(failed=True, limit=1)
    pages[f"/tasks/one?id={quote(one.id, safe='')}"] = "task-retrying"
    return pages | {
        "/tasks?failed=1": "tasks-retrying",
        "/topics/one?topic=mail": "topic",
        "/topics/one?topic=account": "topic-keys",
        "/shards/number": "resize",
        "/tasks/bulk": "jobs",
        "/?span=hour": "overview-hour",
        "/?span=month": "overview-month",
    }


def main() -> None:
    with (
        Server(options={"appendonly": "yes"}) as server,
        shop(server.url) as engine,
        served(app(engine), "127.0.0.1", 0) as origin,
        browser.launched(browser.needed()) as chromium,
    ):
        page = chromium.new_page(viewport={"width": 1120, "height": 800}, color_scheme="light")
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
            folder.mkdir(parents=True, exist_ok=True)
            draw(page, origin, folder, all_pages(engine))
            return
        page.goto(origin + "/?span=day")
        page.wait_for_timeout(20_000)  # the lines of the last snapshots
        page.screenshot(path=HERE / "overview.png", full_page=True)


if __name__ == "__main__":
    main()
