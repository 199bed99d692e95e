"""axe-core: the accessibility checks of Deque, run inside a page. A test tool: nothing of it is part of the product.

npm installs the pinned version once, into the user's cache directory, with the machine's own npm configuration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

VERSION = "4.14.0"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
_INSTALL_S = 300
_RUN = """(rules) => axe.run(document, {runOnly: rules, resultTypes: ['violations']})
  .then(({violations}) => violations)"""


@cache
def _source() -> str:
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache_home / "sandboxd-tests" / f"axe-core-{VERSION}"
    script = place / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.skip("axe-core is not installed, and npm is not there to install it")
        place.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", str(place), "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(
            [*command, f"axe-core@{VERSION}"], capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
        if not script.exists():
            pytest.skip(f"npm cannot install axe-core: {done.stderr[-300:]}")
    return script.read_text()


def violations(page: Page) -> list[str]:
    """Return what axe finds on the page as it is, one line for each rule and element."""
    page.evaluate(_source())
    found: list[dict[str, Any]] = page.evaluate(_RUN, list(RULES))
    return [f"{one['id']}: {one['help']}: {node['html'][:160]}" for one in found for node in one["nodes"]]
