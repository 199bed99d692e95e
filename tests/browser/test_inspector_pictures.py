"""The pictures of docs/inspector.md can be taken again, and the page names each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.browser import has_browser
from scripts.inspector_screenshots import PICTURES, TARGET, write

PAGE = TARGET.with_suffix(".md")
PNG = b"\x89PNG\r\n\x1a\n"
MOST_BYTES = 600_000


def test_the_page_shows_every_picture_and_they_are_small() -> None:
    named = re.findall(r"\(inspector/(\w+)\.png\)", PAGE.read_text())
    assert sorted(named) == sorted(PICTURES)
    pictures = [TARGET / f"{name}.png" for name in PICTURES]
    assert all(picture.read_bytes().startswith(PNG) for picture in pictures)
    assert sum(picture.stat().st_size for picture in pictures) < MOST_BYTES


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_the_tour_leaves_what_the_pictures_show(agent_image: str, tmp_path: Path) -> None:
    if not has_browser():
        pytest.skip("chromium is not installed; run `make tools` as root on Debian")
    for picture in write(tmp_path):
        assert picture.read_bytes().startswith(PNG)
