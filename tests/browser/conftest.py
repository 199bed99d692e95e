"""A daemon, a browser that `sandboxd inspect` let in, and a tab whose page must not report an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from sandboxd.client import Client
from scripts.browser import InspectorTab, InspectorWindow, has_browser, open_browser, open_window
from tests.running import RunningDaemon

PATIENCE_MS = 60_000
"""How long a test waits for a state of the page: long, because the suite shares the machine."""


@pytest.fixture(scope="module")
def daemon(agent_image: str) -> Iterator[RunningDaemon]:
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client() as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not has_browser():
        pytest.skip("chromium is not installed; run `make tools` as root on Debian")
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def window(daemon: RunningDaemon, browser: Browser) -> Iterator[InspectorWindow]:
    with open_window(browser, daemon.socket) as window:
        window.context.set_default_timeout(PATIENCE_MS)
        yield window


@pytest.fixture
def tab(window: InspectorWindow) -> Iterator[InspectorTab]:
    tab = window.tab()
    yield tab
    tab.page.close()
    assert tab.problems == []
