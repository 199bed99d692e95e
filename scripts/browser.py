"""A browser on the inspector's page: Debian's Chromium, driven by Playwright, let in by `sandboxd inspect`.

For tests, the benchmark of the page and the pictures of its documentation. It installs nothing and downloads nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from scripts.tools import find_program

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WINDOW = (1280, 800)
PHONE = (390, 844)


def has_browser() -> bool:
    return find_program("chromium") is not None


@contextmanager
def open_browser() -> Iterator[Browser]:
    program = find_program("chromium")
    if program is None:
        raise FileNotFoundError("cannot find chromium: run `make tools` as root on Debian or Ubuntu")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_door(socket: Path) -> Iterator[str]:
    """Run `sandboxd inspect`; return the link that it prints, which works once."""
    command = [sys.executable, "-m", "sandboxd", "inspect"]
    env = {**os.environ, "SANDBOXD_SOCKET": str(socket)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as door:
        try:
            assert door.stdout is not None  # noqa: S101  # stdout is a pipe
            yield door.stdout.readline().strip()
        finally:
            door.terminate()


class InspectorTab:
    """One tab on the page. It collects what a working page never has: errors, refused content, failed requests."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note)
        page.on("requestfailed", self._note_failure)

    def open(self, fragment: str) -> Page:
        """Show the view that this fragment names, in a new document."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}{fragment}")
        return self.page

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"{message.text} {message.location.get('url', '')}")

    def _note_failure(self, request: Request) -> None:
        # A request that the page no longer needs is aborted; that is no failure.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.problems.append(f"{request.url}: {request.failure}")


class InspectorWindow:
    """A browser context that the door has let in. Every tab shares its cookie."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.context = context
        self.base = base

    def tab(self) -> InspectorTab:
        return InspectorTab(self.context.new_page(), self.base)


@contextmanager
def open_window(
    browser: Browser, socket: Path, *, size: tuple[int, int] = WINDOW, is_dark: bool = False
) -> Iterator[InspectorWindow]:
    width, height = size
    with open_door(socket) as link:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if is_dark else "light"
        )
        try:
            # The cookie is for the whole context. Without a page, nothing else is loaded beside what is measured.
            base = context.request.get(link).url.partition("#")[0]
            yield InspectorWindow(context, base)
        finally:
            context.close()
