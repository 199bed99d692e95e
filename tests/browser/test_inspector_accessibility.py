"""Every view of the inspector, checked by axe-core in both themes, and by the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from sandboxd.client import Client
from scripts.browser import InspectorTab
from tests.browser.axe import violations
from tests.browser.conftest import PATIENCE_MS
from tests.browser.told_session import HOME, SESSION, VIEWS, tell
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module", autouse=True)
def told(daemon: RunningDaemon, client: Client) -> Iterator[None]:
    tell(client, daemon.socket)
    client.ensure_session("empty", "ada")
    yield
    client.destroy_sandbox(SESSION)


def settled(page: Page) -> None:
    """Wait until the view has loaded what it shows."""
    expect(page.locator("main h1")).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", [*VIEWS, "#/tenants/default/sessions/empty", "#/search", "#/nowhere"])
def test_axe_finds_nothing(tab: InspectorTab, view: str, theme: str) -> None:
    tab.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page = tab.open(view)
    settled(page)
    if view.endswith("/timeline"):
        page.get_by_label("Filter by title").fill("bytearray")
        page.get_by_role("option").filter(has_text="bytearray").click()
        page.get_by_label("Filter by title").fill("")
        expect(page.get_by_role("article", name="Details")).to_be_visible()
    assert violations(page) == []


def test_axe_finds_nothing_in_the_dialogs(tab: InspectorTab) -> None:
    page = tab.open("#/")
    settled(page)
    page.keyboard.press("?")
    assert violations(page) == []
    page = tab.open(f"{HOME}/copies")
    settled(page)
    page.get_by_role("button", name="Fork this session").click()
    assert violations(page) == []


def test_everything_can_be_reached_by_the_tab_key(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/timeline")
    expect(page.get_by_role("option").first).to_be_visible()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('role') || document.activeElement.tagName"))
    assert {"listbox", "application", "A", "BUTTON", "INPUT"} <= reached


def test_the_list_tells_its_selected_entry(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/timeline")
    entries = page.get_by_role("listbox")
    expect(page.get_by_role("option").first).to_be_visible()
    entries.focus()
    entries.press("Home")
    chosen = page.locator("[role=option][aria-selected=true]")
    expect(chosen).to_have_attribute("aria-posinset", "1")
    entries.press("ArrowDown")
    expect(chosen).to_have_attribute("aria-posinset", "2")
    assert entries.get_attribute("aria-activedescendant") == chosen.get_attribute("id")
