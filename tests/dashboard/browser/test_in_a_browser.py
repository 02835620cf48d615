"""The dashboard in a real browser: what a person sees and does there, by mouse and by keyboard, at any width."""

from __future__ import annotations

import datetime as dt
import re
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from shardq import Delivery, Engine, Task
from shardq.engine import tables
from tests.dashboard.browser.conftest import Visiting
from tests.dashboard.test_bulk import bury
from tests.support.browser import PATIENCE_MS
from tests.support.states import FAR_S

expect.set_options(timeout=PATIENCE_MS)

PAGES = (
    "/",
    "/tasks",
    "/tasks?state=dead",
    "/tasks?state=leased",
    "/tasks?failed=1",
    "/retries",
    "/dead",
    "/tasks/bulk",
    "/future",
    "/shards",
    "/shards/number",
    "/nodes",
    "/topics",
    "/topics/one?topic=mail",
    "/fleet",
    "/schedules",
    "/changes",
)
"""Beside these, a task's own."""

WIDTHS = (1280, 360)

_CUT = """() => [...document.querySelectorAll(".wide")]
  .filter(each => each.scrollWidth > each.clientWidth && !each.querySelector("svg.drawing"))
  .map(each => each.innerText)"""
"""The tables that scroll to the side: drawings may."""

_BROKEN = """() => {
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = new Range();
  for (let text = texts.nextNode(); text; text = texts.nextNode())
    for (const word of text.parentElement.closest("td, th, dt, dd") ? text.data.matchAll(/[^\\s\\/._:@=-]+/g) : []) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const rows = new Set([...range.getClientRects()].map(each => each.top));
      if (word[0].length <= 24 && rows.size > 1) found.push(word[0]);
    }
  return found;
}"""
"""The words that go on in the next line, but for very long ones."""

_COVERED = """() => [...document.querySelectorAll("tr.bad")].filter(row => {
  const bar = [row, row.cells[0]].find(each => getComputedStyle(each).boxShadow !== "none"), range = new Range();
  range.selectNodeContents(row.cells[0]);
  return range.getBoundingClientRect().left < bar.getBoundingClientRect().left + 4;
}).map(row => row.innerText)"""
"""The rows whose red bar is over their first letter."""

NAMES = ("customer.onboarding.welcome", "invoice_documents", "payment-reminders")
"""Of topics, as people give them."""

FAR_AWAY = "America/Argentina/Buenos_Aires"

SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")

_FOCUSED = """() => {
  const here = document.activeElement;
  const label = here.labels?.[0] ?? here;
  return [here.tagName, label.textContent, getComputedStyle(here).outlineStyle];
}"""


def all_pages(engine: Engine) -> list[str]:
    """The addresses of all pages, on which there is something of every kind."""
    engine.configure(done_age=3600)
    bury(engine, ["Traceback\n  File 'x'\nTimeoutError: " + "smtp.example.org-" * 20, "bad"])
    engine.push_many([Task({"n": n}, delay=FAR_S + n, topic="m" * 64) for n in range(50)])
    engine.push("x", topic="mail")
    for name in NAMES:
        engine.push({"task": f"shop.{name}.deliver_everything"}, delay=FAR_S, topic=name)
    engine.limit(NAMES[0], rate=500, concurrency=20, per_key=3)
    engine.every("nightly-reconciliation-of-payments", cron="0 3 * * *", tz=FAR_AWAY, topic=NAMES[1])
    engine.every("report-" + "n" * 50, cron="0 3 * * *", tz="Europe/Berlin", topic="m" * 64)
    engine.limit("mail", rate=500, concurrency=20)
    calls = [{"task": "shop.resize", "args": [n, "x" * 200]} for n in range(3)]
    engine.push_many([Task(call, topic="named", tags=["t"]) for call in calls])
    engine.start()
    consumer = engine.consumer("named", name="w" * 50)
    taken: list[Delivery] = []
    while len(taken) < len(calls):
        taken += consumer.claim(len(calls) - len(taken), wait=30)
    engine.stop()
    consumer.retry(taken[0], delay=FAR_S, reason="Traceback\nConnectionError: " + "https://example.org/" * 20)
    retried, done = taken[0].id, taken[2].id
    consumer.ack(taken[2])
    id = engine.push({"text": "x" * 500}, delay=FAR_S, id="i" * 200, headers={"h" * 200: "v" * 200}, tags=["t" * 200])
    ones = (id, engine.tasks(state="dead")[0].id, retried, done)
    return [*PAGES, "/tasks?state=done", *(f"/tasks/one?id={each}" for each in ones)]


