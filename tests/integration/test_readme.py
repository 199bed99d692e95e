"""The README's tour, word for word: what it shows is what one gets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]

README = Path(__file__).parents[2] / "README.md"
_VARIES = re.compile(r'"duration_ms": [0-9.]+')


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    """A daemon that nobody has written to before."""
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


def console_steps(text: str) -> list[tuple[str, str]]:
    """Every command of the README's console blocks, with the output that it shows."""
    steps: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            steps.append((command, output.rstrip("\n")))
    return steps


def test_the_tour_shows_what_one_gets(daemon: RunningDaemon, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SANDBOXD_SOCKET": str(daemon.socket),
    }
    steps = [step for step in console_steps(README.read_text()) if not step[0].startswith("export ")]
    assert len(steps) >= 7
    try:
        for command, shown in steps:
            done = subprocess.run(
                ["bash", "-c", command.replace("/run/sandboxd.sock", str(daemon.socket))],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
            assert _VARIES.sub("", done.stdout.rstrip("\n")) == _VARIES.sub("", shown), command
    finally:
        subprocess.run(["sandboxd", "rm", "research"], env=environment, check=True, timeout=60)


def test_the_python_of_the_tour_runs(daemon: RunningDaemon) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    environment = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket)}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    with daemon.client() as client:
        client.destroy_sandbox("research")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "137 ('memory',)"
    assert done.stdout.count("ExecOutput") == 3
