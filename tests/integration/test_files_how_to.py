"""The how-to on files, run against a daemon exactly as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import RunningDaemon
from tests.tour import console_steps, environment_of, run_step

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "manage-files.md"


def test_the_commands_of_the_page_print_what_the_page_shows(daemon: RunningDaemon, tmp_path: Path) -> None:
    steps = console_steps(PAGE.read_text())
    assert len(steps) == 15
    for command, shown in steps:
        assert run_step(command, daemon, tmp_path) == shown, command


def test_the_program_of_the_page_prints_what_the_page_shows(daemon: RunningDaemon) -> None:
    [(program, shown)] = re.findall(r"```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment_of(daemon),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == shown
