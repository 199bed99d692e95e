"""The how-to's example is a program: its blocks are assembled and run in their own directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-store.md"
_BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KIT = "python -m pytest -q test_my_store.py"
BIN = Path(sys.executable).parent


def write_program(page: str, directory: Path) -> None:
    """Write the files that a reader has at this point of the page."""
    blocks = _BLOCK.findall(page)
    assert len(blocks) == page.count("```python"), "a block does not say which file it belongs to"
    for name, code in blocks:
        with (directory / name).open("a") as file:
            file.write(code)


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTEST_ADDOPTS": "-p no:cacheprovider -W error"}
    return subprocess.run(["bash", "-c", command], cwd=directory, env=env, capture_output=True, text=True, timeout=110)


# Specification: 001.27
def test_the_kit_passes_at_each_step_where_the_page_runs_it(tmp_path: Path) -> None:
    so_far, command, _ = PAGE.read_text().partition(KIT)
    write_program(so_far, tmp_path)
    finished = run(command, tmp_path)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]
    assert "3 passed" in finished.stdout


def test_the_whole_program_passes_the_kit(tmp_path: Path) -> None:
    write_program(PAGE.read_text(), tmp_path)
    finished = run(KIT, tmp_path)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]
    assert "5 passed" in finished.stdout


@pytest.mark.parametrize("factory", ["make_store", "make_careful_store"])
def test_doctor_finds_the_store_from_the_directory_of_the_page(tmp_path: Path, factory: str) -> None:
    write_program(PAGE.read_text(), tmp_path)
    command = f"sandboxd doctor --data {tmp_path / 'data'} --engine bubblewrap --store python:my_store:{factory}"
    finished = run(command, tmp_path)
    assert "store\tit lacks: revisions" in finished.stdout, finished.stdout + finished.stderr
    assert (tmp_path / "my.db").stat().st_size > 0
