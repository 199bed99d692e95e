"""The how-to's example is a program: its blocks are joined and its own tests run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from memo import open_store

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-store.md"
_BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONFTEST = "import pytest\n\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory with the files of the how-to."""
    page = PAGE.read_text()
    blocks = _BLOCK.findall(page)
    assert len(blocks) == page.count("```python"), "a block does not say which file it is part of"
    files: dict[str, str] = {}
    for name, code in blocks:
        files[name] = files.get(name, "") + code
    assert set(files) == {"my_store.py", "test_my_store.py"}
    for name, code in {**files, "conftest.py": CONFTEST}.items():
        (tmp_path / name).write_text(code)
    return tmp_path


def test_the_example_passes_the_kit_that_the_page_recommends(program: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_my_store.py"]
    finished = subprocess.run(command, cwd=program, capture_output=True, text=True, timeout=110)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]
    assert "5 passed" in finished.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("factory", ["make_store", "make_careful_store"])
async def test_the_url_of_the_page_opens_the_example(
    program: Path, monkeypatch: pytest.MonkeyPatch, factory: str
) -> None:
    monkeypatch.chdir(program)
    monkeypatch.syspath_prepend(program)
    monkeypatch.delitem(sys.modules, "my_store", raising=False)
    async with open_store(f"python:my_store:{factory}") as store:
        await store.write_memory_document("acme", "ann", "user", "USER.md", "likes tea")
        assert await store.read_memory_document("acme", "ann", "user", "USER.md") == "likes tea"
    assert os.path.getsize(program / "my.db") > 0
    monkeypatch.delitem(sys.modules, "my_store")
