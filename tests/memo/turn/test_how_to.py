"""Runs the how-to pages and the example unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# Specification: 000.25
@pytest.mark.parametrize("page", ["run-a-turn.md", "storage-steps.md"])
def test_the_code_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    blocks = _BLOCK.findall((ROOT / "docs" / "how-to" / page).read_text())
    assert blocks
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks))
    done = run([str(program)], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_example_resumes_after_a_crash(tmp_path: Path) -> None:
    done = run([str(ROOT / "examples" / "turn_agent.py")], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = done.stdout.split("the second try")
    assert "exit code -9" in first
    assert "in scope: 1 messages, 1 tool calls" in second
    assert "This one: 4712:GET /page/4711 500" in second
    assert "ghosts: []" in second


def run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *command]
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=100, check=False)
