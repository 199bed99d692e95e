"""The how-to on stateful code, run against a daemon exactly as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import RunningDaemon
from tests.tour import console_steps, environment_of, run_step

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-code.md"


def test_the_page_prints_what_it_shows(daemon: RunningDaemon, interpreter_image: str) -> None:
    steps = console_steps(PAGE.read_text())
    assert len(steps) == 8
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for command, shown in steps[:-1]:
        assert run_step(command, daemon) == shown, command
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment_of(daemon),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['text/html', 'text/plain']",
        "b'\\x89PNG'",
        "True False KeyboardInterrupt",
        "1",
        *["RunOutput"] * (done.stdout.count("RunOutput")),
        "RunOutcome",
    ]
    assert "RunOutput" in done.stdout
    command, shown = steps[-1]
    assert run_step(command, daemon) == shown
