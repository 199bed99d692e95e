"""The README's tour, run exactly as written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import RunningDaemon
from tests.tour import console_steps, environment_of, run_step

pytestmark = [pytest.mark.engine]

README = Path(__file__).parents[2] / "README.md"
_VARIES = re.compile(r'"duration_ms": [0-9.]+')


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    """A daemon with empty memory."""
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


def test_the_tour_prints_what_the_readme_shows(daemon: RunningDaemon, tmp_path: Path) -> None:
    steps = [step for step in console_steps(README.read_text()) if not step[0].startswith("export ")]
    assert len(steps) >= 7
    try:
        for command, shown in steps:
            assert _VARIES.sub("", run_step(command, daemon)) == _VARIES.sub("", shown), command
    finally:
        run_step("sandboxd rm research", daemon)


def test_the_python_of_the_tour_runs(daemon: RunningDaemon) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment_of(daemon),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    with daemon.client() as client:
        client.destroy_sandbox("research")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "137 ('memory',)"
    assert done.stdout.count("ExecOutput") == 3
