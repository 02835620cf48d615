"""The dashboard in a real browser: what a person sees and does there, by mouse and by keyboard, at any width."""

from __future__ import annotations

import re
from typing import Literal

from playwright.sync_api import Page, expect

from shardq import Engine, Task
from tests.dashboard.browser.conftest import Visiting
from tests.dashboard.test_bulk import bury
from tests.support.browser import PATIENCE_MS
from tests.support.states import FAR_S

expect.set_options(timeout=PATIENCE_MS)

PAGES = (
    "/",
    "/tasks",
    "/tasks?state=dead",
    "/dead",
    "/tasks/bulk",
    "/future",
    "/shards",
    "/shards/number",
    "/nodes",
    "/topics",
    "/topics/one?topic=mail",
    "/fleet",
)
"""Beside these, a task's own."""

SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")

_FOCUSED = """() => {
  const here = document.activeElement;
  const label = here.labels?.[0] ?? here;
  return [here.tagName, label.textContent, getComputedStyle(here).outlineStyle];
}"""


def all_pages(engine: Engine) -> list[str]:
    """The addresses of all pages, on which there is something of every kind."""
    bury(engine, ["Traceback\n  File 'x'\nTimeoutError: " + "smtp.example.org-" * 20, "bad"])
    engine.push_many([Task({"n": n}, delay=FAR_S + n, topic="m" * 64) for n in range(50)])
    engine.push("x", topic="mail")
    id = engine.push({"text": "x" * 500}, delay=FAR_S, id="i" * 200, headers={"h" * 200: "v" * 200}, tags=["t" * 200])
    return [*PAGES, f"/tasks/one?id={id}", f"/tasks/one?id={engine.tasks(state='dead')[0].id}"]


def test_pages_fit_narrow_windows_and_have_contrast_by_day_and_by_night(engine: Engine, visit: Visiting) -> None:
    addresses, window = all_pages(engine), visit(width=390)
    page = window.page
    for address in addresses:
        page.goto(address)
        expect(page.locator("h1")).to_have_count(1)
        width, shown = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= shown, f"{address} scrolls to the side"
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


def test_dead_tasks_are_requeued_with_progress(engine: Engine, visit: Visiting) -> None:
    bury(engine, ["TimeoutError"] * 1500)
    page = visit().page
    page.get_by_role("navigation").get_by_role("link", name="Dead").click()
    expect(page.get_by_role("cell", name="TimeoutError", exact=True)).to_be_visible()
    page.get_by_role("button", name="Requeue all").click()
    page.get_by_role("button", name="Requeue 1,500 tasks").click()
    expect(page.get_by_role("status")).to_contain_text("1,500 of 1,500 requeued")
    assert engine.stats(shards=False).dead == 0


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
