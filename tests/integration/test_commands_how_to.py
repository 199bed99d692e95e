"""The how-to on commands and processes, run against a daemon exactly as written."""

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

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-commands.md"
PRINTED = (
    ["b'\\xffok' �ok", "100000000", "['1', '2', '3']"],
    ["ended with 130 in /tmp", "TERM"],
    ["True 3"],
)


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


def test_the_commands_of_the_page_print_what_the_page_shows(daemon: RunningDaemon) -> None:
    steps = console_steps(PAGE.read_text())
    assert len(steps) == 11
    for command, shown in steps:
        assert run_step(command, daemon) == shown, command


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_the_python_of_the_page_prints_what_the_page_shows(daemon: RunningDaemon, number: int) -> None:
    sources = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(sources) == len(PRINTED)
    done = subprocess.run(
        [sys.executable, "-c", sources[number]],
        env=environment_of(daemon),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED[number]
