"""Runs the how-to page unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "consolidation.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_blocks_of_the_page_run(tmp_path: Path) -> None:
    blocks = _BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 7
    (tmp_path / "program.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shown = [line for line in done.stdout.splitlines() if line.startswith(("- Prefers", "- Is a"))]
    assert all(line in PAGE.read_text() for line in shown)
    assert "acme:bob written" in done.stdout
