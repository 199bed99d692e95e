"""The synchronous client is generated from the async one by the script, and the check reports a stale file."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.unasync", "--check"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)


def test_the_synchronous_client_is_up_to_date_and_says_where_it_comes_from() -> None:
    assert check(ROOT).returncode == 0
    for path in (ROOT / "sandboxd/client/_sync").glob("*.py"):
        first = path.read_text().partition("\n")[0]
        assert first.startswith(f"# Generated from sandboxd/client/_async/{path.name} by scripts/unasync.py")


def test_nothing_asynchronous_is_left_in_the_synchronous_client() -> None:
    for path in (ROOT / "sandboxd/client/_sync").glob("*.py"):
        text = path.read_text()
        kinds = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
        assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)], path
        assert "Async" not in text, path


def test_a_stale_file_fails_the_check_with_one_sentence_and_the_next_step(tmp_path: Path) -> None:
    for name in ("sandboxd", "memo", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert check(tmp_path).returncode == 0
    stale = tmp_path / "sandboxd/client/_sync/tools.py"
    stale.write_text(stale.read_text().replace("def tool(", "def call_tool("))
    done = check(tmp_path)
    assert done.returncode == 1
    assert "sandboxd/client/_sync/tools.py is not what its source gives" in done.stderr
    assert "next: run `make client`" in done.stderr
