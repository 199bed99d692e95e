"""Write the pictures of docs/inspector.md: the README's tour, looked at with `sandboxd inspect` in a real browser.

The commands run as written, on a daemon of their own, and the pictures show what they left. Usage, with a container
engine and Chromium: `.venv/bin/python -m scripts.inspector_screenshots`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from sandboxd.image import default_image
from sandboxd.progress import say
from scripts.browser import open_browser, open_window
from scripts.environment import ROOT
from scripts.verb import main
from tests.running import RunningDaemon
from tests.tour import console_steps, environment_of, run_step

TARGET = ROOT / "docs" / "inspector"
PICTURES = ("overview", "timeline", "memory", "files", "terminal")
HOME = "#/tenants/default/sessions/research"
_PATIENCE_MS = 60_000


def take_tour(daemon: RunningDaemon) -> None:
    """Run the README's Python example, then the commands of its tour, which leave the session `research`."""
    readme = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    subprocess.run([sys.executable, "-c", example], env=environment_of(daemon), check=True, timeout=60)
    run_step("sandboxd rm research", daemon)
    for command, _ in console_steps(readme):
        if not command.startswith("export "):
            run_step(command, daemon)


def take_pictures(browser: Browser, socket: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=_PATIENCE_MS)
    for name in PICTURES:
        with open_window(browser, socket, is_dark=name == "terminal") as window:
            window.context.set_default_timeout(_PATIENCE_MS)
            tab = window.tab()
            _SHOW[name](tab.open(f"{HOME}/{name}" if name != "overview" else "#/"))
            tab.page.screenshot(path=target / f"{name}.png")


def _show_overview(page: Page) -> None:
    expect(page.locator(".failures li").first).to_be_visible()
    # Two points make a line.
    expect(page.locator(".plot .line")).to_have_count(3)
    expect(page.locator("table .spark .line")).to_have_count(1)


def _show_timeline(page: Page) -> None:
    page.get_by_role("option").filter(has_text="cat memo/user/USER.md").click()
    expect(page.get_by_role("region", name="Output")).to_contain_text("Read-only file system")
    by_time = page.get_by_role("button", name="By time")
    if by_time.get_attribute("aria-pressed") == "true":  # evenly: the tour takes seconds, and its parts milliseconds
        by_time.click()


def _show_memory(page: Page) -> None:
    page.get_by_role("link", name="USER.md").click()
    page.get_by_role("link", name="What changed").first.click()
    expect(page.locator("table.diff ins")).to_have_text("green ")
    expect(page.get_by_role("region", name="Shown in")).to_contain_text("yes, after")


def _show_files(page: Page) -> None:
    page.get_by_role("link", name="greeting.txt").click()
    page.locator("summary", has_text="memo/").click()
    page.locator("summary", has_text="user/").click()
    expect(page.get_by_role("region", name="/workspace/greeting.txt")).to_contain_text("hello, world")
    expect(page.get_by_role("link", name="USER.md")).to_be_visible()


def _show_terminal(page: Page) -> None:
    rows = page.locator(".terminal .row")
    expect(rows.filter(has_text="$").first).to_be_visible()
    page.keyboard.type("ls -l --color; cat greeting.txt memo/user/USER.md; echo hacked > memo/user/USER.md\n")
    expect(rows.filter(has_text=re.compile("Read-only file system"))).to_be_visible()


_SHOW = {
    "overview": _show_overview,
    "timeline": _show_timeline,
    "memory": _show_memory,
    "files": _show_files,
    "terminal": _show_terminal,
}


def write(target: Path) -> list[Path]:
    """Take the tour on a daemon of its own, and write its pictures."""
    daemon = RunningDaemon(image=default_image())
    try:
        daemon.start()
        take_tour(daemon)
        with open_browser() as browser:
            take_pictures(browser, daemon.socket, target)
    finally:
        daemon.stop()
    return [target / f"{name}.png" for name in PICTURES]


def _verb(_: Sequence[str]) -> int:
    for picture in write(TARGET):
        say(f"wrote {picture.relative_to(ROOT)}, {picture.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    main(_verb)
