"""A session with 10,000 events: one request, and only the rows in sight exist as elements."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from benchmarks.inspector import FRAGMENT, fill
from scripts.browser import InspectorTab
from tests.browser.conftest import PATIENCE_MS
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine
expect.set_options(timeout=PATIENCE_MS)

EVENTS = 10_000
_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))"


@pytest.fixture(scope="module", autouse=True)
def told(daemon: RunningDaemon) -> None:
    fill(daemon.socket, EVENTS)


def test_rows_are_recycled_and_the_timeline_is_one_request(tab: InspectorTab) -> None:
    requests: list[str] = []
    tab.page.on("request", lambda request: requests.append(request.url) if "/timeline" in request.url else None)
    page = tab.open(FRAGMENT)
    rows = page.get_by_role("option")
    expect(rows.first).to_be_visible()
    expect(page.locator(".amount")).to_contain_text("10,0")
    assert len([url for url in requests if "/timeline?" in url]) == 1
    before = page.locator(".entry-row").count()
    assert before < 100
    page.evaluate("document.querySelectorAll('.entry-row').forEach((row) => { row.mine = true; })")
    entries = page.get_by_role("listbox")
    for part in (0, 0.25, 0.5, 0.99, 0.1):
        entries.evaluate("(list, part) => { list.scrollTop = list.scrollHeight * part; }", part)
        page.evaluate(_FRAMES)
        assert page.locator(".entry-row").count() == before
        place = entries.evaluate("(list) => Math.floor(list.scrollTop / 34) + 2")
        expect(page.locator(f"[role=option][aria-posinset='{place}']")).to_be_visible()
    assert page.evaluate("[...document.querySelectorAll('.entry-row')].every((row) => row.mine)")


def test_the_first_and_the_last_entry_are_one_key_away(tab: InspectorTab) -> None:
    page = tab.open(FRAGMENT)
    entries = page.get_by_role("listbox")
    expect(page.get_by_role("option").first).to_be_visible()
    entries.focus()
    entries.press("Home")
    expect(page.get_by_role("option", selected=True)).to_contain_text("message 0")
    expect(page.get_by_role("article", name="Details")).to_contain_text("message 0")
    entries.press("End")
    expect(page.locator("[role=option][aria-selected=true]")).to_have_attribute(
        "aria-posinset", str(page.get_by_role("option").first.get_attribute("aria-setsize"))
    )
    assert page.locator(".entry-row").count() < 100


def test_a_link_to_an_entry_shows_it_among_all_others(tab: InspectorTab) -> None:
    page = tab.open(f"{FRAGMENT}?entry=m5000")
    expect(page.get_by_role("article", name="Details")).to_contain_text("message 5000:")
    expect(page.get_by_role("option", selected=True)).to_be_in_viewport()
