"""The how-to on tools, run against a daemon exactly as written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import RunningDaemon
from tests.tour import console_steps, environment_of, run_step

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tools.md"
PRINTED = (
    [
        "dict_keys(['name', 'description', 'input_schema'])",
        "dict_keys(['type', 'function'])",
        "{'readOnlyHint': False, 'destructiveHint': True, 'idempotentHint': False, 'openWorldHint': True}",
    ],
    ["True None", "False request.invalid", "False tool.not_found", "True None"],
    ["['Bash', 'Edit', 'Glob']"],
)
"""Lines that each example prints, in this order."""


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


def test_the_page_prints_what_it_shows(daemon: RunningDaemon) -> None:
    text = PAGE.read_text()
    sources = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(sources) == len(PRINTED)
    for source, expected in zip(sources, PRINTED, strict=True):
        done = subprocess.run(
            [sys.executable, "-c", source],
            env=environment_of(daemon),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if line in expected] == expected, done.stdout
    steps = console_steps(text)
    assert len(steps) == 5
    for command, shown in steps:
        assert run_step(command, daemon) == shown, command