@pytest.mark.slow
def test_pages_fit_their_windows_and_have_contrast_by_day_and_by_night(
    engine: Engine, visit: Visiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WAITS_S", -1)  # each row of a topic is red
    addresses, window = all_pages(engine), visit(width=WIDTHS[0])
    page = window.page
    for address in addresses:
        page.goto(address)
        expect(page.locator("h1")).to_have_count(1)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{address} scrolls to the side"
            assert page.evaluate(_CUT) == [], f"{address} cuts a table at {width}"
            assert page.evaluate(_COVERED) == [], f"{address} at {width}"
            if width == WIDTHS[0]:
                assert page.evaluate(_BROKEN) == [], f"{address} breaks words"
        backgrounds = set()
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert window.weak_texts() == [], f"{address} in {scheme} colours"
            backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(backgrounds) == len(SCHEMES), address


def test_a_task_is_found_and_cancelled_by_keyboard_alone(engine: Engine, visit: Visiting) -> None:
    id = engine.push({"order": 42}, delay=FAR_S, topic="mail")
    page = visit().page
    expect(page).not_to_have_url(re.compile("token"))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    to(page, "Tasks")
    expect(page.get_by_role("heading", name="Tasks")).to_be_visible()
    to(page, "Topic")
    page.keyboard.type("mail")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("topic=mail"))
    expect(page.get_by_role("link", name=id)).to_be_visible()
    to(page, id)
    expect(page.locator("pre")).to_contain_text('"order": 42')
    to(page, "Cancel")
    expect(page.get_by_role("heading")).to_contain_text(f"Cancel the task {id}?")
    to(page, "Cancel the task")
    expect(page.get_by_role("status")).to_have_text(f"{id} was cancelled.")
    assert engine.get(id) is None


def to(page: Page, name: str) -> None:
    """Goes by the Tab key to what has this name. Follows a link, or presses a button."""
    for _ in range(60):
        page.keyboard.press("Tab")
        kind, text, outline = page.evaluate(_FOCUSED)
        if text.strip() == name:
            assert outline != "none", f"nobody sees that {name} has the focus"
            if kind in ("A", "BUTTON"):
                page.keyboard.press("Enter")
            return
    raise AssertionError(f"no key press came to {name}")


@pytest.mark.slow
def test_dead_tasks_are_requeued_with_progress(engine: Engine, visit: Visiting) -> None:
    bury(engine, ["TimeoutError"] * 1500)
    page = visit().page
    page.get_by_role("navigation").get_by_role("link", name="Dead").click()
    expect(page.get_by_role("cell", name="TimeoutError", exact=True)).to_be_visible()
    page.get_by_role("button", name="Requeue all").click()
    page.get_by_role("button", name="Requeue 1,500 tasks").click()
    expect(page.get_by_role("status")).to_contain_text("1,500 of 1,500 requeued")
    assert engine.stats(shards=False).dead == 0


@pytest.mark.slow
def test_marked_tasks_of_a_list_are_run_now(engine: Engine, visit: Visiting) -> None:
    engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(5)])
    page = visit(width=360).page
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Tasks").click()
    page.get_by_role("link", name="scheduled 5").click()
    expect(page.get_by_text("0 marked")).to_be_visible()
    expect(page.get_by_role("button", name="Run now")).to_be_disabled()
    page.get_by_label("all of this page").check()
    expect(page.get_by_text("5 marked")).to_be_visible()
    page.get_by_label("Mark", exact=True).first.uncheck()
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("heading")).to_contain_text("Run 4 tasks now?")
    page.get_by_role("button", name="Run 4 tasks now").click()
    expect(page.get_by_role("status")).to_have_text("4 of 4 tasks due now.")
    assert len(engine.tasks(due=(None, dt.datetime.now(dt.UTC)))) == 4


def test_the_overview_is_live_and_a_topic_is_paused(engine: Engine, visit: Visiting) -> None:
    engine.push("x", delay=FAR_S, topic="mail")
    page = visit().page
    tile = page.locator("dl.tiles > div", has=page.get_by_role("link", name="scheduled"))
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(tile).to_contain_text("1")
    for count in (42, 83, 124):
        engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(41)])
        expect(tile).to_contain_text(str(count))
    page.get_by_role("navigation").get_by_role("link", name="Topics").click()
    page.get_by_role("button", name="Pause mail").click()
    page.get_by_role("link", name="No", exact=True).click()
    page.get_by_role("button", name="Pause mail").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume mail")).to_be_visible()
    assert engine.stats(shards=False).topics["mail"].paused
    page.get_by_role("button", name="Resume mail").click()
    expect(page.get_by_role("button", name="Pause mail")).to_be_visible()
    assert not engine.stats(shards=False).topics["mail"].paused
