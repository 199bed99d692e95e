"""Runs the how-to page about embedding unchanged, with a real sandbox."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import unmount_below

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "embed.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# Specification: 001.79
def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    blocks = _BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 6
    (tmp_path / "program.py").write_text("\n".join(blocks))
    settings = {"ENGINE": "bubblewrap", "POOL": "0", "CACHE": "disk", "SOCKET": str(tmp_path / "unused")}
    try:
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **{f"SANDBOXD_{k}": v for k, v in settings.items()}},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        unmount_below(tmp_path / "data")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "You said 'I prefer short answers.'. This is message 1; 0 documents are known." in done.stdout
    assert (
        "['event: session.start', 'event: message_update', 'event: message_update', 'event: agent_end']" in done.stdout
    )
    assert "likes tea\n" in done.stdout
    assert done.stdout.rstrip().endswith("written")
